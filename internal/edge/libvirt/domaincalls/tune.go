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

// DomainTuneCalls read and change a domain's share of the host.
func DomainTuneCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainGetSchedulerType, domainGetSchedulerType)
	rpc.On(g, xdr.ProcDomainGetSchedulerParameters, domainGetSchedulerParameters)
	rpc.On(g, xdr.ProcDomainGetSchedulerParametersFlags, domainGetSchedulerParametersFlags)
	rpc.On(g, xdr.ProcDomainSetSchedulerParameters, domainSetSchedulerParameters)
	rpc.On(g, xdr.ProcDomainSetSchedulerParametersFlags, settersOf("DOMAIN_SET_SCHEDULER_PARAMETERS_FLAGS", SchedulerTunables))
	rpc.On(g, xdr.ProcDomainGetMemoryParameters, gettersOf("DOMAIN_GET_MEMORY_PARAMETERS", MemoryTunables))
	rpc.On(g, xdr.ProcDomainSetMemoryParameters, settersOf("DOMAIN_SET_MEMORY_PARAMETERS", MemoryTunables))
	rpc.On(g, xdr.ProcDomainGetBlkIOParameters, gettersOf("DOMAIN_GET_BLKIO_PARAMETERS", BlkioTunables))
	rpc.On(g, xdr.ProcDomainSetBlkIOParameters, settersOf("DOMAIN_SET_BLKIO_PARAMETERS", BlkioTunables))
	rpc.On(g, xdr.ProcDomainGetNUMAParameters, gettersOf("DOMAIN_GET_NUMA_PARAMETERS", NumaTunables))
	rpc.On(g, xdr.ProcDomainSetNUMAParameters, settersOf("DOMAIN_SET_NUMA_PARAMETERS", NumaTunables))
}

// Tunable is one setting that clients read and change by name. Live are the
// limits that the kernel holds the running domain to; nil for a definition that
// does not run.
type Tunable struct {
	Name  string
	Read  func(d *domain.Definition, live *kernel.Limits) xdr.TypedValue
	Write func(d *domain.Definition, v xdr.TypedValue) error
}

// limitOf gives a limit as the kernel reports it, or else as the definition has it.
func limitOf(live *kernel.Limits, field func(*kernel.Limits) *uint64, defined uint64) uint64 {
	if live != nil {
		if v := field(live); v != nil {
			return *v
		}
	}
	return defined
}

// SchedulerTunables are the weight of a domain, and the processor time that it
// and each of its threads may use in a period. Times are in microseconds.
var SchedulerTunables = []Tunable{
	{
		Name: "cpu_shares",
		Read: func(d *domain.Definition, live *kernel.Limits) xdr.TypedValue {
			return xdr.Uint64(limitOf(live, func(l *kernel.Limits) *uint64 { return l.CPUShares }, d.Tune.Shares))
		},
		Write: func(d *domain.Definition, v xdr.TypedValue) error { return unsigned(v, &d.Tune.Shares) },
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
	leastPeriod, mostPeriod = 1000, 1000000
	leastQuota, mostQuota   = 1000, 17592186044415
	usualPeriod             = 100000
)

func period(name string, field func(*domain.CPUTune) *uint64) Tunable {
	return Tunable{
		Name: name,
		Read: func(d *domain.Definition, live *kernel.Limits) xdr.TypedValue {
			p := *field(&d.Tune)
			if p == 0 && live != nil {
				p = usualPeriod
			}
			return xdr.Uint64(p)
		},
		Write: func(d *domain.Definition, v xdr.TypedValue) error {
			var p uint64
			if err := unsigned(v, &p); err != nil {
				return err
			}
			if p != 0 && (p < leastPeriod || p > mostPeriod) {
				return fault.New(fault.Invalid, fault.Call, "a period is from %d to %d microseconds, not %d", leastPeriod, mostPeriod, p)
			}
			*field(&d.Tune) = p
			return nil
		},
	}
}

// quota is a tunable. All its negative values mean "no limit".
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
			q, err := signed(v)
			switch {
			case err != nil:
				return err
			case q < 0:
				q = -1
			case q != 0 && (q < leastQuota || q > mostQuota):
				return fault.New(fault.Invalid, fault.Call, "a quota is from %d to %d microseconds, or negative for none, not %d", leastQuota, mostQuota, q)
			}
			*field(&d.Tune) = q
			return nil
		},
	}
}

