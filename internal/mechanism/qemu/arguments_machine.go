package qemu

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// accelerator is the one that a definition asks for.
func (b *builder) accelerator() qemucaps.Accelerator {
	name := "tcg"
	if b.Definition.Virt == "kvm" {
		name = "kvm"
	}
	return b.Capabilities.Accelerator(name)
}

// machine adds the machine and its accelerator.
func (b *builder) machine() error {
	d := b.Definition
	m, ok := b.Capabilities.Machine(d.OS.Machine)
	if !ok || b.board == otherBoard {
		return unsupported("this QEMU has no machine type %q any more", d.OS.Machine)
	}
	machine := optionList{escape(m.Name)}
	machine.raw("usb=off", "dump-guest-core=off")
	if len(d.CPU.Cells) == 0 {
		machine.add("memory-backend", m.DefaultRAMID)
	}
	b.boardSwitches(&machine)
	if err := b.firmware(&machine); err != nil {
		return err
	}
	if err := b.writePending(); err != nil { // objects that the machine refers to come first
		return err
	}
	b.addOption("machine", machine)
	return b.accelerate()
}

func (b *builder) boardSwitches(machine *optionList) {
	f := b.Definition.Features
	if b.Definition.Backing.NoSharePages {
		machine.raw("mem-merge=off")
	}
	if b.board != microvm {
		machine.onOff("vmport", f.VMPort)
		machine.onOff("smm", f.SMM)
		if b.timer("hpet").Present == device.Off {
			machine.raw("hpet=off")
		}
	}
	if !f.ACPI {
		machine.raw("acpi=off")
	}
	if b.Definition.OS.BIOSSerial == device.On && b.hasGraphicsSwitch() {
		machine.raw("graphics=off")
	}
	switch f.IOAPIC {
	case "qemu":
		machine.raw("kernel_irqchip=split")
	case "kvm":
		machine.raw("kernel_irqchip=on")
	}
	for _, sound := range b.Definition.Devices.Sounds {
		if sound.Model == "pcspk" {
			machine.add("pcspk-audiodev", b.audioOf(sound.AudioID))
		}
	}
}

// hasGraphicsSwitch reports whether the machine itself can send the firmware's
// output to the serial port; older ones have a device for it.
func (b *builder) hasGraphicsSwitch() bool {
	return b.Capabilities.HasProperty(b.Definition.OS.Machine, "graphics")
}

func (b *builder) accelerate() error {
	acc := b.accelerator()
	if !acc.Usable {
		return unsupported("domain type %q cannot be used on this host: %s", b.Definition.Virt, acc.Reason)
	}
	how := optionList{acc.Name}
	if acc.Name == "tcg" {
		how.raw("thread=multi")
		if size := b.Definition.Features.TCGTBCache; size > 0 {
			how.add("tb-size", strconv.FormatUint(max(size>>20, 1), 10))
		}
	}
	b.addOption("accel", how)
	return nil
}

// firmware adds the firmware; SeaBIOS if the definition names none.
func (b *builder) firmware(machine *optionList) error {
	o := b.Definition.OS
	if o.Loader.Path == "" {
		if o.Firmware != "" && o.Firmware != "bios" {
			return unsupported("no firmware of kind %q has been found on this host", o.Firmware)
		}
		return nil
	}
	if o.Loader.Type != "pflash" {
		b.addWords("-bios", o.Loader.Path)
		return nil
	}
	if o.Loader.Secure == device.On {
		b.addWords("-global", "driver=cfi.pflash01,property=secure,value=on")
	}
	readOnly := o.Loader.ReadOnly != device.Off
	b.flash("libvirt-pflash0", "file", o.Loader.Path, o.Loader.Format, readOnly)
	machine.raw("pflash0=libvirt-pflash0-format")
	if o.Loader.Stateless == device.On || !readOnly {
		return nil
	}
	path := o.NVRAM.Path
	if path == "" {
		if !b.dryRun {
			return invalid("os/nvram: the firmware %s needs a file for its variables; add <nvram template='...'/>, "+
				"or readonly='no' to the loader where its image holds them", o.Loader.Path)
		}
		path = o.NVRAM.Template
	}
	driver := "file"
	if o.NVRAM.Type == "block" {
		driver = "host_device"
	}
	b.flash("libvirt-pflash1", driver, path, o.NVRAM.Format, false)
	machine.raw("pflash1=libvirt-pflash1-format")
	return nil
}

func (b *builder) flash(node, driver, path, format string, readOnly bool) {
	if format == "" {
		format = "raw"
	}
	path = b.qemuPath(path)
	flash := properties{
		{"driver", format},
		{"node-name", node + "-format"},
		{"read-only", readOnly},
		{"file", properties{
			{"driver", driver}, {"filename", path}, {"node-name", node + "-storage"}, {"read-only", readOnly}, {"discard", "unmap"},
		}},
	}
	if slices.Contains(backed, format) {
		flash.add("backing", nil)
	}
	b.add("blockdev", flash)
}

