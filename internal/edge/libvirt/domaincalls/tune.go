package domaincalls

import (
	"context"
	"math"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// DomainTuneCalls read and change a domain's scheduler, memory, block I/O and NUMA parameters.
func DomainTuneCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainGetSchedulerType, domainGetSchedulerType)
	rpc.On(g, xdr.ProcDomainGetSchedulerParameters, domainGetSchedulerParameters)
	rpc.On(g, xdr.ProcDomainGetSchedulerParametersFlags, domainGetSchedulerParametersFlags)
	rpc.On(g, xdr.ProcDomainSetSchedulerParameters, domainSetSchedulerParameters)
	rpc.On(g, xdr.ProcDomainSetSchedulerParametersFlags, tunablesSetter("DOMAIN_SET_SCHEDULER_PARAMETERS_FLAGS", SchedulerTunables))
	rpc.On(g, xdr.ProcDomainGetMemoryParameters, tunablesGetter("DOMAIN_GET_MEMORY_PARAMETERS", MemoryTunables))
	rpc.On(g, xdr.ProcDomainSetMemoryParameters, tunablesSetter("DOMAIN_SET_MEMORY_PARAMETERS", MemoryTunables))
	rpc.On(g, xdr.ProcDomainGetBlkIOParameters, tunablesGetter("DOMAIN_GET_BLKIO_PARAMETERS", BlkioTunables))
	rpc.On(g, xdr.ProcDomainSetBlkIOParameters, tunablesSetter("DOMAIN_SET_BLKIO_PARAMETERS", BlkioTunables))
	rpc.On(g, xdr.ProcDomainGetNUMAParameters, tunablesGetter("DOMAIN_GET_NUMA_PARAMETERS", NumaTunables))
	rpc.On(g, xdr.ProcDomainSetNUMAParameters, tunablesSetter("DOMAIN_SET_NUMA_PARAMETERS", NumaTunables))
}

// Tunable is a parameter that clients read and change by name. live are the limits that
// the kernel enforces on the running domain; nil for a definition that does not run.
type Tunable struct {
	Name  string
	Read  func(d *domain.Definition, live *kernel.Limits) xdr.TypedValue
	Write func(d *domain.Definition, v xdr.TypedValue) error
}

// effectiveLimit returns a limit as the kernel reports it, else as the definition has it.
func effectiveLimit(live *kernel.Limits, field func(*kernel.Limits) *uint64, defined uint64) uint64 {
	if live != nil {
		if v := field(live); v != nil {
			return *v
		}
	}
	return defined
}

// SchedulerTunables are the weight of a domain, and the CPU time that it and each of
// its threads may use in a period. Times are in microseconds.
var SchedulerTunables = []Tunable{
	{
		Name: "cpu_shares",
		Read: func(d *domain.Definition, live *kernel.Limits) xdr.TypedValue {
			return xdr.Uint64(effectiveLimit(live, func(l *kernel.Limits) *uint64 { return l.CPUShares }, d.Tune.Shares))
		},
		Write: func(d *domain.Definition, v xdr.TypedValue) error { return toUint64(v, &d.Tune.Shares) },
	},
	period("vcpu_period", func(t *domain.CPUTune) *uint64 { return &t.Period }),
	quota("vcpu_quota", func(t *domain.CPUTune) *int64 { return &t.Quota }),
	period("emulator_period", func(t *domain.CPUTune) *uint64 { return &t.EmulatorPeriod }),
	quota("emulator_quota", func(t *domain.CPUTune) *int64 { return &t.EmulatorQuota }),
	period("global_period", func(t *domain.CPUTune) *uint64 { return &t.GlobalPeriod }),
	quota("global_quota", func(t *domain.CPUTune) *int64 { return &t.GlobalQuota }),
	period("iothread_period", func(t *domain.CPUTune) *uint64 { return &t.IOThreadPeriod }),
	quota("iothread_quota", func(t *domain.CPUTune) *int64 { return &t.IOThreadQuota }),
}

// The kernel's bounds for periods and quotas, in microseconds, and its default
// period.
const (
	minPeriod, maxPeriod = 1000, 1000000
	minQuota, maxQuota   = 1000, 17592186044415
	defaultPeriod        = 100000
)

