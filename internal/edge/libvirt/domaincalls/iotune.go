package domaincalls

import (
	"context"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// DomainIOTuneCalls read and change the I/O limits of a domain's disks.
func DomainIOTuneCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainGetBlockIOTune, domainGetBlockIOTune)
	rpc.On(g, xdr.ProcDomainSetBlockIOTune, domainSetBlockIOTune)
	rpc.On(g, xdr.ProcDomainBlockResize, domainBlockResize)
}

// ioTuneGroup is the only parameter that is not a number. libvirt lists it after size_iops_sec.
const ioTuneGroup = "group_name"

// findDisk finds a disk of a definition by its target or its path.
func findDisk(d *domain.Definition, name string) (*device.Disk, error) {
	for _, disk := range d.Devices.Disks {
		if name != "" && (disk.Target == name || disk.Source.Path() == name) {
			return disk, nil
		}
	}
	return nil, fault.New(fault.Invalid, fault.Call, "disk '%s' was not found in the domain", name)
}

// domainGetBlockIOTune returns the I/O limits of one disk. With room for no parameters,
// it returns their number.
func domainGetBlockIOTune(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetBlockIOTuneArgs) (*xdr.DomainGetBlockIOTuneRet, error) {
	def, err := paramDefinition(h, "DOMAIN_GET_BLOCK_IO_TUNE", args.Domain, args.Flags)
	if err != nil {
		return nil, err
	}
	disk := &device.Disk{}
	if args.NParams != 0 {
		if disk, err = findDisk(def, rpc.StringValue(args.Disk)); err != nil {
			return nil, err
		}
	}
	ret := new(xdr.DomainGetBlockIOTuneRet)
	ret.Params, ret.NParams, err = rpc.ParamsOrCount(ioTune(disk.Tune), args.NParams)
	return ret, err
}

func ioTune(t *device.IOTune) []xdr.TypedParam {
	if t == nil {
		t = &device.IOTune{}
	}
	var params []xdr.TypedParam
	for _, f := range t.Fields() {
		params = append(params, xdr.TypedParam{Field: f.Name, Value: xdr.Uint64(*f.Value)})
		if f.Name == "size_iops_sec" {
			params = append(params, xdr.TypedParam{Field: ioTuneGroup, Value: xdr.String(t.Group)})
		}
	}
	return params
}

func domainSetBlockIOTune(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetBlockIOTuneArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_SET_BLOCK_IO_TUNE", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.Tune(ctx, g, s.Scope, affect(args.Flags), func(d *domain.Definition) error {
		disk, err := findDisk(d, args.Disk)
		if err != nil {
			return err
		}
		changed, err := UpdateIOTune(disk.Tune, args.Params)
		if err != nil {
			return err
		}
		disk.Tune = changed
		for _, other := range d.Devices.Disks { // the disks of a group share their limits
			if changed != nil && changed.Group != "" && other.Tune != nil && other.Tune.Group == changed.Group {
				same := *changed
				other.Tune = &same
			}
		}
		return nil
	})
}

// ioTuneFamily returns the name of a parameter without total, read or write. If a call sets
// one parameter of a family, the others become zero.
func ioTuneFamily(name string) string {
	for _, prefix := range []string{"total_", "read_", "write_"} {
		if family, ok := strings.CutPrefix(name, prefix); ok {
			return family
		}
	}
	return name
}

// UpdateIOTune returns a disk's I/O limits with the changes of a call; nil without any limit.
func UpdateIOTune(old *device.IOTune, params []xdr.TypedParam) (*device.IOTune, error) {
	t := device.IOTune{}
	if old != nil {
		t = *old
	}
	fields := t.Fields()
	field := func(name string) *uint64 {
		i := slices.IndexFunc(fields, func(f device.TuneField) bool { return f.Name == name })
		if i < 0 {
			return nil
		}
		return fields[i].Value
	}
	named := map[string]bool{}
	for _, p := range params {
		if p.Field != ioTuneGroup && field(p.Field) == nil {
			return nil, fault.New(fault.Invalid, fault.Call, "parameter '%s' not supported", p.Field)
		}
		named[ioTuneFamily(p.Field)] = true
	}
	for _, f := range fields {
		if named[ioTuneFamily(f.Name)] {
			*f.Value = 0
		}
	}
	for _, p := range params {
		if p.Field == ioTuneGroup {
			if p.Value.Kind() != xdr.KindString {
				return nil, fault.New(fault.Invalid, fault.Call, "%s is a string, not %s", ioTuneGroup, p.Value.Kind())
			}
			t.Group = p.Value.Text()
			continue
		}
		if err := toUint64(p.Value, field(p.Field)); err != nil {
			return nil, fault.Wrap(err, fault.Invalid, fault.Call, "cannot set %s", p.Field)
		}
	}
	if err := normalizeIOTune(&t, named); err != nil {
		return nil, err
	}
	if t == (device.IOTune{Group: t.Group}) {
		return nil, nil
	}
	return &t, nil
}

