package qemu

import (
	"strconv"
	"time"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// AfterStart returns the commands between the start of a guest's QEMU and the start of its vCPUs: what the
// command line cannot say, and secrets, because every user of the host can read command lines.
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
	// With -incoming the balloon's size is part of the incoming guest's state.
	if current := p.Definition.CurrentMemory; current < p.Definition.Memory && !p.Incoming {
		steps = append(steps, Step{Command: "balloon", Args: properties{{"value", current}}})
	}
	return steps
}

// backendOf is the path of a disk's block backend in QEMU's object tree.
func backendOf(d *device.Disk) string {
	switch d.Bus {
	case "virtio":
		return "/machine/peripheral/" + d.Alias + "/virtio-backend"
	case "usb":
		if d.Device == "cdrom" { // a USB CD drive has its backend behind a bridge, under a name of its own
			return d.Alias
		}
		return "/machine/peripheral/" + d.Alias + "/" + d.Alias + ".0/legacy[0]"
	}
	return d.Alias
}

// Throttle returns the command that sets a disk's I/O limits. It sets all six rates, so that limits that
// no longer apply are removed.
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

// validTo is the layout of a password's expiry in a definition.
const validTo = "2006-01-02T15:04:05"

// Passwords returns the commands that set a display's password and its expiry; none for a display without
// a password.
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
		until = "now" // an empty password admits no client
	case g.PasswordValidTo == "":
	case err != nil:
		until = "now" // an expiry that cannot be read admits no client
	default:
		until = strconv.FormatInt(at.Unix(), 10)
	}
	return []Step{
		{Command: "set_password", Args: set},
		{Command: "expire_password", Args: properties{{"protocol", g.Type}, {"time", until}}},
	}
}