func period(name string, field func(*domain.CPUTune) *uint64) Tunable {
	return Tunable{
		Name: name,
		Read: func(d *domain.Definition, live *kernel.Limits) xdr.TypedValue {
			p := *field(&d.Tune)
			if p == 0 && live != nil {
				p = defaultPeriod
			}
			return xdr.Uint64(p)
		},
		Write: func(d *domain.Definition, v xdr.TypedValue) error {
			var p uint64
			if err := toUint64(v, &p); err != nil {
				return err
			}
			if p != 0 && (p < minPeriod || p > maxPeriod) {
				return fault.New(fault.Invalid, fault.Call, "a period is from %d to %d microseconds, not %d", minPeriod, maxPeriod, p)
			}
			*field(&d.Tune) = p
			return nil
		},
	}
}

// quota makes a tunable. All negative values mean "no limit".
func quota(name string, field func(*domain.CPUTune) *int64) Tunable {
	return Tunable{
		Name: name,
		Read: func(d *domain.Definition, live *kernel.Limits) xdr.TypedValue {
			q := *field(&d.Tune)
			if q == 0 && live != nil {
				q = -1
			}
			return xdr.Int64(q)
		},
		Write: func(d *domain.Definition, v xdr.TypedValue) error {
			q, err := toInt64(v)
			switch {
			case err != nil:
				return err
			case q < 0:
				q = -1
			case q != 0 && (q < minQuota || q > maxQuota):
				return fault.New(fault.Invalid, fault.Call, "a quota is from %d to %d microseconds, or negative for none, not %d", minQuota, maxQuota, q)
			}
			*field(&d.Tune) = q
			return nil
		},
	}
}

// MemoryTunables limit the domain's memory on the host, in KiB.
var MemoryTunables = []Tunable{
	memoryLimit("hard_limit", func(t *domain.MemTune) *uint64 { return &t.HardLimit }, func(l *kernel.Limits) *uint64 { return l.MemoryHard }),
	memoryLimit("soft_limit", func(t *domain.MemTune) *uint64 { return &t.SoftLimit }, func(l *kernel.Limits) *uint64 { return l.MemorySoft }),
	memoryLimit("swap_hard_limit", func(t *domain.MemTune) *uint64 { return &t.SwapHardLimit }, func(l *kernel.Limits) *uint64 { return l.MemorySwap }),
}

// MemoryUnlimited is libvirt's number for "no limit" (VIR_DOMAIN_MEMORY_PARAM_UNLIMITED), in KiB.
const MemoryUnlimited = 9007199254740991

func memoryLimit(name string, field func(*domain.MemTune) *uint64, live func(*kernel.Limits) *uint64) Tunable {
	return Tunable{
		Name: name,
		Read: func(d *domain.Definition, l *kernel.Limits) xdr.TypedValue {
			bytes := effectiveLimit(l, live, *field(&d.MemTune))
			if bytes == 0 || bytes/1024 >= MemoryUnlimited {
				return xdr.Uint64(MemoryUnlimited)
			}
			return xdr.Uint64(bytes / 1024)
		},
		Write: func(d *domain.Definition, v xdr.TypedValue) error {
			var kib uint64
			if err := toUint64(v, &kib); err != nil {
				return err
			}
			if kib >= MemoryUnlimited {
				kib = 0
			}
			*field(&d.MemTune) = kib * 1024
			return nil
		},
	}
}

// BlkioTunables are the weight of the domain's disk I/O against that of others.
var BlkioTunables = []Tunable{{
	Name: "weight",
	Read: func(d *domain.Definition, live *kernel.Limits) xdr.TypedValue {
		return xdr.Uint(uint32(effectiveLimit(live, func(l *kernel.Limits) *uint64 { return l.BlockWeight }, uint64(d.Blkio.Weight))))
	},
	Write: func(d *domain.Definition, v xdr.TypedValue) error {
		var weight uint64
		if err := toUint64(v, &weight); err != nil {
			return err
		}
		if weight != 0 && (weight < 1 || weight > 10000) {
			return fault.New(fault.Invalid, fault.Call, "a weight is from 1 to 10000, not %d", weight)
		}
		d.Blkio.Weight = uint(weight)
		return nil
	},
}}

// numaModes are how strictly memory is bound to cells (virDomainNumatuneMemMode), by libvirt's numbers.
var numaModes = []string{"strict", "preferred", "interleave", "restrictive"}

