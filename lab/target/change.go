package target

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/lab/scenario"
)

// live is the flag that a change is of the running guest.
const live = 1

// SetVCPUs adds processors, or takes some.
func (g *Guest) SetVCPUs(ctx context.Context, count int) error {
	return skip(g.at.call(ctx, xdr.ProcDomainSetVCPUsFlags, &xdr.DomainSetVCPUsFlagsArgs{Domain: g.domain, NVCPUs: uint32(count), Flags: live}, nil))
}

// Balloon has the guest give back memory down to a size, or take it again.
func (g *Guest) Balloon(ctx context.Context, size scenario.Size) error {
	return skip(g.at.call(ctx, xdr.ProcDomainSetMemoryFlags, &xdr.DomainSetMemoryFlagsArgs{Domain: g.domain, Memory: uint64(size / scenario.KiB), Flags: live}, nil))
}

// Grow plugs in as much memory, as one DIMM, as is missing to a size.
func (g *Guest) Grow(ctx context.Context, size scenario.Size) error {
	var has xdr.DomainGetInfoRet
	if err := g.at.call(ctx, xdr.ProcDomainGetInfo, &xdr.DomainGetInfoArgs{Domain: g.domain}, &has); err != nil {
		return err
	}
	want := uint64(size / scenario.KiB)
	if want <= has.MaxMemory {
		return fault.New(fault.Invalid, fault.Config, "the guest has %d KiB of memory, and cannot grow to %s", has.MaxMemory, size)
	}
	document := fmt.Sprintf("<memory model='dimm'><target><size unit='KiB'>%d</size><node>0</node></target></memory>", want-has.MaxMemory)
	return skip(g.at.call(ctx, xdr.ProcDomainAttachDeviceFlags, &xdr.DomainAttachDeviceFlagsArgs{Domain: g.domain, XML: document, Flags: live}, nil))
}

// Change does what an event says.
func (g *Guest) Change(ctx context.Context, e scenario.Event) error {
	switch e.Do {
	case scenario.DoVCPUs:
		count, err := strconv.Atoi(strings.TrimSpace(e.To))
		if err != nil {
			return fault.New(fault.Invalid, fault.Config, "%q is no number of processors", e.To)
		}
		return g.SetVCPUs(ctx, count)
	case scenario.DoBalloon, scenario.DoMemory:
		size, err := scenario.ParseSize(e.To)
		if err != nil {
			return fault.Wrap(err, fault.Invalid, fault.Config, "cannot %s", e.Do)
		}
		if e.Do == scenario.DoBalloon {
			return g.Balloon(ctx, size)
		}
		return g.Grow(ctx, size)
	}
	return fault.New(fault.Invalid, fault.Config, "there is no change %q", e.Do)
}
