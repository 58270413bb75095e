package libvirt

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/domaincalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/hostcalls"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// FuzzProcessors computes the baseline of two processors. The result must be a processor that both support, and
// its own baseline.
func FuzzProcessors(f *testing.F) {
	haswell := hostCPU(`<model>Haswell</model><vendor>Intel</vendor><feature name='vmx'/>`)
	f.Add(haswell, `<cpu><model>Broadwell</model></cpu>`, uint32(0))
	f.Add(`<cpu mode='custom' match='exact'><model fallback='forbid'>Nehalem</model></cpu>`, haswell, uint32(hostcalls.BaselineExpand))
	f.Add(`<cpu><model>kvm64</model><feature policy='optional' name='avx'/></cpu>`, "<cpu/>", uint32(hostcalls.BaselineMigratable))
	f.Fuzz(func(t *testing.T, one, other string, flags uint32) {
		r := hostcalls.BaselineRequest{Catalogue: processors, Kind: hostcalls.AnyCPU, Available: nil, Flags: flags & (hostcalls.BaselineExpand | hostcalls.BaselineMigratable)}
		found, err := r.Answer([]string{one, other})
		if err != nil {
			if fault.Is(err, fault.Internal) {
				t.Fatal(err)
			}
			return
		}
		has := func(doc string) hostcalls.FeatureSet {
			p, err := hostcalls.ParseCPU(doc, hostcalls.AnyCPU)
			if err != nil {
				t.Fatalf("cannot be read: %v\n%s", err, doc)
			}
			features, err := processors.FeaturesOf(p)
			if err != nil {
				t.Fatal(err)
			}
			return features
		}
		for _, doc := range []string{one, other} {
			if more := hostcalls.Difference(has(found.CPU), has(doc)); len(more) > 0 {
				t.Fatalf("%s\nhas no %v of the baseline\n%s", doc, more, found.CPU)
			}
		}
		again, err := r.Answer([]string{found.CPU})
		if err != nil || cmp.Diff(has(again.CPU), has(found.CPU)) != "" {
			t.Fatalf("the baseline of a baseline is another (%v): %s", err, cmp.Diff(found.CPU, again))
		}
		if _, err := processors.CompareDocument(aHost, one, flags&hostcalls.CompareFail); fault.Is(err, fault.Internal) {
			t.Fatal(err)
		}
	})
}

// FuzzTunables sets a client's typed parameters in a definition, a disk and an interface. Each accepted value must
// survive writing and reading the XML.
func FuzzTunables(f *testing.F) {
	tables := [][]domaincalls.Tunable{domaincalls.SchedulerTunables, domaincalls.MemoryTunables, domaincalls.BlkioTunables, domaincalls.NumaTunables}
	for table, names := range tables {
		args := xdr.WithDomainParamsFlags{Domain: xdr.Domain{Name: "a"}}
		for _, t := range names {
			for _, v := range []xdr.TypedValue{xdr.Uint64(2000), xdr.Int64(-1), xdr.String("0-3,^1"), xdr.Uint(500)} {
				args.Params = []xdr.TypedParam{{Field: t.Name, Value: v}}
				if wire, err := args.Append(nil); err == nil {
					f.Add(uint8(table), wire)
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, wire []byte) {
		var args xdr.WithDomainParamsFlags
		if args.Decode(xdr.NewReader(wire)) != nil {
			return
		}
		d, err := domainxml.Parse(aTile, domainxml.Options{Host: &domainxml.Host{}})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range args.Params {
			if one := domaincalls.FindTunable(tables[int(which)%len(tables)], p.Field); one != nil {
				before := d.Clone()
				if one.Write(d, p.Value) != nil {
					d = before
					continue
				}
				one.Read(d, nil)
			}
		}
		if domaincalls.CheckMemTune(d.MemTune) != nil {
			return
		}
		text, err := domainxml.Format(d, domainxml.Style{})
		if err != nil {
			t.Fatal(err)
		}
		again, err := domainxml.Parse(text, domainxml.Options{Validate: true})
		if err != nil {
			t.Fatalf("set and cannot be read again: %v\n%s", err, text)
		}
		if twice, err := domainxml.Format(again, domainxml.Style{}); err != nil || twice != text {
			t.Fatalf("it is read as another (%v): %s", err, cmp.Diff(text, twice))
		}
		if bounds, err := domaincalls.UpdateIOTune(&device.IOTune{TotalBytes: 1}, args.Params); err == nil && bounds != nil && *bounds == (device.IOTune{Group: bounds.Group}) {
			t.Fatal("bounds that bound nothing are kept")
		}
		_, _, _ = domaincalls.InterfaceRates(args.Params)
		_, _, _ = domaincalls.SaveParams("", args.Params)
	})
}