// NumaTunables select the host's cells for the domain's memory.
var NumaTunables = []Tunable{
	{
		Name: "numa_mode",
		Read: func(d *domain.Definition, _ *kernel.Limits) xdr.TypedValue {
			for number, mode := range numaModes {
				if mode == d.NUMA.Mode {
					return xdr.Int(int32(number))
				}
			}
			return xdr.Int(0)
		},
		Write: func(d *domain.Definition, v xdr.TypedValue) error {
			number, err := toInt64(v)
			if err != nil {
				return err
			}
			if number < 0 || number >= int64(len(numaModes)) {
				return fault.New(fault.Invalid, fault.Call, "unsupported numatune mode: '%d'", number)
			}
			d.NUMA.Mode = numaModes[number]
			return nil
		},
	},
	{
		Name: "numa_nodeset",
		Read: func(d *domain.Definition, _ *kernel.Limits) xdr.TypedValue { return xdr.String(d.NUMA.Nodes.String()) },
		Write: func(d *domain.Definition, v xdr.TypedValue) error {
			nodes, err := topology.ParseCPUSet(v.Text())
			if err != nil || v.Kind() != xdr.KindString || nodes.IsEmpty() {
				return fault.New(fault.Invalid, fault.Call, "invalid nodeset of 'numatune': %s", v)
			}
			d.NUMA.Nodes = nodes
			if d.NUMA.Mode == "" {
				d.NUMA.Mode = numaModes[0]
			}
			return nil
		},
	},
}

// toUint64 reads a number from 0 up, in any of the integer types.
func toUint64(v xdr.TypedValue, into *uint64) error {
	switch v.Kind() {
	case xdr.KindUint, xdr.KindUint64:
		*into = v.Uint()
		return nil
	case xdr.KindInt, xdr.KindInt64:
		if v.Int() >= 0 {
			*into = uint64(v.Int())
			return nil
		}
	case xdr.KindDouble, xdr.KindBool, xdr.KindString:
	}
	return fault.New(fault.Invalid, fault.Call, "the %s %s is not a number from 0 up", v.Kind(), v)
}

func toInt64(v xdr.TypedValue) (int64, error) {
	switch v.Kind() {
	case xdr.KindInt, xdr.KindInt64:
		return v.Int(), nil
	case xdr.KindUint, xdr.KindUint64:
		if v.Uint() <= math.MaxInt64 {
			return int64(v.Uint()), nil
		}
	case xdr.KindDouble, xdr.KindBool, xdr.KindString:
	}
	return 0, fault.New(fault.Invalid, fault.Call, "the %s %s is not a whole number", v.Kind(), v)
}

// paramDefinition returns the definition that a getter of typed parameters reads.
func paramDefinition(h *rpc.Handlers, call string, d xdr.Domain, flags uint32) (*domain.Definition, error) {
	flags, err := rpc.ParamFlags(call, flags, affectBoth)
	if err != nil {
		return nil, err
	}
	v, err := ViewOf(h, d)
	if err != nil {
		return nil, err
	}
	return definitionByFlags(v, flags)
}

// getTunables returns the parameters of a table, for a domain.
func getTunables(h *rpc.Handlers, d xdr.Domain, call string, flags uint32, table []Tunable) ([]xdr.TypedParam, error) {
	flags, err := rpc.ParamFlags(call, flags, affectBoth)
	if err != nil {
		return nil, err
	}
	g, err := FindGuest(h, d)
	if err != nil {
		return nil, err
	}
	v := g.View()
	def, err := definitionByFlags(v, flags)
	if err != nil {
		return nil, err
	}
	var live *kernel.Limits
	if def == v.Active {
		limits, err := statistics.Limits(g)
		if err != nil && !fault.Is(err, fault.Unsupported) {
			return nil, err
		}
		live = &limits
	}
	params := make([]xdr.TypedParam, len(table))
	for i, t := range table {
		params[i] = xdr.TypedParam{Field: t.Name, Value: t.Read(def, live)}
	}
	return params, nil
}

