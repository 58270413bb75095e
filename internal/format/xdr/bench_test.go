package xdr_test

import (
	"fmt"
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// benchmarkBoth measures putting m on the wire into a buffer that is reused,
// and taking it off into a new message.
func benchmarkBoth(b *testing.B, m xdr.Message, empty func() xdr.Message) {
	wire, err := m.Append(nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(wire)))
		buf := make([]byte, 0, len(wire))
		for b.Loop() {
			if _, err := m.Append(buf); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(wire)))
		for b.Loop() {
			if err := empty().Decode(xdr.NewReader(wire)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkSmall(b *testing.B) {
	benchmarkBoth(b, &xdr.DomainGetXMLDescArgs{Domain: domain, Flags: 1},
		func() xdr.Message { return new(xdr.DomainGetXMLDescArgs) })
}

func BenchmarkList1000Domains(b *testing.B) {
	ret := &xdr.ConnectListAllDomainsRet{Count: 1000}
	for i := range 1000 {
		ret.Domains = append(ret.Domains, xdr.Domain{Name: fmt.Sprintf("guest-%04d", i), UUID: uuid, ID: int32(i)})
	}
	benchmarkBoth(b, ret, func() xdr.Message { return new(xdr.ConnectListAllDomainsRet) })
}

func BenchmarkStats1000x60(b *testing.B) {
	ret := &xdr.ConnectGetAllDomainStatsRet{}
	for i := range 1000 {
		record := xdr.DomainStatsRecord{Domain: xdr.Domain{Name: fmt.Sprintf("guest-%04d", i), UUID: uuid, ID: int32(i)}}
		for j := range 60 {
			value := xdr.Uint64(uint64(i * j))
			if j%10 == 0 {
				value = xdr.String("vda")
			}
			record.Params = append(record.Params, xdr.TypedParam{Field: fmt.Sprintf("block.0.parameter.%d", j), Value: value})
		}
		ret.Stats = append(ret.Stats, record)
	}
	benchmarkBoth(b, ret, func() xdr.Message { return new(xdr.ConnectGetAllDomainStatsRet) })
}
