package qemuprobe

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
)

// probeTimeout bounds a whole probe. It takes half a second where all is
// well, and some seconds where an accelerator hangs.
const probeTimeout = time.Minute

// Probe finds the capabilities of a QEMU binary on this host. It runs it a handful of times: once to ask, and for
// each accelerator once or twice for a trial guest and, if that works, once to ask about CPU models. An
// accelerator that does not work is a result with a reason, not an error. The result holds as long as it
// Matches. QEMU runs in a sandbox like a guest's, unless isolation is nil.
func Probe(ctx context.Context, binary string, quarters *sandbox.Isolation) (*qemucaps.Capabilities, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout,
		fault.New(fault.Timeout, fault.Host, "probing %s took more than %s", binary, probeTimeout))
	defer cancel()
	host := qemucaps.ThisHost()
	identity, err := qemucaps.Identify(binary)
	if err != nil {
		return nil, fault.Wrap(err, fault.NotFound, fault.Host, "cannot probe QEMU")
	}
	of := target{binary, quarters}
	said, err := query(ctx, of, "tcg:kvm", Answers.askAll)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot probe %s", binary)
	}
	c, err := said.Capabilities()
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot probe %s", binary)
	}
	c.Binary, c.Host = identity, host
	built, err := said.types(accelTypes)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot probe %s", binary)
	}
	for _, name := range []string{"kvm", "tcg"} {
		acc := qemucaps.Accelerator{Name: name, Present: slices.Contains(built, name+"-accel")}
		if err := checkAccelerator(ctx, of, c, &acc); err != nil {
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot probe %s with -accel %s", binary, name)
		}
		c.Accelerators = append(c.Accelerators, acc)
	}
	return c, nil
}

// query runs QEMU without a machine and asks the questions.
func query(ctx context.Context, of target, accelerator string,
	questions func(Answers, context.Context, *qmp.Session) error,
) (Answers, error) {
	s, err := startQEMU(ctx, of, []string{"-machine", "none,accel=" + accelerator})
	if err != nil {
		return nil, err
	}
	said := make(Answers)
	if err := questions(said, ctx, s.Session); err != nil {
		return nil, s.failed(err)
	}
	s.kill()
	return said, nil
}

// checkAccelerator finds out whether an accelerator works, by running a guest.
func checkAccelerator(ctx context.Context, of target, c *qemucaps.Capabilities, acc *qemucaps.Accelerator) error {
	switch {
	case !acc.Present:
		acc.Reason = "this QEMU is built without it"
		return nil
	case acc.Name == "kvm" && c.Host.KVM.Inode == 0:
		acc.Reason = "this host has no /dev/kvm: its processor or firmware does not virtualize, or the module is not loaded"
		return nil
	case c.Arch != "x86_64" && c.Arch != "i386" || !c.HasDevice("isa-debugcon"):
		// An emulator needs nothing of the host; KVM only counts as usable after a trial.
		acc.Usable = acc.Name == "tcg"
		acc.Reason = fmt.Sprintf("not tried: there is no trial guest for %s", c.Arch)
	default:
		if err := tryAccelerator(ctx, of, c, acc); err != nil {
			return err
		}
	}
	if !acc.Usable {
		return nil
	}
	said, err := query(ctx, of, acc.Name, func(a Answers, ctx context.Context, s *qmp.Session) error {
		return a.askCPUs(ctx, s, acc.Name)
	})
	if err != nil {
		return err
	}
	return said.FillCPUs(acc)
}

// tryAccelerator runs the trial guest on the best processor model. If QEMU cannot start
// with that one, it tries a plain model.
func tryAccelerator(ctx context.Context, of target, c *qemucaps.Capabilities, acc *qemucaps.Accelerator) error {
	best := newTrial(acc.Name, acc.BestModel(), c.Arch == "i386")
	if err := best.run(ctx, of); err != nil {
		return err
	}
	acc.Usable, acc.Reason = best.passed(), best.String()
	if acc.Name == "kvm" {
		acc.HostCPU = best.passed()
		if !acc.HostCPU {
			acc.HostCPUReason = best.String()
		}
	}
	if best.passed() || best.ran() {
		return nil
	}
	plain := newTrial(acc.Name, map[bool]string{false: "qemu64", true: "qemu32"}[c.Arch == "i386"], c.Arch == "i386")
	if err := plain.run(ctx, of); err != nil {
		return err
	}
	acc.Usable, acc.Reason = plain.passed(), plain.String()
	return nil
}
