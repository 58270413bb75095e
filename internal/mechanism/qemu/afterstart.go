package qemu

import (
	"strconv"
	"time"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// AfterStart gives the steps between the start of a guest's QEMU and that of
// its processors: what cannot be said in arguments, and what must not, because
// everybody on the host can read them.
func AfterStart(p *Plan) []Step {
	d := &p.Definition.Devices
	var steps []Step
	for _, g := range d.Graphics {
		steps = append(steps, Passwords(g)...)
		steps = append(steps, listenSteps(p.Listeners[g.Alias])...)
	}
	for _, n := range d.NICs {
		if n.Link == "down" {
			steps = append(steps, Step{Command: "set_link", Args: properties{{"name", n.Alias}, {"up", false}}})
		}
	}
	for _, disk := range d.Disks {
		if disk.Tune != nil {
			steps = append(steps, Throttle(disk))
		}
	}
	if b := d.Balloon; b != nil && b.Model != "none" {
		steps = append(steps, balloonSteps(p, b)...)
	}
	return steps
}

func balloonSteps(p *Plan, b *device.Balloon) []Step {
	var steps []Step
	if b.StatsPeriod > 0 {
		steps = append(steps, Step{Command: "qom-set", Args: properties{
			{"path", "/machine/peripheral/" + b.Alias}, {"property", "guest-stats-polling-interval"}, {"value", b.StatsPeriod},
		}})
	}
	// One that waits for a guest has its balloon from there.
	if current := p.Definition.CurrentMemory; current < p.Definition.Memory && !p.Incoming {
		steps = append(steps, Step{Command: "balloon", Args: properties{{"value", current}}})
	}
	return steps
}

// backendOf is where QEMU's object tree has what a disk's device reads and
// writes through.
func backendOf(d *device.Disk) string {
	switch d.Bus {
	case "virtio":
		return "/machine/peripheral/" + d.Alias + "/virtio-backend"
	case "usb":
		if d.Device == "cdrom" { // stands behind a bridge under its own name
			return d.Alias
		}
		return "/machine/peripheral/" + d.Alias + "/" + d.Alias + ".0/legacy[0]"
	}
	return d.Alias
}

// Throttle gives the step that bounds a disk's traffic as it is tuned. All six
// rates are said, so that bounds that are no more are taken away.
func Throttle(d *device.Disk) Step {
	t := d.Tune
	if t == nil {
		t = new(device.IOTune)
	}
	props := properties{
		{"id", backendOf(d)},
		{"bps", t.TotalBytes},
		{"bps_rd", t.ReadBytes},
		{"bps_wr", t.WriteBytes},
		{"iops", t.TotalIOPS},
		{"iops_rd", t.ReadIOPS},
		{"iops_wr", t.WriteIOPS},
	}
	for _, most := range []struct {
		name          string
		value, length uint64
	}{
		{"bps_max", t.TotalBytesMax, t.TotalBytesMaxLen},
		{"bps_rd_max", t.ReadBytesMax, t.ReadBytesMaxLen},
		{"bps_wr_max", t.WriteBytesMax, t.WriteBytesMaxLen},
		{"iops_max", t.TotalIOPSMax, t.TotalIOPSMaxLen},
		{"iops_rd_max", t.ReadIOPSMax, t.ReadIOPSMaxLen},
		{"iops_wr_max", t.WriteIOPSMax, t.WriteIOPSMaxLen},
	} {
		if most.value > 0 {
			props.add(most.name, most.value)
		}
		if most.length > 0 {
			props.add(most.name+"_length", most.length)
		}
	}
	if t.SizeIOPS > 0 {
		props.add("iops_size", t.SizeIOPS)
	}
	props.text("group", t.Group)
	return Step{Command: "block_set_io_throttle", Args: props}
}

// validTo is how a definition says until when a password holds.
const validTo = "2006-01-02T15:04:05"

// Passwords gives the steps that set the password of a display and the time at
// which it ends. A display without one needs none.
func Passwords(g *device.Graphics) []Step {
	if !needsPassword(g) {
		return nil
	}
	set := properties{{"protocol", g.Type}, {"password", g.Password}}
	if g.Connected != "" && g.Connected != "keep" {
		set.add("connected", g.Connected)
	}
	until := "never"
	switch at, err := time.Parse(validTo, g.PasswordValidTo); {
	case g.Password == "" && g.Type == "vnc":
		until = "now" // an empty password lets nobody in
	case g.PasswordValidTo == "":
	case err != nil:
		until = "now" // better nobody than anybody
	default:
		until = strconv.FormatInt(at.Unix(), 10)
	}
	return []Step{
		{Command: "set_password", Args: set},
		{Command: "expire_password", Args: properties{{"protocol", g.Type}, {"time", until}}},
	}
}
