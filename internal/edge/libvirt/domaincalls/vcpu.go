package domaincalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// DomainVCPUCalls read and change a domain's vCPUs and their pinning.
func DomainVCPUCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainGetMaxVCPUs, domainGetMaxVCPUs)
	rpc.On(g, xdr.ProcDomainGetVCPUsFlags, domainGetVCPUsFlags)
	rpc.On(g, xdr.ProcDomainSetVCPUs, domainSetVCPUs)
	rpc.On(g, xdr.ProcDomainSetVCPUsFlags, domainSetVCPUsFlags)
	rpc.On(g, xdr.ProcDomainGetVCPUs, domainGetVCPUs)
	rpc.On(g, xdr.ProcDomainPinVCPU, domainPinVCPU)
	rpc.On(g, xdr.ProcDomainPinVCPUFlags, domainPinVCPUFlags)
	rpc.On(g, xdr.ProcDomainGetVCPUPinInfo, domainGetVCPUPinInfo)
	rpc.On(g, xdr.ProcDomainPinEmulator, domainPinEmulator)
	rpc.On(g, xdr.ProcDomainGetEmulatorPinInfo, domainGetEmulatorPinInfo)
}

func domainGetMaxVCPUs(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetMaxVCPUsArgs) (*xdr.DomainGetMaxVCPUsRet, error) {
	v, err := ViewOf(h, args.Domain)
	if err != nil {
		return nil, err
	}
	def, err := definitionByFlags(v, 0)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainGetMaxVCPUsRet{Count: int32(def.VCPUs.Max)}, nil
}

func domainGetVCPUsFlags(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainGetVCPUsFlagsArgs) (*xdr.DomainGetVCPUsFlagsRet, error) {
	if err := rpc.CheckFlags("DOMAIN_GET_VCPUS_FLAGS", args.Flags, affectBoth|rpc.VCPUMaximum|rpc.VCPUGuest); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	if args.Flags&rpc.VCPUGuest != 0 {
		return guestVCPUs(ctx, s.Scope, g, args.Flags)
	}
	def, err := definitionByFlags(g.View(), args.Flags)
	if err != nil {
		return nil, err
	}
	count := def.VCPUs.Current
	if args.Flags&rpc.VCPUMaximum != 0 {
		count = def.VCPUs.Max
	}
	return &xdr.DomainGetVCPUsFlagsRet{Count: int32(count)}, nil
}

// guestVCPUs returns the number of vCPUs that the guest has online, or with VCPUMaximum of all that it sees.
func guestVCPUs(ctx context.Context, sc scope.Scope, g *guest.Guest, flags uint32) (*xdr.DomainGetVCPUsFlagsRet, error) {
	if flags&AffectConfig != 0 {
		return nil, errGuestConfig()
	}
	all, err := guest.AgentVCPUs(ctx, g, sc)
	if err != nil {
		return nil, err
	}
	ret := new(xdr.DomainGetVCPUsFlagsRet)
	for _, c := range all {
		if c.Online || flags&rpc.VCPUMaximum != 0 {
			ret.Count++
		}
	}
	return ret, nil
}

func errGuestConfig() error {
	return fault.New(fault.Invalid, fault.Call, "the flag guest is about the running guest; leave out config and maximum")
}

func domainSetVCPUs(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetVCPUsArgs) (*rpc.Void, error) {
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.SetVCPUs(ctx, g, s.Scope, uint(args.NVCPUs), hotplug.VCPUOptions{Affect: machine.Affect{Live: true}})
}

func domainSetVCPUsFlags(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetVCPUsFlagsArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_SET_VCPUS_FLAGS", args.Flags, affectBoth|rpc.VCPUMaximum|rpc.VCPUGuest); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	if args.Flags&rpc.VCPUGuest != 0 {
		if args.Flags&(AffectConfig|rpc.VCPUMaximum) != 0 {
			return nil, errGuestConfig()
		}
		return nil, guest.SetAgentVCPUs(ctx, g, s.Scope, uint(args.NVCPUs))
	}
	return nil, hotplug.SetVCPUs(ctx, g, s.Scope, uint(args.NVCPUs), hotplug.VCPUOptions{Affect: affect(args.Flags), Maximum: args.Flags&rpc.VCPUMaximum != 0})
}

