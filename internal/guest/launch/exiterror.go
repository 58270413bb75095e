package launch

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// QEMU's errors at its start repeat parts of its command line, with object names that no definition has.
// These functions replace them by the device that the user knows, and by a remedy where one is known.

// explainExit returns the error for a QEMU that ended during a start. words is the end of its output.
func (l *Launch) explainExit(words string) error {
	def := l.Instance.Definition
	switch {
	case strings.Contains(words, "mlockall") || strings.Contains(words, "locking memory failed"):
		return l.memlockError()
	case strings.Contains(words, "CMD_INIT"):
		return fault.New(fault.Failed, fault.Host,
			"the TPM's state in %s cannot be read (%s): restore a copy of it, or begin with a new TPM: undefine the domain with --tpm and define it again",
			provision.TPMState(l.Guest.Reg, l.Instance.UUID), plainMessage(def, words))
	}
	if m := absentFeature.FindStringSubmatch(words); m != nil {
		return fault.New(fault.Unsupported, fault.Config, "this QEMU has no CPU feature %q; leave <feature name='%s'/> out", m[1], m[1])
	}
	return fault.New(fault.Failed, fault.Monitor, "QEMU ended while it was starting: %s", plainMessage(def, words))
}

var (
	// absentFeature matches QEMU's error for an unknown CPU feature.
	absentFeature = regexp.MustCompile(`Property '[^']+-cpu\.([^']+)' not found`)
	// linePrefix matches the prefix of each line.
	linePrefix = regexp.MustCompile(`^(\d{4}-\d\d-\d\dT\S+Z )?\S*qemu[^ :]*: `)
	// repeatedOption matches a repeated command line option and the error that follows it.
	repeatedOption = regexp.MustCompile(`^-(device|chardev|netdev|object|blockdev|tpmdev) (\{.*\}|[^{]\S*?): (.*)$`)
	// objectName matches the name of an object, in either style of options.
	objectName = regexp.MustCompile(`(?:"id":"|"node-name":"|\bid=)([^",]+)`)
)

// plainMessage removes the prefixes from QEMU's output, and names devices as the definition does.
func plainMessage(def *domain.Definition, words string) string {
	var lines []string
	for line := range strings.Lines(words) {
		line = linePrefix.ReplaceAllString(strings.TrimSpace(line), "")
		if m := repeatedOption.FindStringSubmatch(line); m != nil {
			if id := objectName.FindStringSubmatch(m[2]); id != nil {
				line = deviceNameOf(def, id[1]) + ": " + m[3]
			}
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

// aliasPrefixes are the prefixes of a device's alias in the names of QEMU's other objects for it.
var aliasPrefixes = []string{"", "char", "host", "obj", "mem", "tpm-", "chr"}

// deviceNameOf returns the user's name for an object of QEMU.
func deviceNameOf(def *domain.Definition, id string) string {
	for _, prefix := range aliasPrefixes {
		if alias, is := strings.CutPrefix(id, prefix); is {
			if dev := def.Devices.ByAlias(alias); dev != nil {
				return machine.DeviceName(dev)
			}
		}
	}
	for _, d := range def.Devices.Disks {
		if slices.ContainsFunc(d.Nodes(), func(number uint) bool { return strings.HasPrefix(id, fmt.Sprintf("libvirt-%d-", number)) }) {
			return machine.DeviceName(d)
		}
	}
	return id
}