// uuidAndSMBIOS adds the UUID and the other identifiers that the guest can read.
func (b *builder) uuidAndSMBIOS() error {
	d := b.Definition
	b.addWords("-uuid", d.UUID)
	if err := b.smbios(); err != nil {
		return err
	}
	if s := d.SysInfo; s != nil {
		for _, e := range s.FWCfg {
			if !strings.HasPrefix(e.Name, "opt/") {
				return invalid("firmware configuration %q: names begin with opt/, the others are the machine's own", e.Name)
			}
			entry := optionList{}
			entry.add("name", e.Name)
			entry.text("string", e.Value)
			entry.text("file", e.File)
			b.addOption("fw_cfg", entry)
		}
	}
	if d.GenID != "" {
		if err := b.addDevice("vmgenid", properties{{"guid", d.GenID}, {"id", "vmgenid0"}}); err != nil {
			return err
		}
	}
	if d.Features.VMCoreInfo == device.On {
		return b.addDevice("vmcoreinfo", nil)
	}
	return nil
}

// smbios shows the guest the tables that the definition asks for.
func (b *builder) smbios() error {
	o, s := b.Definition.OS, b.Definition.SysInfo
	switch o.SMBIOSMode {
	case "", "emulate":
		return nil
	case "sysinfo":
	default:
		return unsupported("smbios mode %q is not built; use sysinfo", o.SMBIOSMode)
	}
	if s == nil {
		return invalid("smbios mode sysinfo needs a sysinfo element")
	}
	if err := errors.Join(b.smbiosTable("0", s.BIOS), b.smbiosTable("1", s.System)); err != nil {
		return err
	}
	for _, board := range s.BaseBoards {
		if err := b.smbiosTable("2", board); err != nil {
			return err
		}
	}
	if err := b.smbiosTable("3", s.Chassis); err != nil {
		return err
	}
	if len(s.OEMStrings) > 0 {
		table := optionList{"type=11"}
		for _, text := range s.OEMStrings {
			table.add("value", text)
		}
		b.addOption("smbios", table)
	}
	return nil
}

// smbiosFields are the fields that a table of SMBIOS has, by its number.
var smbiosFields = map[string][]string{
	"0": {"vendor", "version", "date", "release"},
	"1": {"manufacturer", "product", "version", "serial", "uuid", "sku", "family"},
	"2": {"manufacturer", "product", "version", "serial", "asset", "location"},
	"3": {"manufacturer", "version", "serial", "asset", "sku"},
}

func (b *builder) smbiosTable(number string, entries []domain.SysInfoEntry) error {
	if len(entries) == 0 {
		return nil
	}
	table := optionList{"type=" + number}
	for _, e := range entries {
		if !slices.Contains(smbiosFields[number], e.Name) {
			return unsupported("sysinfo entry %q is not built", e.Name)
		}
		table.add(e.Name, e.Value)
	}
	b.addOption("smbios", table)
	return nil
}

func (b *builder) timer(name string) domain.Timer {
	i := slices.IndexFunc(b.Definition.Clock.Timers, func(t domain.Timer) bool { return t.Name == name })
	if i < 0 {
		return domain.Timer{}
	}
	return b.Definition.Clock.Timers[i]
}

// clock adds the guest's time and its timer devices.
func (b *builder) clock() error {
	base, err := b.clockBase()
	if err != nil {
		return err
	}
	rtc := optionList{"base=" + base}
	t := b.timer("rtc")
	switch t.Track {
	case "", "boot":
	case "guest":
		rtc.raw("clock=vm")
	case "wall":
		rtc.raw("clock=host")
	case "realtime":
		rtc.raw("clock=rt")
	default:
		return unsupported("timer rtc cannot track %q", t.Track)
	}
	switch t.TickPolicy {
	case "", "delay":
	case "catchup":
		rtc.raw("driftfix=slew")
	default:
		return unsupported("timer rtc cannot have the tick policy %q", t.TickPolicy)
	}
	b.addOption("rtc", rtc)
	return b.timers()
}

// timeLayout is the layout of -rtc's date.
const timeLayout = "2006-01-02T15:04:05"