// MemoryTunables bound the domain's memory on the host, in KiB.
var MemoryTunables = []Tunable{
	memoryLimit("hard_limit", func(t *domain.MemTune) *uint64 { return &t.HardLimit }, func(l *kernel.Limits) *uint64 { return l.MemoryHard }),
	memoryLimit("soft_limit", func(t *domain.MemTune) *uint64 { return &t.SoftLimit }, func(l *kernel.Limits) *uint64 { return l.MemorySoft }),
	memoryLimit("swap_hard_limit", func(t *domain.MemTune) *uint64 { return &t.SwapHardLimit }, func(l *kernel.Limits) *uint64 { return l.MemorySwap }),
}

// MemoryUnlimited is libvirt's number for a limit that is none, in KiB.
const MemoryUnlimited = 9007199254740991

func memoryLimit(name string, field func(*domain.MemTune) *uint64, live func(*kernel.Limits) *uint64) Tunable {
	return Tunable{
		Name: name,
		Read: func(d *domain.Definition, l *kernel.Limits) xdr.TypedValue {
			bytes := limitOf(l, live, *field(&d.MemTune))
			if bytes == 0 || bytes/1024 >= MemoryUnlimited {
				return xdr.Uint64(MemoryUnlimited)
			}
			return xdr.Uint64(bytes / 1024)
		},
		Write: func(d *domain.Definition, v xdr.TypedValue) error {
			var kib uint64
			if err := unsigned(v, &kib); err != nil {
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

// BlkioTunables weigh the domain's disk traffic against others'.
var BlkioTunables = []Tunable{{
	Name: "weight",
	Read: func(d *domain.Definition, live *kernel.Limits) xdr.TypedValue {
		return xdr.Uint(uint32(limitOf(live, func(l *kernel.Limits) *uint64 { return l.BlockWeight }, uint64(d.Blkio.Weight))))
	},
	Write: func(d *domain.Definition, v xdr.TypedValue) error {
		var weight uint64
		if err := unsigned(v, &weight); err != nil {
			return err
		}
		if weight != 0 && (weight < 1 || weight > 10000) {
			return fault.New(fault.Invalid, fault.Call, "a weight is from 1 to 10000, not %d", weight)
		}
		d.Blkio.Weight = uint(weight)
		return nil
	},
}}

// numaModes are how strictly memory is kept on cells, by libvirt's number.
var numaModes = []string{"strict", "preferred", "interleave", "restrictive"}

// NumaTunables say on which of the host's cells the domain's memory is.
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
			number, err := signed(v)
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

// unsigned reads a number that a client sent in any of the whole types.
func unsigned(v xdr.TypedValue, into *uint64) error {
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

func signed(v xdr.TypedValue) (int64, error) {
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

// paramDefinition gives the definition that holds the parameters a call asks for.
func paramDefinition(h *rpc.Handlers, call string, d xdr.Domain, flags uint32) (*domain.Definition, error) {
	flags, err := rpc.ParamFlags(call, flags, affectBoth)
	if err != nil {
		return nil, err
	}
	v, err := ViewOf(h, d)
	if err != nil {
		return nil, err
	}
	return definition(v, flags)
}

// tuning reads the settings of a domain that a table names.
func tuning(h *rpc.Handlers, d xdr.Domain, call string, flags uint32, table []Tunable) ([]xdr.TypedParam, error) {
	flags, err := rpc.ParamFlags(call, flags, affectBoth)
	if err != nil {
		return nil, err
	}
	g, err := FindGuest(h, d)
	if err != nil {
		return nil, err
	}
	v := g.View()
	def, err := definition(v, flags)
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

// tune changes those settings of a domain that the parameters name.
func tune(ctx context.Context, h *rpc.Handlers, sc scope.Scope, d xdr.Domain, params []xdr.TypedParam, flags uint32, table []Tunable) error {
	writes := make([]func(*domain.Definition) error, 0, len(params))
	given := map[string]bool{}
	for _, p := range params {
		t := FindTunable(table, p.Field)
		switch {
		case t == nil:
			return fault.New(fault.Invalid, fault.Call, "parameter '%s' not supported", p.Field)
		case given[p.Field]:
			return fault.New(fault.Invalid, fault.Call, "parameter '%s' occurs multiple times", p.Field)
		}
		given[p.Field] = true
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
		return SoundMemTune(d.MemTune)
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

// SoundMemTune refuses limits that contradict each other.
func SoundMemTune(t domain.MemTune) error {
	if t.SwapHardLimit != 0 && (t.HardLimit == 0 || t.HardLimit > t.SwapHardLimit) {
		return fault.New(fault.Invalid, fault.Call, "memory hard_limit tunable value must be lower than or equal to swap_hard_limit")
	}
	return nil
}

func gettersOf(call string, table []Tunable) func(context.Context, *rpc.Handlers, *rpc.Request, *xdr.WithDomainNParamsFlags) (*xdr.WithParamsNParams, error) {
	return func(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithDomainNParamsFlags) (*xdr.WithParamsNParams, error) {
		params, err := tuning(h, args.Domain, call, args.Flags, table)
		if err != nil {
			return nil, err
		}
		ret := new(xdr.WithParamsNParams)
		ret.Params, ret.NParams, err = rpc.ParamsOrCount(params, args.NParams)
		return ret, err
	}
}

func settersOf(call string, table []Tunable) func(context.Context, *rpc.Handlers, *rpc.Request, *xdr.WithDomainParamsFlags) (*rpc.Void, error) {
	return func(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithDomainParamsFlags) (*rpc.Void, error) {
		if err := rpc.CheckFlags(call, args.Flags, affectBoth); err != nil {
			return nil, err
		}
		return nil, tune(ctx, h, s.Scope, args.Domain, args.Params, args.Flags, table)
	}
}

// domainGetSchedulerType names libvirt's only scheduler of QEMU domains, and how
// many parameters it has.
func domainGetSchedulerType(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetSchedulerTypeArgs) (*xdr.DomainGetSchedulerTypeRet, error) {
	if _, err := FindGuest(h, args.Domain); err != nil {
		return nil, err
	}
	return &xdr.DomainGetSchedulerTypeRet{Type: "posix", NParams: int32(len(SchedulerTunables))}, nil
}

func domainGetSchedulerParameters(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetSchedulerParametersArgs) (*xdr.DomainGetSchedulerParametersRet, error) {
	params, err := tuning(h, args.Domain, "DOMAIN_GET_SCHEDULER_PARAMETERS", 0, SchedulerTunables)
	if err != nil {
		return nil, err
	}
	err = rpc.TruncateList(&params, args.NParams)
	return &xdr.DomainGetSchedulerParametersRet{Params: params}, err
}

func domainGetSchedulerParametersFlags(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetSchedulerParametersFlagsArgs) (*xdr.DomainGetSchedulerParametersFlagsRet, error) {
	params, err := tuning(h, args.Domain, "DOMAIN_GET_SCHEDULER_PARAMETERS_FLAGS", args.Flags, SchedulerTunables)
	if err != nil {
		return nil, err
	}
	err = rpc.TruncateList(&params, args.NParams)
	return &xdr.DomainGetSchedulerParametersFlagsRet{Params: params}, err
}

// domainSetSchedulerParameters, the older call, is for running domains alone.
func domainSetSchedulerParameters(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetSchedulerParametersArgs) (*rpc.Void, error) {
	return nil, tune(ctx, h, s.Scope, args.Domain, args.Params, affectLive, SchedulerTunables)
}
