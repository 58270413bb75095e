package api

import (
	"fmt"
	"strconv"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// The kinds of objects of events, by their names on the wire.
const (
	objectGuest      = "guest"
	objectNetwork    = "network"
	objectPool       = "pool"
	objectNodeDevice = "node device"
	objectSecret     = "secret"
)

// newEvent makes an event from its object, what happened, the reason, and pairs of a field's name and value.
// Fields with an empty value are left out.
func newEvent(object, what, detail string, pairs ...string) *lodgev1.Event {
	e := &lodgev1.Event{Object: object, What: what, Detail: validUTF8(detail)}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			continue
		}
		e.Fields = setField(e.Fields, pairs[i], pairs[i+1])
	}
	return e
}

func formatInt[N int64 | uint64](n N) string { return fmt.Sprint(n) }

// describeEvent translates the payload of an event.
func describeEvent(p event.Payload) *lodgev1.Event {
	switch p := p.(type) {
	case event.NetworkChange:
		return newEvent(objectNetwork, string(p.Change), "")
	case event.NetworkMetadata:
		return newEvent(objectNetwork, "metadata", p.Kind, "uri", p.URI)
	case event.PoolChange:
		return newEvent(objectPool, string(p.Change), "")
	case event.PoolRefresh:
		return newEvent(objectPool, "refreshed", "")
	case event.NodeDeviceChange:
		return newEvent(objectNodeDevice, string(p.Change), "")
	case event.SecretChange:
		return newEvent(objectSecret, string(p.Change), "", "usage", p.Usage, "for", p.For)
	case event.SecretValue:
		return newEvent(objectSecret, "value set", "", "usage", p.Usage, "for", p.For)
	case event.DomainChange:
		return newEvent(objectGuest, string(p.Change), p.Detail)
	case event.DomainReboot:
		return newEvent(objectGuest, "rebooted", "")
	case event.DomainPMSuspend:
		return newEvent(objectGuest, "asleep", p.To)
	case event.DomainPMWakeup:
		return newEvent(objectGuest, "awake", "")
	case event.DomainJob:
		return newEvent(objectGuest, "job ended", p.Kind, "success", strconv.FormatBool(p.Success), "milliseconds", formatInt(p.Milli), "bytes", formatInt(p.TotalBytes))
	case event.DomainMetadata:
		return newEvent(objectGuest, "metadata", p.Kind, "uri", p.URI)
	case event.DomainTunable:
		e := newEvent(objectGuest, "tuned", "")
		for _, s := range p.Settings {
			e.Fields = setField(e.Fields, s.Name, fmt.Sprint(s.Value))
		}
		return e
	}
	return describeDeviceEvent(p)
}

func setField(fields map[string]string, name, value string) map[string]string {
	if fields == nil {
		fields = map[string]string{}
	}
	fields[name] = validUTF8(value)
	return fields
}

// describeDeviceEvent translates the payload of an event about a part of a guest.
func describeDeviceEvent(p event.Payload) *lodgev1.Event {
	switch p := p.(type) {
	case event.DomainIOError:
		return newEvent(objectGuest, "disk error", p.Reason, "path", p.Path, "alias", p.Alias, "action", p.Action)
	case event.DomainWatchdog:
		return newEvent(objectGuest, "watchdog", p.Action)
	case event.DomainRTC:
		return newEvent(objectGuest, "clock set", "", "offset", formatInt(p.Offset))
	case event.DomainGraphics:
		return newEvent(objectGuest, "display client", p.Phase, "from", p.RemoteNode, "port", p.RemoteService, "user", p.SASLUser)
	case event.DomainBlockJob:
		return newEvent(objectGuest, "block job", p.Status, "kind", p.Kind, "target", p.Target, "path", p.Path)
	case event.DomainMediaChange:
		return newEvent(objectGuest, "medium", p.Reason, "alias", p.Alias, "before", p.OldPath, "now", p.NewPath)
	case event.DomainTray:
		return newEvent(objectGuest, "tray", map[bool]string{true: "open", false: "closed"}[p.Open], "alias", p.Alias)
	case event.DomainBalloon:
		return newEvent(objectGuest, "balloon", "", "bytes", formatInt(p.Actual))
	case event.DomainDeviceAdded:
		return newEvent(objectGuest, "device added", "", "alias", p.Alias)
	case event.DomainDeviceRemoved:
		return newEvent(objectGuest, "device removed", "", "alias", p.Alias)
	case event.DomainDeviceRemovalFailed:
		return newEvent(objectGuest, "device kept", "the guest refused", "alias", p.Alias)
	case event.DomainAgent:
		return newEvent(objectGuest, "agent", map[bool]string{true: "connected", false: "gone"}[p.Connected])
	case event.DomainBlockThreshold:
		return newEvent(objectGuest, "disk threshold", "", "device", p.Device, "path", p.Path, "threshold", formatInt(p.Threshold), "excess", formatInt(p.Excess))
	case event.DomainMemoryFailure:
		return newEvent(objectGuest, "memory failure", p.Action, "recipient", p.Recipient)
	}
	return newEvent(objectGuest, fmt.Sprintf("%T", p), "") // a payload that is missing in these tables
}