func (b *builder) clockBase() (string, error) {
	c := b.Definition.Clock
	now := b.Now
	if now.IsZero() {
		now = time.Now()
	}
	switch c.Offset {
	case "", "utc":
		return "utc", nil
	case "localtime":
		return "localtime", nil
	case "timezone":
		b.env = append(b.env, "TZ="+c.Timezone)
		return "localtime", nil
	case "absolute":
		const last = 253402300799 // of the year 9999
		if c.Start > last {
			return "", invalid("the clock cannot start %d seconds after 1970", c.Start)
		}
		return time.Unix(int64(c.Start), 0).UTC().Format(timeLayout), nil
	case "variable":
		at := now.UTC()
		if c.Basis == "localtime" {
			at = now.Local()
		}
		if c.Adjustment != "" && c.Adjustment != "reset" {
			seconds, err := strconv.ParseInt(c.Adjustment, 10, 64)
			if err != nil || seconds > 1<<40 || seconds < -1<<40 {
				return "", invalid("clock adjustment %q is not a number of seconds", c.Adjustment)
			}
			at = at.Add(time.Duration(seconds) * time.Second)
		}
		return at.Format(timeLayout), nil
	}
	return "", unsupported("clock offset %q is not built", c.Offset)
}

func (b *builder) timers() error {
	for _, t := range b.Definition.Clock.Timers {
		if t.CatchUp != nil {
			return unsupported("catchup limits of timer %s are not built", t.Name)
		}
		switch t.Name {
		case "rtc", "hpet", "kvmclock", "hypervclock", "tsc":
		case "pit":
			if err := b.pit(t); err != nil {
				return err
			}
		default:
			return unsupported("this machine has no timer %q", t.Name)
		}
	}
	return nil
}

func (b *builder) pit(t domain.Timer) error {
	switch t.TickPolicy {
	case "", "catchup":
	case "delay", "discard":
		if b.accelerator().Name == "kvm" {
			b.addWords("-global", "kvm-pit.lost_tick_policy="+t.TickPolicy)
		}
	default:
		return unsupported("timer pit cannot have the tick policy %q", t.TickPolicy)
	}
	return nil
}

// powerManagement adds the reactions to sleep, end and crash of the guest.
func (b *builder) powerManagement() error {
	d := b.Definition
	b.addWords("-no-shutdown")
	for what, action := range map[string]string{"on_poweroff": d.OnPoweroff, "on_reboot": d.OnReboot, "on_crash": d.OnCrash} {
		if action == "rename-restart" {
			return unsupported("%s with %s is not built", what, action)
		}
	}
	if d.OnReboot == "destroy" || d.OnReboot == "preserve" {
		b.addWords("-action", "reboot=shutdown")
	}
	// Without ACPI a guest learns of plugged devices through its ports only.
	const byACPI = "acpi-pci-hotplug-with-bridge-support"
	if b.board == q35 && !d.Features.ACPI && b.Capabilities.HasProperty("ICH9-LPC", byACPI) {
		b.addWords("-global", "ICH9-LPC."+byACPI+"=off")
	}
	bridge := "PIIX4_PM"
	if b.board == q35 {
		bridge = "ICH9-LPC"
	}
	for _, state := range []struct {
		name string
		s    device.Switch
	}{{"disable_s3", d.SuspendToMem}, {"disable_s4", d.SuspendToDisk}} {
		if state.s == device.Unset {
			continue
		}
		if b.board == microvm {
			return unsupported("machine type microvm cannot suspend")
		}
		value := "0"
		if state.s == device.Off {
			value = "1"
		}
		b.addWords("-global", fmt.Sprintf("%s.%s=%s", bridge, state.name, value))
	}
	return nil
}

// bootOptions is what the firmware starts, and a kernel that is started without it.
func (b *builder) bootOptions() error {
	o := b.Definition.OS
	if b.board != microvm {
		boot := optionList{}
		boot.onOff("menu", o.BootMenu)
		if o.BootMenuTimeout > 0 {
			boot.add("splash-time", strconv.FormatUint(uint64(o.BootMenuTimeout), 10))
		}
		if o.RebootTimeout != nil {
			boot.add("reboot-timeout", strconv.Itoa(*o.RebootTimeout))
		}
		boot.raw("strict=on")
		b.addOption("boot", boot)
	}
	if strings.Contains(o.Initrd, ",") {
		return invalid("the initrd %s has a comma in its path, by which QEMU takes it for several files where the kernel is one of Multiboot; rename it", o.Initrd)
	}
	for _, file := range [][2]string{{"kernel", o.Kernel}, {"initrd", o.Initrd}, {"append", o.Cmdline}, {"dtb", o.DTB}} {
		if file[1] != "" {
			b.addWords("-"+file[0], file[1])
		}
	}
	if o.BIOSSerial == device.On && !b.hasGraphicsSwitch() {
		return b.addDevice("sga", nil)
	}
	return nil
}

// ranges writes a set of processors as QEMU reads it.
func ranges(name string, set topology.CPUSet) []string {
	var words []string
	for r := range strings.SplitSeq(set.String(), ",") {
		if r != "" {
			words = append(words, name+"="+r)
		}
	}
	return words
}
