package libvirt

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// domainVCPUCalls read and change a domain's processors and their pinning.
func domainVCPUCalls(g group) {
	on(g, xdr.ProcDomainGetMaxVCPUs, (*handlers).domainGetMaxVCPUs)
	on(g, xdr.ProcDomainGetVCPUsFlags, (*handlers).domainGetVCPUsFlags)
	on(g, xdr.ProcDomainSetVCPUs, (*handlers).domainSetVCPUs)
	on(g, xdr.ProcDomainSetVCPUsFlags, (*handlers).domainSetVCPUsFlags)
	on(g, xdr.ProcDomainGetVCPUs, (*handlers).domainGetVCPUs)
	on(g, xdr.ProcDomainPinVCPU, (*handlers).domainPinVCPU)
	on(g, xdr.ProcDomainPinVCPUFlags, (*handlers).domainPinVCPUFlags)
	on(g, xdr.ProcDomainGetVCPUPinInfo, (*handlers).domainGetVCPUPinInfo)
	on(g, xdr.ProcDomainPinEmulator, (*handlers).domainPinEmulator)
	on(g, xdr.ProcDomainGetEmulatorPinInfo, (*handlers).domainGetEmulatorPinInfo)
}

// Flags for a number of processors other than the domain's present one: its maximum,
// or the number that the guest itself uses.
const (
	vcpuMaximum = 4
	vcpuGuest   = 8
)

func (h *handlers) domainGetMaxVCPUs(_ context.Context, _ *request, args *xdr.DomainGetMaxVCPUsArgs) (*xdr.DomainGetMaxVCPUsRet, error) {
	v, err := h.view(args.Domain)
	if err != nil {
		return nil, err
	}
	def, err := definition(v, 0)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainGetMaxVCPUsRet{Count: int32(def.VCPUs.Max)}, nil
}

func (h *handlers) domainGetVCPUsFlags(ctx context.Context, s *request, args *xdr.DomainGetVCPUsFlagsArgs) (*xdr.DomainGetVCPUsFlagsRet, error) {
	if err := checkFlags("DOMAIN_GET_VCPUS_FLAGS", args.Flags, affectBoth|vcpuMaximum|vcpuGuest); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	if args.Flags&vcpuGuest != 0 {
		return guestVCPUs(ctx, s.scope, g, args.Flags)
	}
	def, err := definition(g.View(), args.Flags)
	if err != nil {
		return nil, err
	}
	count := def.VCPUs.Current
	if args.Flags&vcpuMaximum != 0 {
		count = def.VCPUs.Max
	}
	return &xdr.DomainGetVCPUsFlagsRet{Count: int32(count)}, nil
}

// guestVCPUs counts the processors that the guest sees, or uses of them.
func guestVCPUs(ctx context.Context, sc scope.Scope, g *guest.Guest, flags uint32) (*xdr.DomainGetVCPUsFlagsRet, error) {
	if flags&affectConfig != 0 {
		return nil, errGuestConfig()
	}
	all, err := guest.AgentVCPUs(ctx, g, sc)
	if err != nil {
		return nil, err
	}
	ret := new(xdr.DomainGetVCPUsFlagsRet)
	for _, c := range all {
		if c.Online || flags&vcpuMaximum != 0 {
			ret.Count++
		}
	}
	return ret, nil
}

func errGuestConfig() error {
	return fault.New(fault.Invalid, fault.Call, "the processors that a guest uses are of the running guest, and not of its config")
}

func (h *handlers) domainSetVCPUs(ctx context.Context, s *request, args *xdr.DomainSetVCPUsArgs) (*void, error) {
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.SetVCPUs(ctx, g, s.scope, uint(args.NVCPUs), hotplug.VCPUOptions{Affect: machine.Affect{Live: true}})
}

func (h *handlers) domainSetVCPUsFlags(ctx context.Context, s *request, args *xdr.DomainSetVCPUsFlagsArgs) (*void, error) {
	if err := checkFlags("DOMAIN_SET_VCPUS_FLAGS", args.Flags, affectBoth|vcpuMaximum|vcpuGuest); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	if args.Flags&vcpuGuest != 0 {
		if args.Flags&(affectConfig|vcpuMaximum) != 0 {
			return nil, errGuestConfig()
		}
		return nil, guest.SetAgentVCPUs(ctx, g, s.scope, uint(args.NVCPUs))
	}
	return nil, hotplug.SetVCPUs(ctx, g, s.scope, uint(args.NVCPUs), hotplug.VCPUOptions{Affect: affect(args.Flags), Maximum: args.Flags&vcpuMaximum != 0})
}

// checkMaps bounds the maps of processors that a client asks for, before any is made.
func checkMaps(count, length int32) error {
	if count < 0 || length < 0 || count > xdr.MaxVCPUInfo || int64(count)*int64(length) > xdr.MaxCPUMaps {
		return fault.New(fault.Invalid, fault.Call, "%d maps of %d bytes are more than can be sent", count, length)
	}
	return nil
}

// States of a virtual processor.
const (
	vcpuOffline = 0
	vcpuRunning = 1
)