// setTunables changes the parameters of a domain that the call names. The table says which there are.
func setTunables(ctx context.Context, h *rpc.Handlers, sc scope.Scope, d xdr.Domain, params []xdr.TypedParam, flags uint32, table []Tunable) error {
	if err := rpc.CheckParamNames(params, func(name string) bool { return FindTunable(table, name) != nil }); err != nil {
		return err
	}
	writes := make([]func(*domain.Definition) error, 0, len(params))
	for _, p := range params {
		t := FindTunable(table, p.Field)
		writes = append(writes, func(d *domain.Definition) error {
			return fault.Wrap(t.Write(d, p.Value), fault.Invalid, fault.Call, "cannot set %s", p.Field)
		})
	}
	g, err := FindGuest(h, d)
	if err != nil {
		return err
	}
	return hotplug.Tune(ctx, g, sc, affect(flags), func(d *domain.Definition) error {
		for _, write := range writes {
			if err := write(d); err != nil {
				return err
			}
		}
		return CheckMemTune(d.MemTune)
	})
}

// FindTunable finds a parameter by its name; nil: there is none.
func FindTunable(table []Tunable, name string) *Tunable {
	for i := range table {
		if table[i].Name == name {
			return &table[i]
		}
	}
	return nil
}

// CheckMemTune refuses memory limits that contradict each other.
func CheckMemTune(t domain.MemTune) error {
	if t.SwapHardLimit != 0 && (t.HardLimit == 0 || t.HardLimit > t.SwapHardLimit) {
		return fault.New(fault.Invalid, fault.Call, "memory hard_limit tunable value must be lower than or equal to swap_hard_limit")
	}
	return nil
}

func tunablesGetter(call string, table []Tunable) func(context.Context, *rpc.Handlers, *rpc.Request, *xdr.WithDomainNParamsFlags) (*xdr.WithParamsNParams, error) {
	return func(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithDomainNParamsFlags) (*xdr.WithParamsNParams, error) {
		params, err := getTunables(h, args.Domain, call, args.Flags, table)
		if err != nil {
			return nil, err
		}
		ret := new(xdr.WithParamsNParams)
		ret.Params, ret.NParams, err = rpc.ParamsOrCount(params, args.NParams)
		return ret, err
	}
}

func tunablesSetter(call string, table []Tunable) func(context.Context, *rpc.Handlers, *rpc.Request, *xdr.WithDomainParamsFlags) (*rpc.Void, error) {
	return func(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithDomainParamsFlags) (*rpc.Void, error) {
		if err := rpc.CheckFlags(call, args.Flags, affectBoth); err != nil {
			return nil, err
		}
		return nil, setTunables(ctx, h, s.Scope, args.Domain, args.Params, args.Flags, table)
	}
}

// domainGetSchedulerType returns libvirt's only scheduler for QEMU domains, and the
// number of its parameters.
func domainGetSchedulerType(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetSchedulerTypeArgs) (*xdr.DomainGetSchedulerTypeRet, error) {
	if _, err := FindGuest(h, args.Domain); err != nil {
		return nil, err
	}
	return &xdr.DomainGetSchedulerTypeRet{Type: "posix", NParams: int32(len(SchedulerTunables))}, nil
}

func domainGetSchedulerParameters(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetSchedulerParametersArgs) (*xdr.DomainGetSchedulerParametersRet, error) {
	params, err := getTunables(h, args.Domain, "DOMAIN_GET_SCHEDULER_PARAMETERS", 0, SchedulerTunables)
	if err != nil {
		return nil, err
	}
	err = rpc.TruncateList(&params, args.NParams)
	return &xdr.DomainGetSchedulerParametersRet{Params: params}, err
}

func domainGetSchedulerParametersFlags(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetSchedulerParametersFlagsArgs) (*xdr.DomainGetSchedulerParametersFlagsRet, error) {
	params, err := getTunables(h, args.Domain, "DOMAIN_GET_SCHEDULER_PARAMETERS_FLAGS", args.Flags, SchedulerTunables)
	if err != nil {
		return nil, err
	}
	err = rpc.TruncateList(&params, args.NParams)
	return &xdr.DomainGetSchedulerParametersFlagsRet{Params: params}, err
}

// domainSetSchedulerParameters, the older call, is for running domains only.
func domainSetSchedulerParameters(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetSchedulerParametersArgs) (*rpc.Void, error) {
	return nil, setTunables(ctx, h, s.Scope, args.Domain, args.Params, affectLive, SchedulerTunables)
}
