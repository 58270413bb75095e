package campaign

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/target"
)

// together refuses daemons that are not on one host: values of hosts that differ are
// not set beside each other in one run, and a run has the facts of one host.
func together(targets []*target.Target) error {
	for _, t := range targets {
		first := targets[0]
		switch {
		case t.Away() != first.Away():
			return fault.New(fault.Invalid, fault.Host, "%s is reached by a socket of this host and %s is not: make two runs, or reach both in the same way", local(first, t), away(first, t))
		case t.Away() && (t.Host != first.Host || t.Machine() != first.Machine()):
			return fault.New(fault.Invalid, fault.Host, "%s is on host %s and %s on %s: make two runs, and set them side by side with lodge lab compare --across-hosts", first.Name, first.Host, t.Name, t.Host)
		}
	}
	return nil
}

func local(a, b *target.Target) string {
	if a.Away() {
		return b.Name
	}
	return a.Name
}

func away(a, b *target.Target) string {
	if a.Away() {
		return a.Name
	}
	return b.Name
}

// CleanImages takes away the guest images that runs keep at a daemon of another host.
func CleanImages(ctx context.Context, address, files string) error {
	t, err := target.Connect(ctx, "it", address)
	if err != nil {
		return err
	}
	defer t.Close()
	if !t.Away() {
		return fault.New(fault.Invalid, fault.Host, "%s is a daemon of this host, which uses the images of --images: there are no others", address)
	}
	return t.DropImages(ctx, files)
}