// MaxIOTune is the highest limit that QEMU accepts.
const MaxIOTune = 1_000_000_000_000_000

// normalizeIOTune removes the bursts of limits that the call removed, and refuses
// limits that contradict each other.
func normalizeIOTune(t *device.IOTune, named map[string]bool) error {
	for _, f := range t.Fields() {
		if *f.Value > MaxIOTune {
			return fault.New(fault.Unsupported, fault.Call, "block I/O throttle limit value must be no more than %d", uint64(MaxIOTune))
		}
	}
	for _, r := range ioRates(t) {
		if named[r.family] && *r.total == 0 && *r.read == 0 && *r.write == 0 && !named[r.family+"_max"] {
			r.clearBursts()
		}
		if *r.total != 0 && (*r.read != 0 || *r.write != 0) {
			return fault.New(fault.Invalid, fault.Call, "total and read/write of %s cannot be set at the same time", r.family)
		}
		if *r.max[0] != 0 && (*r.max[1] != 0 || *r.max[2] != 0) {
			return fault.New(fault.Invalid, fault.Call, "total and read/write of %s_max cannot be set at the same time", r.family)
		}
		for i, rate := range []uint64{*r.total, *r.read, *r.write} {
			direction := []string{"total", "read", "write"}[i]
			switch {
			case *r.max[i] != 0 && rate == 0:
				return fault.New(fault.Unsupported, fault.Config, "value '%s_%s_max' cannot be set if '%s_%s' is not set", direction, r.family, direction, r.family)
			case *r.max[i] < rate && *r.max[i] != 0:
				return fault.New(fault.Unsupported, fault.Config, "value '%s_%s_max' cannot be smaller than '%s_%s'", direction, r.family, direction, r.family)
			case *r.length[i] != 0 && *r.max[i] == 0:
				return fault.New(fault.Unsupported, fault.Config, "value '%s_%s_max' has to be set with its length", direction, r.family)
			}
		}
	}
	return nil
}

// ioRate is one family of limits with its bursts: of total, read and write.
type ioRate struct {
	family             string
	total, read, write *uint64
	max, length        [3]*uint64
}

func (r *ioRate) clearBursts() {
	for i := range r.max {
		*r.max[i], *r.length[i] = 0, 0
	}
}

func ioRates(t *device.IOTune) []ioRate {
	return []ioRate{
		{
			"bytes_sec", &t.TotalBytes, &t.ReadBytes, &t.WriteBytes,
			[3]*uint64{&t.TotalBytesMax, &t.ReadBytesMax, &t.WriteBytesMax},
			[3]*uint64{&t.TotalBytesMaxLen, &t.ReadBytesMaxLen, &t.WriteBytesMaxLen},
		},
		{
			"iops_sec", &t.TotalIOPS, &t.ReadIOPS, &t.WriteIOPS,
			[3]*uint64{&t.TotalIOPSMax, &t.ReadIOPSMax, &t.WriteIOPSMax},
			[3]*uint64{&t.TotalIOPSMaxLen, &t.ReadIOPSMaxLen, &t.WriteIOPSMaxLen},
		},
	}
}

// resizeBytes: the size is in bytes, and not in KiB.
const resizeBytes = 1

func domainBlockResize(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainBlockResizeArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_BLOCK_RESIZE", args.Flags, resizeBytes); err != nil {
		return nil, err
	}
	size := args.Size
	if args.Flags&resizeBytes == 0 {
		if size > 1<<53 {
			return nil, fault.New(fault.Invalid, fault.Call, "a disk cannot have %d KiB", size)
		}
		size *= 1024
	}
	if size == 0 || size > 1<<62 {
		return nil, fault.New(fault.Invalid, fault.Call, "a disk cannot have %d bytes", size)
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.ResizeDisk(ctx, g, s.Scope, args.Disk, size)
}
