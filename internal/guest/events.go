package guest

import (
	"encoding/json"

	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/blockjob"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// handleEvent handles one event of QEMU. It runs in the loop and does not block. more is false if the
// session has ended, so that the monitor is lost.
func handleEvent(g *machine.Guest, e qmp.Event, more bool) {
	if !more {
		g.Instance.Events = nil
		if !g.Instance.Gone() {
			onMonitorLost(g)
		}
		return
	}
	g.Instance.EventsSeen = e.Number
	if e.Resync {
		resync(g)
	}
	if handle := qemuEvents[e.Name]; handle != nil {
		_ = g.Recover("QEMU's event "+e.Name, func() error { handle(g, e.Data); return nil }) // contain logs the error
	}
}

// qemuEvents maps each event of QEMU to its handler. QEMU is not trusted: an event that does not parse is
// logged by decode and changes nothing.
var qemuEvents = map[string]func(*machine.Guest, json.RawMessage){
	"STOP": func(g *machine.Guest, _ json.RawMessage) { g.Advance(lifecycle.Stopped{}) },
	"RESUME": func(g *machine.Guest, _ json.RawMessage) {
		provision.ClearDiskFull(g)
		g.Advance(lifecycle.Resumed{})
		g.Instance.Ops.RetryOwed()
	},
	"SUSPEND":      func(g *machine.Guest, _ json.RawMessage) { g.Advance(lifecycle.Slept{}) },
	"WAKEUP":       func(g *machine.Guest, _ json.RawMessage) { g.Advance(lifecycle.Woke{}) },
	"RESET":        onReset,
	"SHUTDOWN":     onShutdown,
	"SUSPEND_DISK": func(g *machine.Guest, _ json.RawMessage) { g.Announce(event.DomainPMSuspend{To: "disk"}) },

	"GUEST_PANICKED":            func(g *machine.Guest, _ json.RawMessage) { g.Advance(lifecycle.Panicked{}) },
	"BLOCK_IO_ERROR":            onIOError,
	"WATCHDOG":                  onWatchdog,
	"RTC_CHANGE":                onRTC,
	"BALLOON_CHANGE":            onBalloon,
	"DEVICE_DELETED":            onDeviceDeleted,
	"DEVICE_UNPLUG_GUEST_ERROR": onUnplugRefused,
	"DEVICE_TRAY_MOVED":         onTray,
	"VSERPORT_CHANGE":           onChannel,
	"JOB_STATUS_CHANGE":         blockjob.OnJobStatus,
	"VNC_CONNECTED":             onDisplay("connect"),
	"VNC_INITIALIZED":           onDisplay("initialize"),
	"VNC_DISCONNECTED":          onDisplay("disconnect"),
	"SPICE_CONNECTED":           onDisplay("connect"),
	"SPICE_INITIALIZED":         onDisplay("initialize"),
	"SPICE_DISCONNECTED":        onDisplay("disconnect"),
}

// onReset records that the guest has no channel open any more.
func onReset(g *machine.Guest, _ json.RawMessage) {
	g.SetActive(func(d *domain.Definition) {
		for _, c := range d.Devices.Channels {
			if c.State != "" {
				c.State = "disconnected"
			}
		}
	})
	g.Advance(lifecycle.WasReset{})
}

func onShutdown(g *machine.Guest, data json.RawMessage) {
	var e struct {
		Guest  bool
		Reason string
	}
	if g.Decode("SHUTDOWN", data, &e) {
		// Lodge's own quit or signal is no news: the end of the process will be.
		if e.Reason == "host-signal" || e.Reason == "host-qmp-quit" {
			return
		}
		g.Advance(lifecycle.PoweredDown{ByHost: !e.Guest, ByReset: e.Reason == "guest-reset"})
	}
}

func onIOError(g *machine.Guest, data json.RawMessage) {
	var e struct {
		Device, Action string
		Node           string `json:"node-name"`
		NoSpace        bool   `json:"nospace"`
	}
	if !g.Decode("BLOCK_IO_ERROR", data, &e) {
		return
	}
	if e.Action == "stop" {
		g.Advance(lifecycle.Failing{Reason: domain.ReasonIOError})
	}
	action := map[string]string{"stop": "pause", "report": "report", "ignore": "none"}[e.Action]
	reason := ""
	if e.NoSpace {
		reason = "enospc"
	}
	path, alias := statistics.DiskByNode(g.Instance, e.Node)
	if alias == "" {
		path, alias = statistics.DiskByDevice(g.Instance, e.Device)
	}
	if e.Action == "stop" && e.NoSpace {
		provision.RecordDiskFull(g, path)
	}
	g.Announce(event.DomainIOError{Path: path, Alias: alias, Action: action, Reason: reason})
}

func onWatchdog(g *machine.Guest, data json.RawMessage) {
	var e struct{ Action string }
	if !g.Decode("WATCHDOG", data, &e) {
		return
	}
	if e.Action == "pause" {
		g.Advance(lifecycle.Failing{Reason: domain.ReasonWatchdog})
	}
	g.Announce(event.DomainWatchdog{Action: eventName(e.Action)})
}

func onRTC(g *machine.Guest, data json.RawMessage) {
	var e struct{ Offset int64 }
	if g.Decode("RTC_CHANGE", data, &e) {
		g.Announce(event.DomainRTC{Offset: e.Offset})
	}
}

func onBalloon(g *machine.Guest, data json.RawMessage) {
	var e struct{ Actual uint64 }
	if !g.Decode("BALLOON_CHANGE", data, &e) {
		return
	}
	g.SetActive(func(d *domain.Definition) {
		setCurrentMemory(d, e.Actual)
		e.Actual = d.CurrentMemory
	})
	g.Announce(event.DomainBalloon{Actual: e.Actual})
}

// setCurrentMemory records the memory that the balloon leaves to the guest, in bytes. QEMU may report more than
// the guest has, or 0. Such a definition could not be parsed again, and the next daemon could not adopt the
// guest.
func setCurrentMemory(d *domain.Definition, bytes uint64) {
	if bytes >= 1<<10 { // it is written in KiB
		d.CurrentMemory = min(bytes, d.Memory)
	}
}

func onDeviceDeleted(g *machine.Guest, data json.RawMessage) {
	var e struct{ Device string }
	if g.Decode("DEVICE_DELETED", data, &e) && e.Device != "" {
		hotplug.DeviceGone(g, e.Device)
	}
}

func onUnplugRefused(g *machine.Guest, data json.RawMessage) {
	var e struct{ Device string }
	if g.Decode("DEVICE_UNPLUG_GUEST_ERROR", data, &e) && g.Instance.Definition.Devices.ByAlias(e.Device) != nil {
		hotplug.DetachRefused(g, e.Device)
	}
}

func onTray(g *machine.Guest, data json.RawMessage) {
	var e struct {
		ID   string `json:"id"`
		Open bool   `json:"tray-open"`
	}
	if !g.Decode("DEVICE_TRAY_MOVED", data, &e) {
		return
	}
	_, alias := statistics.DiskByDevice(g.Instance, e.ID)
	tray := "closed"
	if e.Open {
		tray = "open"
	}
	g.SetActive(func(d *domain.Definition) {
		if disk, ok := d.Devices.ByAlias(alias).(*device.Disk); ok {
			disk.Tray = tray
		}
	})
	g.Announce(event.DomainTray{Alias: alias, Open: e.Open})
}

// onChannel records whether the guest's end of a channel is open. For the agent's channel this tells that
// the agent has started or ended.
func onChannel(g *machine.Guest, data json.RawMessage) {
	var e struct {
		ID   string `json:"id"`
		Open bool
	}
	if !g.Decode("VSERPORT_CHANGE", data, &e) {
		return
	}
	state := "disconnected"
	if e.Open {
		state = "connected"
	}
	agent := false
	g.SetActive(func(d *domain.Definition) {
		if c, ok := d.Devices.ByAlias(e.ID).(*device.Char); ok {
			agent = c.Name == machine.AgentChannel && c.State != state
			c.State = state
		}
	})
	if agent {
		g.Announce(event.DomainAgent{Connected: e.Open, Reason: "channel"})
	}
}

// displayEndpoint is one end of a display connection, as QEMU reports it.
type displayEndpoint struct {
	Host, Service, Family string
	Port                  string // spice
	Auth                  string
	X509                  string `json:"x509_dname"`
	SASL                  string `json:"sasl_username"`
}

// maxEventName bounds, in bytes, a name in an event that QEMU sends. The event log keeps thousands of events,
// for every client.
const maxEventName = 512

// eventName returns such a name in the length that is passed on.
func eventName(text string) string { return provision.Printable(text[:min(len(text), maxEventName)]) }

func onDisplay(phase string) func(*machine.Guest, json.RawMessage) {
	return func(g *machine.Guest, data json.RawMessage) {
		var e struct{ Server, Client displayEndpoint }
		if !g.Decode("display event", data, &e) {
			return
		}
		g.Announce(event.DomainGraphics{
			Phase: phase, AuthScheme: eventName(e.Server.Auth), X509Name: eventName(e.Client.X509), SASLUser: eventName(e.Client.SASL),
			LocalFamily: eventName(e.Server.Family), LocalNode: eventName(e.Server.Host), LocalService: eventName(e.Server.Service + e.Server.Port),
			RemoteFamily: eventName(e.Client.Family), RemoteNode: eventName(e.Client.Host), RemoteService: eventName(e.Client.Service + e.Client.Port),
		})
	}
}