// checkCPUMapSize bounds the CPU maps that a client asks for, before any is allocated.
func checkCPUMapSize(count, length int32) error {
	if count < 0 || length < 0 || count > xdr.MaxVCPUInfo || int64(count)*int64(length) > xdr.MaxCPUMaps {
		return fault.New(fault.Invalid, fault.Call, "%d maps of %d bytes are more than can be sent", count, length)
	}
	return nil
}

// States of a vCPU (virVcpuState).
const (
	vcpuOffline = 0
	vcpuRunning = 1
)

func domainGetVCPUs(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetVCPUsArgs) (*xdr.DomainGetVCPUsRet, error) {
	if err := checkCPUMapSize(args.MaxInfo, args.MapLen); err != nil {
		return nil, err
	}
	g, _, err := activeGuest(h, args.Domain)
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

func pinVCPU(ctx context.Context, h *rpc.Handlers, sc scope.Scope, d xdr.Domain, index uint32, cpumap []byte, a machine.Affect) (*rpc.Void, error) {
	to, err := parsePinMap(h, cpumap)
	if err != nil {
		return nil, err
	}
	g, err := FindGuest(h, d)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.PinVCPU(ctx, g, sc, uint(index), to, a)
}

func domainPinVCPU(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainPinVCPUArgs) (*rpc.Void, error) {
	return pinVCPU(ctx, h, s.Scope, args.Domain, args.VCPU, args.CPUMap, machine.Affect{Live: true})
}

func domainPinVCPUFlags(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainPinVCPUFlagsArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_PIN_VCPU_FLAGS", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	return pinVCPU(ctx, h, s.Scope, args.Domain, args.VCPU, args.CPUMap, affect(args.Flags))
}

func domainPinEmulator(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainPinEmulatorArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_PIN_EMULATOR", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	to, err := parsePinMap(h, args.CPUMap)
	if err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.PinEmulator(ctx, g, s.Scope, to, affect(args.Flags))
}

// parsePinMap parses a CPU map to pin to. The map of all CPUs of the host removes the
// pinning.
func parsePinMap(h *rpc.Handlers, cpumap []byte) (topology.CPUSet, error) {
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

// allowedCPUs returns the CPUs where a thread may run: its own pinning, else the CPU set
// of the definition's <vcpu>, else all present CPUs of the host.
func allowedCPUs(h *rpc.Handlers, def *domain.Definition, pin topology.CPUSet) topology.CPUSet {
	switch {
	case !pin.IsEmpty():
		return pin
	case !def.VCPUs.CPUs.IsEmpty():
		return def.VCPUs.CPUs
	}
	return h.Host.Facts().Topology.Present
}

func domainGetVCPUPinInfo(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetVCPUPinInfoArgs) (*xdr.DomainGetVCPUPinInfoRet, error) {
	if err := rpc.CheckFlags("DOMAIN_GET_VCPU_PIN_INFO", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	if err := checkCPUMapSize(args.NCPUMaps, args.MapLen); err != nil {
		return nil, err
	}
	v, err := ViewOf(h, args.Domain)
	if err != nil {
		return nil, err
	}
	def, err := definitionByFlags(v, args.Flags)
	if err != nil {
		return nil, err
	}
	ret := new(xdr.DomainGetVCPUPinInfoRet)
	for i := range min(def.VCPUs.Max, uint(args.NCPUMaps)) {
		ret.CPUMaps = append(ret.CPUMaps, allowedCPUs(h, def, def.Tune.VCPUPins[i]).Map(8*int(args.MapLen))...)
		ret.Count++
	}
	return ret, nil
}

func domainGetEmulatorPinInfo(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetEmulatorPinInfoArgs) (*xdr.DomainGetEmulatorPinInfoRet, error) {
	if err := rpc.CheckFlags("DOMAIN_GET_EMULATOR_PIN_INFO", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	if err := checkCPUMapSize(1, args.MapLen); err != nil {
		return nil, err
	}
	v, err := ViewOf(h, args.Domain)
	if err != nil {
		return nil, err
	}
	def, err := definitionByFlags(v, args.Flags)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainGetEmulatorPinInfoRet{CPUMaps: allowedCPUs(h, def, def.Tune.EmulatorPin).Map(8 * int(args.MapLen)), Count: 1}, nil
}
