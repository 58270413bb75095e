package xdr_test

import (
	"bytes"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

func TestAppendPacket_Layout(t *testing.T) {
	call := xdr.Header{Program: xdr.ProgramRemote, Version: xdr.Version, Proc: xdr.ProcDomainLookupByID, Serial: 9}
	withFDs, stream, ping := call, call, xdr.Header{
		Program: xdr.ProgramKeepalive, Version: 1, Proc: xdr.ProcKeepalivePing, Type: xdr.TypeMessage,
	}
	withFDs.Type = xdr.TypeCallWithFDs
	stream.Type, stream.Status = xdr.TypeStream, xdr.StatusContinue
	args := &xdr.DomainLookupByIDArgs{ID: 5}
	tests := map[string]struct {
		make func(b []byte) ([]byte, error)
		want []byte
	}{
		"call": {
			func(b []byte) ([]byte, error) { return xdr.AppendPacket(b, call, args, 0) },
			bytesOf(32, 0x20008086, 1, 22, 0, 9, 0, 5),
		},
		"call with descriptors": {
			func(b []byte) ([]byte, error) { return xdr.AppendPacket(b, withFDs, args, 2) },
			bytesOf(36, 0x20008086, 1, 22, 4, 9, 0, 2, 5),
		},
		"stream data": {
			func(b []byte) ([]byte, error) { return xdr.AppendRaw(b, stream, []byte("abc")) },
			bytesOf(31, 0x20008086, 1, 22, 3, 9, 2, "abc"),
		},
		"keepalive": {
			func(b []byte) ([]byte, error) { return xdr.AppendPacket(b, ping, nil, 0) },
			bytesOf(28, 0x6b656570, 1, 1, 2, 0, 0),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := tt.make([]byte("before"))
			if err != nil {
				t.Fatal(err)
			}
			if want := append([]byte("before"), tt.want...); !bytes.Equal(got, want) {
				t.Errorf("got\n% x, want\n% x", got, want)
			}
		})
	}
}

func TestHeader_RoundTrip(t *testing.T) {
	want := xdr.Header{Program: xdr.ProgramQEMU, Version: 1, Proc: -3, Type: xdr.TypeReply, Serial: 1 << 31, Status: xdr.StatusError}
	got, err := xdr.ParseHeader(want.Append(nil))
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := xdr.ParseHeader(make([]byte, xdr.HeaderSize-1)); !fault.Is(err, fault.Invalid) {
		t.Errorf("a short header gave %v", err)
	}
}

func TestCheckLength_BeforeReading(t *testing.T) {
	for word, ok := range map[uint32]bool{
		0: false, 27: false, 28: true, 32: true,
		xdr.MaxPacket: true, xdr.MaxPacket + 1: false, 1<<32 - 1: false,
	} {
		n, err := xdr.CheckLength(word)
		if (err == nil) != ok || (ok && n != int(word)-4) {
			t.Errorf("%d: %d bytes follow, %v", word, n, err)
		}
	}
}

func TestFrame_TooLong(t *testing.T) {
	h := xdr.Header{Program: xdr.ProgramRemote, Version: 1, Type: xdr.TypeStream, Status: xdr.StatusContinue}
	if b, err := xdr.AppendRaw(nil, h, make([]byte, xdr.MaxPayload)); err != nil || len(b) != xdr.MaxPacket {
		t.Errorf("the longest payload gave %d bytes, %v", len(b), err)
	}
	if b, err := xdr.AppendRaw([]byte("x"), h, make([]byte, xdr.MaxPayload+1)); !fault.Is(err, fault.Invalid) || len(b) != 1 {
		t.Errorf("a longer one gave %d bytes, %v", len(b), err)
	}
	h.Type = xdr.TypeReplyWithFDs
	if _, err := xdr.AppendPacket(nil, h, nil, xdr.MaxFDs+1); !fault.Is(err, fault.Invalid) {
		t.Errorf("too many descriptors gave %v", err)
	}
}

func TestCutFDs_Count(t *testing.T) {
	n, rest, err := xdr.CutFDs(bytesOf(2, "rest"))
	if n != 2 || string(rest) != "rest" || err != nil {
		t.Errorf("got %d, %q, %v", n, rest, err)
	}
	for _, wire := range [][]byte{nil, bytesOf(33, "rest"), bytesOf(-1)} {
		if _, _, err := xdr.CutFDs(wire); !fault.Is(err, fault.Invalid) {
			t.Errorf("% x gave %v", wire, err)
		}
	}
}