func (h *handlers) domainGetVCPUs(ctx context.Context, _ *request, args *xdr.DomainGetVCPUsArgs) (*xdr.DomainGetVCPUsRet, error) {
	if err := checkMaps(args.MaxInfo, args.MapLen); err != nil {
		return nil, err
	}
	g, _, err := h.active(args.Domain)
	if err != nil {
		return nil, err
	}
	vcpus, err := hotplug.VCPUs(ctx, g)
	if err != nil {
		return nil, err
	}
	ret := new(xdr.DomainGetVCPUsRet)
	for _, c := range vcpus[:min(len(vcpus), int(args.MaxInfo))] {
		state := int32(vcpuOffline)
		if c.Running {
			state = vcpuRunning
		}
		ret.Info = append(ret.Info, xdr.VCPUInfo{Number: uint32(c.Index), State: state, CPUTime: c.CPUTime, CPU: int32(c.Host)})
		ret.CPUMaps = append(ret.CPUMaps, c.Affinity.Map(8*int(args.MapLen))...)
	}
	return ret, nil
}

func (h *handlers) pinVCPU(ctx context.Context, sc scope.Scope, d xdr.Domain, index uint32, cpumap []byte, a machine.Affect) (*void, error) {
	to, err := h.pinTarget(cpumap)
	if err != nil {
		return nil, err
	}
	g, err := h.guest(d)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.PinVCPU(ctx, g, sc, uint(index), to, a)
}

func (h *handlers) domainPinVCPU(ctx context.Context, s *request, args *xdr.DomainPinVCPUArgs) (*void, error) {
	return h.pinVCPU(ctx, s.scope, args.Domain, args.VCPU, args.CPUMap, machine.Affect{Live: true})
}

func (h *handlers) domainPinVCPUFlags(ctx context.Context, s *request, args *xdr.DomainPinVCPUFlagsArgs) (*void, error) {
	if err := checkFlags("DOMAIN_PIN_VCPU_FLAGS", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	return h.pinVCPU(ctx, s.scope, args.Domain, args.VCPU, args.CPUMap, affect(args.Flags))
}

func (h *handlers) domainPinEmulator(ctx context.Context, s *request, args *xdr.DomainPinEmulatorArgs) (*void, error) {
	if err := checkFlags("DOMAIN_PIN_EMULATOR", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	to, err := h.pinTarget(args.CPUMap)
	if err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.PinEmulator(ctx, g, s.scope, to, affect(args.Flags))
}

// pinTarget reads where to pin. The map of all the host's processors takes a
// binding away.
func (h *handlers) pinTarget(cpumap []byte) (topology.CPUSet, error) {
	to, err := topology.FromMap(cpumap)
	if err != nil {
		return to, err
	}
	host := h.Host.Facts().Topology.Present
	to = to.Intersect(host)
	switch {
	case to.IsEmpty():
		return to, fault.New(fault.Invalid, fault.Call, "the map of processors names none of this host's, which are %s", host)
	case to.Equal(host):
		return topology.CPUSet{}, nil
	}
	return to, nil
}

// bound gives the processors where a thread may run: its own pinning, else the
// definition's processors, else all present processors of the host.
func (h *handlers) bound(def *domain.Definition, pin topology.CPUSet) topology.CPUSet {
	switch {
	case !pin.IsEmpty():
		return pin
	case !def.VCPUs.CPUs.IsEmpty():
		return def.VCPUs.CPUs
	}
	return h.Host.Facts().Topology.Present
}

func (h *handlers) domainGetVCPUPinInfo(_ context.Context, _ *request, args *xdr.DomainGetVCPUPinInfoArgs) (*xdr.DomainGetVCPUPinInfoRet, error) {
	if err := checkFlags("DOMAIN_GET_VCPU_PIN_INFO", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	if err := checkMaps(args.NCPUMaps, args.MapLen); err != nil {
		return nil, err
	}
	v, err := h.view(args.Domain)
	if err != nil {
		return nil, err
	}
	def, err := definition(v, args.Flags)
	if err != nil {
		return nil, err
	}
	ret := new(xdr.DomainGetVCPUPinInfoRet)
	for i := range min(def.VCPUs.Max, uint(args.NCPUMaps)) {
		ret.CPUMaps = append(ret.CPUMaps, h.bound(def, def.Tune.VCPUPins[i]).Map(8*int(args.MapLen))...)
		ret.Count++
	}
	return ret, nil
}

func (h *handlers) domainGetEmulatorPinInfo(_ context.Context, _ *request, args *xdr.DomainGetEmulatorPinInfoArgs) (*xdr.DomainGetEmulatorPinInfoRet, error) {
	if err := checkFlags("DOMAIN_GET_EMULATOR_PIN_INFO", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	if err := checkMaps(1, args.MapLen); err != nil {
		return nil, err
	}
	v, err := h.view(args.Domain)
	if err != nil {
		return nil, err
	}
	def, err := definition(v, args.Flags)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainGetEmulatorPinInfoRet{CPUMaps: h.bound(def, def.Tune.EmulatorPin).Map(8 * int(args.MapLen)), Count: 1}, nil
}
