package domain

import (
	"cmp"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// maxBootWait bounds the waiting times of the firmware, in milliseconds.
const maxBootWait = 65535

func checkOS(d *Definition) error {
	o := &d.OS
	switch {
	case o.BootMenuTimeout > maxBootWait:
		return unsupported("os/bootmenu/@timeout is at most %d milliseconds, not %d", maxBootWait, o.BootMenuTimeout)
	case o.RebootTimeout != nil && (*o.RebootTimeout < -1 || *o.RebootTimeout > maxBootWait):
		return unsupported("os/bios/@rebootTimeout is from -1 to %d milliseconds, not %d", maxBootWait, *o.RebootTimeout)
	case o.BIOSSerial == device.On && len(d.Devices.Serials) == 0:
		return invalid("os/bios/@useserial needs a serial port: add <serial type='pty'/>")
	}
	if err := checkVariablePaths(o); err != nil {
		return err
	}
	if o.Firmware != "" {
		return checkAutoFirmware(d)
	}
	return checkLoader(d)
}

// checkVariablePaths refuses relative paths of UEFI variables, because access to a file is decided by its
// absolute path.
func checkVariablePaths(o *OS) error {
	return cmp.Or(checkAbsolute("os/nvram", o.NVRAM.Path), checkAbsolute("os/nvram/@template", o.NVRAM.Template))
}

func checkAbsolute(name, path string) error {
	if path == "" || strings.HasPrefix(path, "/") {
		return nil
	}
	return unsupported("%s needs an absolute path, and %q is relative; begin it with /", name, path)
}

// checkAutoFirmware checks a request for a firmware that Lodge chooses.
func checkAutoFirmware(d *Definition) error {
	o := &d.OS
	name := ""
	switch {
	case o.Loader.ReadOnly != device.Unset:
		name = "os/loader/@readonly"
	case o.Loader.Type != "":
		name = "os/loader/@type"
	case o.Loader.Path != "":
		name = "os/loader"
	case o.NVRAM.Template != "":
		name = "os/nvram/@template"
	case o.Loader.Secure == device.Off:
		name = "os/loader/@secure"
	}
	// The definition has the firmware that was chosen earlier; it stays.
	if picked := o.Loader.Path != "" && o.Loader.Type != "" && (o.NVRAM.Template != "" || o.Loader.Stateless == device.On || o.Firmware != "efi"); name != "" && !picked {
		return contradiction("%s cannot be said beside os/@firmware, by which the firmware is picked; leave one of them out", name)
	}
	switch {
	case asks(o, "enrolled-keys", device.On) && asks(o, "secure-boot", device.Off):
		return contradiction("os/firmware asks for enrolled-keys without secure-boot; leave one of them out")
	case o.Firmware == "efi" && !d.Features.ACPI:
		return unsupported("UEFI needs ACPI: add <features><acpi/></features>")
	case o.NVRAM.Path != "" && o.Firmware != "efi":
		return contradiction("a firmware of kind %s keeps no variables; leave <nvram> out", o.Firmware)
	case o.Loader.Stateless == device.Off && o.Firmware != "efi":
		return contradiction("a firmware of kind %s keeps no variables; leave stateless out", o.Firmware)
	}
	return checkStateless(o)
}

// asks says whether the definition requests or forbids a feature of the firmware.
func asks(o *OS, name string, enabled device.Switch) bool {
	return slices.Contains(o.FirmwareFeatures, FirmwareFeature{name, enabled})
}

// checkLoader checks a firmware that is given by its path.
func checkLoader(d *Definition) error {
	o := &d.OS
	l := &o.Loader
	switch {
	case len(o.FirmwareFeatures) > 0:
		return contradiction("os/firmware asks for features of a firmware that is picked: say <os firmware='efi'>, or leave it out")
	case *l == (Loader{}) && o.NVRAM.Path == "" && o.NVRAM.Template == "":
		return nil
	case l.Path == "":
		return contradiction("os/loader needs the path of a firmware; or say <os firmware='efi'>, which picks one")
	case l.Type == "pflash" && l.ReadOnly == device.On && !d.Features.ACPI:
		return unsupported("UEFI needs ACPI: add <features><acpi/></features>")
	case l.Stateless == device.Off && l.Type != "pflash":
		return contradiction("only a loader of type pflash keeps variables; leave stateless out")
	case l.Secure == device.On && !o.hasPCIe():
		return unsupported("os/loader/@secure needs machine q35, not %s", o.Machine)
	case l.Secure == device.On && d.Features.SMM != device.On:
		return unsupported("os/loader/@secure needs SMM: add <features><smm state='on'/></features>")
	}
	return checkStateless(o)
}

func checkStateless(o *OS) error {
	switch {
	case o.Loader.Stateless != device.On:
		return nil
	case o.NVRAM.Template != "":
		return contradiction("a stateless loader has no variables; leave os/nvram/@template out")
	case o.NVRAM.Path != "":
		return contradiction("a stateless loader has no variables; leave <nvram> out")
	}
	return nil
}

// checkLifecycle refuses unsupported actions for the end of a guest.
func checkLifecycle(d *Definition) error {
	for _, e := range []struct{ name, action string }{{"on_poweroff", d.OnPoweroff}, {"on_reboot", d.OnReboot}} {
		if e.action == "preserve" {
			return unsupported("%s preserve is not built: a guest that is off keeps nothing; use destroy or restart", e.name)
		}
	}
	for _, e := range []struct{ name, action string }{{"on_poweroff", d.OnPoweroff}, {"on_reboot", d.OnReboot}, {"on_crash", d.OnCrash}} {
		if e.action == "rename-restart" {
			return unsupported("%s rename-restart is not built; use restart", e.name)
		}
	}
	if d.OnPoweroff == "restart" && d.OnReboot == "destroy" {
		return unsupported("on_poweroff restart beside on_reboot destroy is not built; make them equal")
	}
	return nil
}

// reserved are the prefixes of fw_cfg names that users may not set.
var reserved = []string{"opt/ovmf/", "opt/org.qemu/"}

// checkSystem checks the options of the whole machine.
func checkSystem(d *Definition) error {
	if err := checkLifecycle(d); err != nil {
		return err
	}
	f := &d.Features
	switch {
	case d.MemTune.MinGuarantee != 0:
		return unsupported("memtune/min_guarantee is not built: QEMU guarantees no memory; leave it out, or use <memoryBacking><locked/>")
	case f.TCGTBCache != 0 && d.Virt != "qemu":
		return unsupported("features/tcg is for domain type qemu, not %s; leave it out", d.Virt)
	case f.TCGTBCache%(1<<20) != 0:
		return unsupported("features/tcg/tb-cache is in whole MiB")
	}
	if err := checkHyperV(f.HyperV); err != nil {
		return err
	}
	return checkSysInfo(d)
}

// Bounds of Hyper-V's enlightenments.
const (
	leastRetries = 4095
	maxVendorID  = 12
)

func checkHyperV(h *HyperV) error {
	if h == nil {
		return nil
	}
	switch {
	case h.Spinlocks == device.On && h.SpinlockRetries < leastRetries:
		return invalid("features/hyperv/spinlocks needs retries of at least %d, not %d", leastRetries, h.SpinlockRetries)
	case h.VendorID == device.On && h.VendorIDValue == "":
		return invalid("features/hyperv/vendor_id needs a value")
	case len(h.VendorIDValue) > maxVendorID:
		return invalid("features/hyperv/vendor_id %q is longer than %d characters", h.VendorIDValue, maxVendorID)
	case strings.Contains(h.VendorIDValue, ","):
		return invalid("features/hyperv/vendor_id %q has a comma", h.VendorIDValue)
	}
	return nil
}

func checkSysInfo(d *Definition) error {
	s := d.SysInfo
	if s == nil {
		return nil
	}
	for _, e := range s.FWCfg {
		for _, prefix := range reserved {
			if strings.HasPrefix(e.Name, prefix) {
				return unsupported("sysinfo/entry %q: names that begin with %s are reserved; use opt/ and a domain of your own", e.Name, prefix)
			}
		}
		if (e.Value == "") == (e.File == "") {
			return invalid("sysinfo/entry %q has either a value or a file", e.Name)
		}
	}
	for _, e := range s.System {
		if e.Name == "uuid" && !strings.EqualFold(strings.ReplaceAll(e.Value, "-", ""), strings.ReplaceAll(d.UUID, "-", "")) {
			return contradiction("sysinfo/system/entry uuid %s is not the domain's UUID %s; leave one of them out", e.Value, d.UUID)
		}
	}
	for _, e := range s.BIOS {
		if e.Name == "date" && !isBIOSDate(e.Value) {
			return contradiction("sysinfo/bios/entry date %q is not of the form mm/dd/yyyy", e.Value)
		}
	}
	return nil
}

// isBIOSDate takes mm/dd/yy and mm/dd/yyyy.
func isBIOSDate(text string) bool {
	part := strings.Split(text, "/")
	if len(part) != 3 || len(part[2]) != 2 && len(part[2]) != 4 {
		return false
	}
	for i, most := range []int{12, 31, 9999} {
		n := 0
		for _, r := range part[i] {
			if r < '0' || r > '9' || len(part[i]) > 4 {
				return false
			}
			n = n*10 + int(r-'0')
		}
		if n > most || i < 2 && n < 1 {
			return false
		}
	}
	return true
}

// timerOptions are the clocks that can have each option.
var timerOptions = map[string]string{
	"tickpolicy": "pit rtc tsc hpet platform",
	"track":      "rtc platform",
	"frequency":  "tsc",
	"mode":       "tsc",
}

func checkClock(d *Definition) error {
	c := &d.Clock
	switch {
	case c.Offset == "absolute" && c.Start == 0:
		return invalid("clock: offset absolute needs a start")
	case c.Offset == "timezone" && c.Timezone == "":
		return invalid("clock: offset timezone needs a timezone, as Europe/Berlin")
	}
	for _, t := range c.Timers {
		if err := checkTimer(t); err != nil {
			return err
		}
	}
	return nil
}

func checkTimer(t Timer) error {
	for _, o := range []struct {
		name string
		said bool
	}{{"tickpolicy", t.TickPolicy != ""}, {"track", t.Track != ""}, {"frequency", t.Frequency != 0}, {"mode", t.Mode != ""}} {
		if o.said && !strings.Contains(" "+timerOptions[o.name]+" ", " "+t.Name+" ") {
			return unsupported("clock/timer %s has no %s; leave it out", t.Name, o.name)
		}
	}
	switch {
	case t.CatchUp != nil && t.TickPolicy != "catchup":
		return invalid("clock/timer %s: catchup is for tickpolicy catchup; leave it out", t.Name)
	case t.Name == "rtc" && t.Track == "boot":
		return unsupported("clock/timer rtc cannot track boot; use guest or wall")
	}
	return nil
}

func checkLabels(d *Definition) error {
	seen := map[string]bool{}
	for _, l := range d.SecLabels {
		switch {
		case l.Model == "" && len(d.SecLabels) > 1:
			return invalid("seclabel: of several, each names its model")
		case seen[l.Model]:
			return contradiction("seclabel: there are two of model %s; leave one out", l.Model)
		case l.Type == "dynamic" && l.Relabel == device.Off:
			return unsupported("seclabel: type dynamic relabels; leave relabel out, or use type static or none")
		case l.Type == "none" && l.Relabel == device.On:
			return unsupported("seclabel: type none relabels nothing; leave relabel out")
		case l.Type == "static" && l.Label == "":
			return invalid("seclabel: type static needs a <label>")
		}
		seen[l.Model] = true
	}
	return nil
}
