package xdr_test

import (
	"bytes"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// messages is every kind of payload there is, by program, number and whether
// it is the result.
func messages(visit func(p *xdr.Procedure, ret bool, make func() xdr.Message)) {
	for _, program := range []xdr.Program{xdr.ProgramRemote, xdr.ProgramQEMU} {
		for p := range xdr.Procedures(program) {
			if p.NewArgs != nil {
				visit(p, false, p.NewArgs)
			}
			if p.NewRet != nil {
				visit(p, true, p.NewRet)
			}
		}
	}
}

func TestMessage_RoundTrip(t *testing.T) {
	messages(func(p *xdr.Procedure, ret bool, empty func() xdr.Message) {
		rapid.Check(t, func(rt *rapid.T) {
			want := empty()
			fill(rt, reflect.ValueOf(want).Elem())
			wire, err := want.Append(nil)
			if err != nil {
				rt.Skip("over a limit:", err)
			}
			if len(wire)%4 != 0 {
				rt.Fatalf("%s: %d bytes are no whole units", p.Name, len(wire))
			}
			got, r := empty(), xdr.NewReader(wire)
			if err := got.Decode(r); err != nil {
				rt.Fatalf("%s: %v", p.Name, err)
			}
			if err := r.End(); err != nil {
				rt.Fatalf("%s: %v", p.Name, err)
			}
			if !reflect.DeepEqual(got, want) {
				rt.Fatalf("%s (result %v): got %+v, want %+v", p.Name, ret, got, want)
			}
		})
	})
}

// checkDecode decodes hostile bytes: no panic, no memory out of proportion,
// and a payload that decodes has one canonical form.
func checkDecode(t *testing.T, empty func() xdr.Message, wire []byte) {
	got, r := empty(), xdr.NewReader(wire)
	err := got.Decode(r)
	// The worst ratio is an absent optional string in a list of leases.
	if n := weight(reflect.ValueOf(got).Elem()); n > 16*len(wire)+64 {
		t.Fatalf("%d bytes made a %T that holds %d", len(wire), got, n)
	}
	if err != nil || r.End() != nil {
		return
	}
	canonical, err := got.Append(nil)
	if err != nil {
		t.Fatalf("%T decoded and does not encode: %v", got, err)
	}
	again := empty()
	if err := again.Decode(xdr.NewReader(canonical)); err != nil {
		t.Fatalf("%T does not decode again: %v", got, err)
	}
	twice, err := again.Append(nil)
	if err != nil || !bytes.Equal(canonical, twice) {
		t.Fatalf("%T has two forms\n% x\n% x\n%v", got, canonical, twice, err)
	}
}

// seed adds one filled message of every procedure of a family.
func seed(f *testing.F, wantRet, wantEvent bool) {
	messages(func(p *xdr.Procedure, ret bool, empty func() xdr.Message) {
		if ret != wantRet || p.Event != wantEvent || p.Program != xdr.ProgramRemote {
			return
		}
		m := empty()
		gen := rapid.Custom(func(rt *rapid.T) bool { fill(rt, reflect.ValueOf(m).Elem()); return true })
		gen.Example(int(p.Number))
		if wire, err := m.Append(nil); err == nil {
			f.Add(p.Number, wire)
		}
	})
}

func FuzzCall(f *testing.F) {
	seed(f, false, false)
	f.Fuzz(func(t *testing.T, number int32, wire []byte) {
		if p := xdr.Lookup(xdr.ProgramRemote, number); p != nil && p.NewArgs != nil && !p.Event {
			checkDecode(t, p.NewArgs, wire)
		}
	})
}

func FuzzResult(f *testing.F) {
	seed(f, true, false)
	f.Fuzz(func(t *testing.T, number int32, wire []byte) {
		if p := xdr.Lookup(xdr.ProgramRemote, number); p != nil && p.NewRet != nil {
			checkDecode(t, p.NewRet, wire)
		}
	})
}

func FuzzEvent(f *testing.F) {
	seed(f, false, true)
	f.Fuzz(func(t *testing.T, number int32, wire []byte) {
		if p := xdr.Lookup(xdr.ProgramRemote, number); p != nil && p.Event {
			checkDecode(t, p.NewArgs, wire)
		}
	})
}

func FuzzQEMU(f *testing.F) {
	f.Add(int32(1), bytesOf(domainBytes, 2, "{}\x00\x00", 0))
	f.Fuzz(func(t *testing.T, number int32, wire []byte) {
		p := xdr.Lookup(xdr.ProgramQEMU, number)
		if p == nil {
			return
		}
		checkDecode(t, p.NewArgs, wire)
		if p.NewRet != nil {
			checkDecode(t, p.NewRet, wire)
		}
	})
}

func FuzzFraming(f *testing.F) {
	f.Add(bytesOf(0x20008086, 1, 22, 4, 9, 0, 1, 5))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := xdr.ParseHeader(b)
		if err != nil {
			return
		}
		if !bytes.Equal(h.Append(nil), b[:xdr.HeaderSize]) {
			t.Errorf("%+v has other bytes than % x", h, b[:xdr.HeaderSize])
		}
		if n, rest, err := xdr.CutFDs(b[xdr.HeaderSize:]); err == nil && (n > xdr.MaxFDs || len(rest) != len(b)-xdr.HeaderSize-4) {
			t.Errorf("%d descriptors and %d bytes", n, len(rest))
		}
		checkDecode(t, func() xdr.Message { return new(xdr.NetError) }, b[xdr.HeaderSize:])
		checkDecode(t, func() xdr.Message { return new(xdr.StreamHole) }, b[xdr.HeaderSize:])
	})
}
