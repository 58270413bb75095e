package record

import (
	"fmt"
	"slices"
	"strings"
)

// Reason is why two runs may not be compared.
type Reason struct {
	What string // the scenario, the image ...
	A, B string
	Host bool // only the hosts differ: ratios within each run may still be set side by side
}

func (r Reason) String() string { return fmt.Sprintf("%s: %s against %s", r.What, r.A, r.B) }

// Incomparable lists what makes two runs incomparable; nothing when they may be
// compared. What is compared (the daemon, its version, QEMU's) may differ.
//
// Both must be of one form, or they count otherwise. The scenario's text and profile, the guests' image, the accelerator and what
// a run deviates in must be the same, or other work was measured. The hosts must
// be the same, or other hardware was.
//
// An arm outside of a guest is of no daemon, and stands on no side of a comparison
// of daemons. Of two runs, what was done there tells how the host itself has changed.
func Incomparable(a, b *Header) (reasons []Reason) {
	differ := func(what, x, y string, host bool) {
		if x != y {
			reasons = append(reasons, Reason{what, x, y, host})
		}
	}
	differ("form of the record", a.Schema, b.Schema, false)
	differ("scenario", a.Scenario.Name+" "+short(a.Scenario.SHA256), b.Scenario.Name+" "+short(b.Scenario.SHA256), false)
	differ("profile", a.Scenario.Profile, b.Scenario.Profile, false)
	differ("guests' image", short(a.Image.Digest), short(b.Image.Digest), false)
	differ("accelerator", a.accelerators(), b.accelerators(), false)
	differ("deviations", strings.Join(a.Deviations, "; "), strings.Join(b.Deviations, "; "), false)
	differ("processor", a.Host.Processor, b.Host.Processor, true)
	differ("processors", fmt.Sprint(a.Host.Processors), fmt.Sprint(b.Host.Processors), true)
	differ("memory", memory(a.Host.Memory), memory(b.Host.Memory), true)
	differ("kernel", a.Host.Kernel, b.Host.Kernel, true)
	return reasons
}

// Apart lists what makes the targets of one run incomparable: their guests ran
// otherwise. Daemons and their versions are what is compared.
func Apart(a, b Target) (reasons []string) {
	if a.Accelerator != b.Accelerator {
		reasons = append(reasons, fmt.Sprintf("accelerator: %s against %s", a.Accelerator, b.Accelerator))
	}
	return reasons
}

// memory is told in whole GiB: kernels keep a little more or less of it.
func memory(bytes uint64) string { return fmt.Sprintf("%d GiB", (bytes+1<<29)>>30) }

func (h *Header) accelerators() string {
	var all []string
	for _, t := range h.Targets {
		if !slices.Contains(all, t.Accelerator) {
			all = append(all, t.Accelerator)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func short(sum string) string { return sum[:min(len(sum), 19)] }
