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

// probePatience bounds a whole probe. It takes half a second where all is
// well, and some seconds where an accelerator hangs.
const probePatience = time.Minute

// Probe finds out what a QEMU binary can do on this host. It runs it a handful
// of times: once to ask, and for each accelerator once or twice to run a trial
// guest and, where that works, once to ask about CPU models. That an
// accelerator does not work is an answer, with its reason, and no error. Keep
// the answer for as long as it Matches. It runs in the quarters, in a chamber like
// a guest's.
func Probe(ctx context.Context, binary string, quarters *sandbox.Isolation) (*qemucaps.Capabilities, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, probePatience,
		fault.New(fault.Timeout, fault.Host, "probing %s took more than %s", binary, probePatience))
	defer cancel()
	host := qemucaps.ThisHost()
	identity, err := qemucaps.Identify(binary)
	if err != nil {
		return nil, fault.Wrap(err, fault.NotFound, fault.Host, "cannot probe QEMU")
	}
	of := subject{binary, quarters}
	said, err := interview(ctx, of, "tcg:kvm", Answers.interrogate)
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
		if err := examine(ctx, of, c, &acc); err != nil {
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot probe %s with -accel %s", binary, name)
		}
		c.Accelerators = append(c.Accelerators, acc)
	}
	return c, nil
}

// interview runs QEMU without a machine and puts questions to it.
func interview(ctx context.Context, of subject, accelerator string,
	questions func(Answers, context.Context, *qmp.Session) error,
) (Answers, error) {
	s, err := startSpecimen(ctx, of, []string{"-machine", "none,accel=" + accelerator})
	if err != nil {
		return nil, err
	}
	said := make(Answers)
	if err := questions(said, ctx, s.Session); err != nil {
		return nil, s.died(err)
	}
	s.end()
	return said, nil
}

// examine finds out whether an accelerator works, by running a guest.
func examine(ctx context.Context, of subject, c *qemucaps.Capabilities, acc *qemucaps.Accelerator) error {
	switch {
	case !acc.Present:
		acc.Reason = "this QEMU is built without it"
		return nil
	case acc.Name == "kvm" && c.Host.KVM.Inode == 0:
		acc.Reason = "this host has no /dev/kvm: its processor or firmware does not virtualize, or the module is not loaded"
		return nil
	case c.Arch != "x86_64" && c.Arch != "i386" || !c.HasDevice("isa-debugcon"):
		// An emulator needs nothing of the host; KVM is not believed untried.
		acc.Usable = acc.Name == "tcg"
		acc.Reason = fmt.Sprintf("not tried: there is no trial guest for %s", c.Arch)
	default:
		if err := try(ctx, of, c, acc); err != nil {
			return err
		}
	}
	if !acc.Usable {
		return nil
	}
	said, err := interview(ctx, of, acc.Name, func(a Answers, ctx context.Context, s *qmp.Session) error {
		return a.interrogateCPUs(ctx, s, acc.Name)
	})
	if err != nil {
		return err
	}
	return said.FillCPUs(acc)
}

// try runs the trial guest on the best processor there is, and on a plain one
// when QEMU does not get that one started.
func try(ctx context.Context, of subject, c *qemucaps.Capabilities, acc *qemucaps.Accelerator) error {
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
