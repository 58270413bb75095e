package guest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// QEMU says in its own words why it ends, and what it repeats of its command line names objects that
// no definition has. A user is told which device that is about, and what to do where that is known.

// explain says why a QEMU has ended amid a start.
func (l *launching) explain(words string) error {
	def := l.run.def
	switch {
	case strings.Contains(words, "mlockall") || strings.Contains(words, "locking memory failed"):
		return l.tooLittleLocked()
	case strings.Contains(words, "CMD_INIT"):
		return fault.New(fault.Failed, fault.Host,
			"the TPM's state in %s cannot be read (%s): put a copy of it back, or begin with a new TPM: undefine the domain with --tpm and define it again",
			l.g.reg.tpmState(l.run.UUID), plainWords(def, words))
	}
	if m := absentFeature.FindStringSubmatch(words); m != nil {
		return fault.New(fault.Unsupported, fault.Config, "this QEMU has no CPU feature %q; leave <feature name='%s'/> out", m[1], m[1])
	}
	return fault.New(fault.Failed, fault.Monitor, "QEMU ended while it was starting: %s", plainWords(def, words))
}

var (
	// absentFeature is how QEMU calls a processor's feature that it does not know.
	absentFeature = regexp.MustCompile(`Property '[^']+-cpu\.([^']+)' not found`)
	// speaker is what comes before the words of each line.
	speaker = regexp.MustCompile(`^(\d{4}-\d\d-\d\dT\S+Z )?\S*qemu[^ :]*: `)
	// argument is an option of the command line that QEMU repeats, and what it says of that.
	argument = regexp.MustCompile(`^-(device|chardev|netdev|object|blockdev|tpmdev) (\{.*\}|[^{]\S*?): (.*)$`)
	// name is that of an object, in either style of options.
	name = regexp.MustCompile(`(?:"id":"|"node-name":"|\bid=)([^",]+)`)
)

// plainWords leaves of QEMU's words what tells something, and names devices as a definition does.
func plainWords(def *domain.Definition, words string) string {
	var lines []string
	for line := range strings.Lines(words) {
		line = speaker.ReplaceAllString(strings.TrimSpace(line), "")
		if m := argument.FindStringSubmatch(line); m != nil {
			if id := name.FindStringSubmatch(m[2]); id != nil {
				line = called(def, id[1]) + ": " + m[3]
			}
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

// prefixes are what the names of a device's other objects have before its alias.
var prefixes = []string{"", "char", "host", "obj", "mem", "tpm-", "chr"}

// called is what a user knows an object of QEMU's by.
func called(def *domain.Definition, id string) string {
	for _, prefix := range prefixes {
		if alias, is := strings.CutPrefix(id, prefix); is {
			if dev := def.Devices.ByAlias(alias); dev != nil {
				return deviceName(dev)
			}
		}
	}
	for _, d := range def.Devices.Disks {
		if slices.ContainsFunc(d.Nodes(), func(number uint) bool { return strings.HasPrefix(id, fmt.Sprintf("libvirt-%d-", number)) }) {
			return deviceName(d)
		}
	}
	return id
}

// deviceName is what messages call a device.
func deviceName(dev device.Device) string {
	switch d := dev.(type) {
	case *device.Disk:
		return "disk " + d.Target
	case *device.NIC:
		return "interface " + d.MAC
	}
	return fmt.Sprintf("%s %s", dev.Kind(), dev.Common().Alias)
}
