package api

import (
	"fmt"
	"strconv"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// The kinds of object of events.
const (
	objectGuest      = "guest"
	objectNetwork    = "network"
	objectPool       = "pool"
	objectNodeDevice = "node device"
	objectSecret     = "secret"
)

// about makes an event from the object, what happened, the reason, and pairs of a field's name and value;
// fields without a value are left out.
func about(object, what, detail string, pairs ...string) *lodgev1.Event {
	e := &lodgev1.Event{Object: object, What: what, Detail: legible(detail)}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			continue
		}
		e.Fields = set(e.Fields, pairs[i], pairs[i+1])
	}
	return e
}

func number[N int64 | uint64](n N) string { return fmt.Sprint(n) }

// describe translates an event.
func describe(p event.Payload) *lodgev1.Event {
	switch p := p.(type) {
	case event.NetworkChange:
		return about(objectNetwork, string(p.Change), "")
	case event.NetworkMetadata:
		return about(objectNetwork, "metadata", p.Kind, "uri", p.URI)
	case event.PoolChange:
		return about(objectPool, string(p.Change), "")
	case event.PoolRefresh:
		return about(objectPool, "refreshed", "")
	case event.NodeDeviceChange:
		return about(objectNodeDevice, string(p.Change), "")
	case event.SecretChange:
		return about(objectSecret, string(p.Change), "", "usage", p.Usage, "for", p.For)
	case event.SecretValue:
		return about(objectSecret, "value set", "", "usage", p.Usage, "for", p.For)
	case event.DomainChange:
		return about(objectGuest, string(p.Change), p.Detail)
	case event.DomainReboot:
		return about(objectGuest, "rebooted", "")
	case event.DomainPMSuspend:
		return about(objectGuest, "asleep", p.To)
	case event.DomainPMWakeup:
		return about(objectGuest, "awake", "")
	case event.DomainJob:
		return about(objectGuest, "job ended", p.Kind, "success", strconv.FormatBool(p.Success), "milliseconds", number(p.Milli), "bytes", number(p.TotalBytes))
	case event.DomainMetadata:
		return about(objectGuest, "metadata", p.Kind, "uri", p.URI)
	case event.DomainTunable:
		e := about(objectGuest, "tuned", "")
		for _, s := range p.Settings {
			e.Fields = set(e.Fields, s.Name, fmt.Sprint(s.Value))
		}
		return e
	}
	return describeDevice(p)
}

func set(fields map[string]string, name, value string) map[string]string {
	if fields == nil {
		fields = map[string]string{}
	}
	fields[name] = legible(value)
	return fields
}

// describeDevice translates an event about a part of a guest.
func describeDevice(p event.Payload) *lodgev1.Event {
	switch p := p.(type) {
	case event.DomainIOError:
		return about(objectGuest, "disk error", p.Reason, "path", p.Path, "alias", p.Alias, "action", p.Action)
	case event.DomainWatchdog:
		return about(objectGuest, "watchdog", p.Action)
	case event.DomainRTC:
		return about(objectGuest, "clock set", "", "offset", number(p.Offset))
	case event.DomainGraphics:
		return about(objectGuest, "display client", p.Phase, "from", p.RemoteNode, "port", p.RemoteService, "user", p.SASLUser)
	case event.DomainBlockJob:
		return about(objectGuest, "block job", p.Status, "kind", p.Kind, "target", p.Target, "path", p.Path)
	case event.DomainMediaChange:
		return about(objectGuest, "medium", p.Reason, "alias", p.Alias, "before", p.OldPath, "now", p.NewPath)
	case event.DomainTray:
		return about(objectGuest, "tray", map[bool]string{true: "open", false: "closed"}[p.Open], "alias", p.Alias)
	case event.DomainBalloon:
		return about(objectGuest, "balloon", "", "bytes", number(p.Actual))
	case event.DomainDeviceAdded:
		return about(objectGuest, "device added", "", "alias", p.Alias)
	case event.DomainDeviceRemoved:
		return about(objectGuest, "device removed", "", "alias", p.Alias)
	case event.DomainDeviceRemovalFailed:
		return about(objectGuest, "device kept", "the guest refused", "alias", p.Alias)
	case event.DomainAgent:
		return about(objectGuest, "agent", map[bool]string{true: "connected", false: "gone"}[p.Connected])
	case event.DomainBlockThreshold:
		return about(objectGuest, "disk threshold", "", "device", p.Device, "path", p.Path, "threshold", number(p.Threshold), "excess", number(p.Excess))
	case event.DomainMemoryFailure:
		return about(objectGuest, "memory failure", p.Action, "recipient", p.Recipient)
	}
	return about(objectGuest, fmt.Sprintf("%T", p), "") // an event that is newer than this table
}
