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

// groupName is the one parameter that is no number. It comes before the lengths
// of bursts.
const groupName = "group_name"

// findDisk finds a disk of a definition by its target or its path.
func findDisk(d *domain.Definition, name string) (*device.Disk, error) {
	for _, disk := range d.Devices.Disks {
		if name != "" && (disk.Target == name || disk.Source.Path() == name) {
			return disk, nil
		}
	}
	return nil, fault.New(fault.Invalid, fault.Call, "disk '%s' was not found in the domain", name)
}

// domainGetBlockIOTune gives the bounds of one disk. Without a disk, it gives the
// parameters that exist.
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
			params = append(params, xdr.TypedParam{Field: groupName, Value: xdr.String(t.Group)})
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
		changed, err := Retuned(disk.Tune, args.Params)
		if err != nil {
			return err
		}
		disk.Tune = changed
		for _, other := range d.Devices.Disks { // a group has one set of bounds
			if changed != nil && changed.Group != "" && other.Tune != nil && other.Tune.Group == changed.Group {
				same := *changed
				other.Tune = &same
			}
		}
		return nil
	})
}

// ioTuneFamily names the group that a field belongs to. A group has a total, a read and
// a write field: if a call sets one of them, the unset ones become zero.
func ioTuneFamily(name string) string {
	for _, of := range []string{"total_", "read_", "write_"} {
		if family, ok := strings.CutPrefix(name, of); ok {
			return family
		}
	}
	return name
}

// Retuned gives a disk's bounds with some of them changed; nil without any bound.
func Retuned(old *device.IOTune, params []xdr.TypedParam) (*device.IOTune, error) {
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
	said := map[string]bool{}
	for _, p := range params {
		if p.Field != groupName && field(p.Field) == nil {
			return nil, fault.New(fault.Invalid, fault.Call, "parameter '%s' not supported", p.Field)
		}
		said[ioTuneFamily(p.Field)] = true
	}
	for _, f := range fields {
		if said[ioTuneFamily(f.Name)] {
			*f.Value = 0
		}
	}
	for _, p := range params {
		if p.Field == groupName {
			if p.Value.Kind() != xdr.KindString {
				return nil, fault.New(fault.Invalid, fault.Call, "%s is a text, not %s", groupName, p.Value.Kind())
			}
			t.Group = p.Value.Text()
			continue
		}
		if err := unsigned(p.Value, field(p.Field)); err != nil {
			return nil, fault.Wrap(err, fault.Invalid, fault.Call, "cannot set %s", p.Field)
		}
	}
	if err := soundIOTune(&t, said); err != nil {
		return nil, err
	}
	if t == (device.IOTune{Group: t.Group}) {
		return nil, nil
	}
	return &t, nil
}

// MostIOTune is the highest rate that QEMU takes.
const MostIOTune = 1_000_000_000_000_000

// soundIOTune takes away bursts over rates that were taken away, and refuses
// bounds that contradict each other.
func soundIOTune(t *device.IOTune, said map[string]bool) error {
	for _, f := range t.Fields() {
		if *f.Value > MostIOTune {
			return fault.New(fault.Unsupported, fault.Call, "block I/O throttle limit value must be no more than %d", uint64(MostIOTune))
		}
	}
	for _, r := range ioRates(t) {
		if said[r.family] && *r.total == 0 && *r.read == 0 && *r.write == 0 && !said[r.family+"_max"] {
			r.clearBursts()
		}
		if *r.total != 0 && (*r.read != 0 || *r.write != 0) {
			return fault.New(fault.Invalid, fault.Call, "total and read/write of %s cannot be set at the same time", r.family)
		}
		if *r.max[0] != 0 && (*r.max[1] != 0 || *r.max[2] != 0) {
			return fault.New(fault.Invalid, fault.Call, "total and read/write of %s_max cannot be set at the same time", r.family)
		}
		for i, rate := range []uint64{*r.total, *r.read, *r.write} {
			of := []string{"total", "read", "write"}[i]
			switch {
			case *r.max[i] != 0 && rate == 0:
				return fault.New(fault.Unsupported, fault.Config, "value '%s_%s_max' cannot be set if '%s_%s' is not set", of, r.family, of, r.family)
			case *r.max[i] < rate && *r.max[i] != 0:
				return fault.New(fault.Unsupported, fault.Config, "value '%s_%s_max' cannot be smaller than '%s_%s'", of, r.family, of, r.family)
			case *r.length[i] != 0 && *r.max[i] == 0:
				return fault.New(fault.Unsupported, fault.Config, "value '%s_%s_max' has to be set with its length", of, r.family)
			}
		}
	}
	return nil
}

// ioRate is one family of rates with its bursts: of total, read and write.
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

// resizeBytes says that a size is in bytes, and not in KiB.
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
