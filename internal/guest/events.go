package guest

import (
	"encoding/json"

	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// handleEvent handles one event of QEMU. It runs in the loop and does not block. more is false if the
// session has ended, so that the monitor is lost.
func (g *Guest) handleEvent(e qmp.Event, more bool) {
	if !more {
		g.run.events = nil
		if !g.run.gone() {
			g.loseMonitor()
		}
		return
	}
	g.run.seen = e.Number
	if e.Resync {
		g.resync()
	}
	if handle := qemuEvents[e.Name]; handle != nil {
		_ = g.contain("QEMU's event "+e.Name, func() error { handle(g, e.Data); return nil }) // contain logs the error
	}
}

// qemuEvents maps each event of QEMU to its handler. QEMU is not trusted: an event that does not parse is
// logged by decode and changes nothing.
var qemuEvents = map[string]func(*Guest, json.RawMessage){
	"STOP":         func(g *Guest, _ json.RawMessage) { g.advance(lifecycle.Stopped{}) },
	"RESUME":       func(g *Guest, _ json.RawMessage) { g.hasRoomAgain(); g.advance(lifecycle.Resumed{}); g.run.ops.Again() },
	"SUSPEND":      func(g *Guest, _ json.RawMessage) { g.advance(lifecycle.Slept{}) },
	"WAKEUP":       func(g *Guest, _ json.RawMessage) { g.advance(lifecycle.Woke{}) },
	"RESET":        (*Guest).onReset,
	"SHUTDOWN":     (*Guest).onShutdown,
	"SUSPEND_DISK": func(g *Guest, _ json.RawMessage) { g.announce(event.DomainPMSuspend{To: "disk"}) },

	"GUEST_PANICKED":            func(g *Guest, _ json.RawMessage) { g.advance(lifecycle.Panicked{}) },
	"BLOCK_IO_ERROR":            (*Guest).onIOError,
	"WATCHDOG":                  (*Guest).onWatchdog,
	"RTC_CHANGE":                (*Guest).onRTC,
	"BALLOON_CHANGE":            (*Guest).onBalloon,
	"DEVICE_DELETED":            (*Guest).onDeviceDeleted,
	"DEVICE_UNPLUG_GUEST_ERROR": (*Guest).onUnplugRefused,
	"DEVICE_TRAY_MOVED":         (*Guest).onTray,
	"VSERPORT_CHANGE":           (*Guest).onChannel,
	"JOB_STATUS_CHANGE":         (*Guest).onJobStatus,
	"VNC_CONNECTED":             onDisplay("connect"),
	"VNC_INITIALIZED":           onDisplay("initialize"),
	"VNC_DISCONNECTED":          onDisplay("disconnect"),
	"SPICE_CONNECTED":           onDisplay("connect"),
	"SPICE_INITIALIZED":         onDisplay("initialize"),
	"SPICE_DISCONNECTED":        onDisplay("disconnect"),
}

// decode parses an event's data. It logs a failure once per run.
func (g *Guest) decode(name string, data json.RawMessage, into any) bool {
	if err := json.Unmarshal(data, into); err != nil {
		if !g.run.garbled {
			g.log.Warn("QEMU sent an event that does not parse; further ones are not logged", "event", name, "error", err)
		}
		g.run.garbled = true
		return false
	}
	return true
}

// onReset records that the guest has no channel open any more.
func (g *Guest) onReset(_ json.RawMessage) {
	g.setActive(func(d *domain.Definition) {
		for _, c := range d.Devices.Channels {
			if c.State != "" {
				c.State = "disconnected"
			}
		}
	})
	g.advance(lifecycle.WasReset{})
}

func (g *Guest) onShutdown(data json.RawMessage) {
	var e struct {
		Guest  bool
		Reason string
	}
	if g.decode("SHUTDOWN", data, &e) {
		// Lodge's own quit or signal is no news: the end of the process will be.
		if e.Reason == "host-signal" || e.Reason == "host-qmp-quit" {
			return
		}
		g.advance(lifecycle.PoweredDown{ByHost: !e.Guest, ByReset: e.Reason == "guest-reset"})
	}
}

func (g *Guest) onIOError(data json.RawMessage) {
	var e struct {
		Device, Action string
		Node           string `json:"node-name"`
		NoSpace        bool   `json:"nospace"`
	}
	if !g.decode("BLOCK_IO_ERROR", data, &e) {
		return
	}
	if e.Action == "stop" {
		g.advance(lifecycle.Failing{Reason: domain.ReasonIOError})
	}
	action := map[string]string{"stop": "pause", "report": "report", "ignore": "none"}[e.Action]
	reason := ""
	if e.NoSpace {
		reason = "enospc"
	}
	path, alias := g.run.diskByNode(e.Node)
	if alias == "" {
		path, alias = g.run.diskByDevice(e.Device)
	}
	if e.Action == "stop" && e.NoSpace {
		g.lacksRoom(path)
	}
	g.announce(event.DomainIOError{Path: path, Alias: alias, Action: action, Reason: reason})
}

func (g *Guest) onWatchdog(data json.RawMessage) {
	var e struct{ Action string }
	if !g.decode("WATCHDOG", data, &e) {
		return
	}
	if e.Action == "pause" {
		g.advance(lifecycle.Failing{Reason: domain.ReasonWatchdog})
	}
	g.announce(event.DomainWatchdog{Action: brief(e.Action)})
}

func (g *Guest) onRTC(data json.RawMessage) {
	var e struct{ Offset int64 }
	if g.decode("RTC_CHANGE", data, &e) {
		g.announce(event.DomainRTC{Offset: e.Offset})
	}
}

func (g *Guest) onBalloon(data json.RawMessage) {
	var e struct{ Actual uint64 }
	if !g.decode("BALLOON_CHANGE", data, &e) {
		return
	}
	g.setActive(func(d *domain.Definition) {
		leaveMemory(d, e.Actual)
		e.Actual = d.CurrentMemory
	})
	g.announce(event.DomainBalloon{Actual: e.Actual})
}

// leaveMemory records the memory that the balloon leaves to the guest, in bytes. QEMU may report more than
// the guest has, or 0. Such a definition could not be parsed again, and the next daemon could not adopt the
// guest.
func leaveMemory(d *domain.Definition, bytes uint64) {
	if bytes >= 1<<10 { // it is written in KiB
		d.CurrentMemory = min(bytes, d.Memory)
	}
}

func (g *Guest) onDeviceDeleted(data json.RawMessage) {
	var e struct{ Device string }
	if g.decode("DEVICE_DELETED", data, &e) && e.Device != "" {
		g.deviceGone(e.Device)
	}
}

func (g *Guest) onUnplugRefused(data json.RawMessage) {
	var e struct{ Device string }
	if g.decode("DEVICE_UNPLUG_GUEST_ERROR", data, &e) && g.run.def.Devices.ByAlias(e.Device) != nil {
		g.detachRefused(e.Device)
	}
}

func (g *Guest) onTray(data json.RawMessage) {
	var e struct {
		ID   string `json:"id"`
		Open bool   `json:"tray-open"`
	}
	if !g.decode("DEVICE_TRAY_MOVED", data, &e) {
		return
	}
	_, alias := g.run.diskByDevice(e.ID)
	tray := "closed"
	if e.Open {
		tray = "open"
	}
	g.setActive(func(d *domain.Definition) {
		if disk, ok := d.Devices.ByAlias(alias).(*device.Disk); ok {
			disk.Tray = tray
		}
	})
	g.announce(event.DomainTray{Alias: alias, Open: e.Open})
}

// onChannel records whether the guest's end of a channel is open. For the agent's channel this tells that
// the agent has started or ended.
func (g *Guest) onChannel(data json.RawMessage) {
	var e struct {
		ID   string `json:"id"`
		Open bool
	}
	if !g.decode("VSERPORT_CHANGE", data, &e) {
		return
	}
	state := "disconnected"
	if e.Open {
		state = "connected"
	}
	agent := false
	g.setActive(func(d *domain.Definition) {
		if c, ok := d.Devices.ByAlias(e.ID).(*device.Char); ok {
			agent = c.Name == AgentChannel && c.State != state
			c.State = state
		}
	})
	if agent {
		g.announce(event.DomainAgent{Connected: e.Open, Reason: "channel"})
	}
}

// displayEnd is one end of a display connection, as QEMU reports it.
type displayEnd struct {
	Host, Service, Family string
	Port                  string // spice
	Auth                  string
	X509                  string `json:"x509_dname"`
	SASL                  string `json:"sasl_username"`
}

// maxBrief bounds, in bytes, a name in an event that QEMU sends. The event log keeps thousands of events,
// for every client.
const maxBrief = 512

// brief returns such a name in the length that is passed on.
func brief(text string) string { return told(text[:min(len(text), maxBrief)]) }

func onDisplay(phase string) func(*Guest, json.RawMessage) {
	return func(g *Guest, data json.RawMessage) {
		var e struct{ Server, Client displayEnd }
		if !g.decode("display event", data, &e) {
			return
		}
		g.announce(event.DomainGraphics{
			Phase: phase, AuthScheme: brief(e.Server.Auth), X509Name: brief(e.Client.X509), SASLUser: brief(e.Client.SASL),
			LocalFamily: brief(e.Server.Family), LocalNode: brief(e.Server.Host), LocalService: brief(e.Server.Service + e.Server.Port),
			RemoteFamily: brief(e.Client.Family), RemoteNode: brief(e.Client.Host), RemoteService: brief(e.Client.Service + e.Client.Port),
		})
	}
}

// setActive changes the active definition. It changes a copy, because readers may hold the present one. It
// runs in the loop.
func (g *Guest) setActive(change func(*domain.Definition)) {
	if g.run == nil {
		return
	}
	def := g.run.def.Clone()
	change(def)
	g.run.def = def
	g.publish()
}
