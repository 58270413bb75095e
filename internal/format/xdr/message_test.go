package xdr_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// bytesOf joins 32-bit words, strings (raw bytes) and byte slices.
func bytesOf(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = binary.BigEndian.AppendUint32(b, uint32(p))
		case uint64:
			b = binary.BigEndian.AppendUint64(b, p)
		case string:
			b = append(b, p...)
		case []byte:
			b = append(b, p...)
		}
	}
	return b
}

var (
	uuid   = xdr.UUID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	domain = xdr.Domain{Name: "web", UUID: uuid, ID: -1}
	// the domain above on the wire
	domainBytes = bytesOf(3, "web\x00", uuid[:], -1)
)

// model is char[32] on the wire: each char a unit of its own.
func model(name string) (array [32]byte, wire []byte) {
	copy(array[:], name)
	for _, c := range array {
		wire = append(wire, 0, 0, 0, c)
	}
	return array, wire
}

func TestMessage_LibvirtBytes(t *testing.T) {
	cpu, cpuBytes := model("x86_64")
	tests := map[string]struct {
		message, into xdr.Message
		wire          []byte
	}{
		"model of the node is 32 units": {
			&xdr.NodeGetInfoRet{Model: cpu, Memory: 1 << 33, CPUs: 2, MHz: 3000, Nodes: 1, Sockets: 1, Cores: 2, Threads: 1},
			&xdr.NodeGetInfoRet{},
			bytesOf(cpuBytes, uint64(1<<33), 2, 3000, 1, 1, 2, 1),
		},
		"state of a domain is a unit, and so is its number of vcpus": {
			&xdr.DomainGetInfoRet{State: 1, MaxMemory: 4096, Memory: 2048, VCPUs: 2, CPUTime: 7},
			&xdr.DomainGetInfoRet{},
			bytesOf(1, uint64(4096), uint64(2048), 2, uint64(7)),
		},
		"absent and present optional strings": {
			&xdr.DomainSetMetadataArgs{Domain: domain, Type: 1, Metadata: new("hello"), URI: new(""), Flags: 2},
			&xdr.DomainSetMetadataArgs{},
			bytesOf(domainBytes, 1, 1, 5, "hello\x00\x00\x00", 0, 1, 0, 2),
		},
		"each kind of typed parameter": {
			&xdr.NodeSetMemoryParametersArgs{Params: []xdr.TypedParam{
				{Field: "i", Value: xdr.Int(-2)},
				{Field: "u", Value: xdr.Uint(1 << 31)},
				{Field: "l", Value: xdr.Int64(-2)},
				{Field: "ul", Value: xdr.Uint64(1 << 63)},
				{Field: "d", Value: xdr.Double(1.5)},
				{Field: "b", Value: xdr.Bool(true)},
				{Field: "s", Value: xdr.String("text")},
			}, Flags: 4},
			&xdr.NodeSetMemoryParametersArgs{},
			bytesOf(7,
				1, "i\x00\x00\x00", 1, -2,
				1, "u\x00\x00\x00", 2, 1<<31,
				1, "l\x00\x00\x00", 3, uint64(1<<64-2),
				2, "ul\x00\x00", 4, uint64(1<<63),
				1, "d\x00\x00\x00", 5, uint64(0x3ff8<<48),
				1, "b\x00\x00\x00", 6, 1,
				1, "s\x00\x00\x00", 7, 4, "text",
				4),
		},
		"cpu maps are packed": {
			&xdr.DomainPinVCPUArgs{Domain: domain, VCPU: 1, CPUMap: []byte{0xff, 1, 2, 3, 4}},
			&xdr.DomainPinVCPUArgs{},
			bytesOf(domainBytes, 1, 5, "\xff\x01\x02\x03\x04\x00\x00\x00"),
		},
		"security labels are chars": {
			&xdr.NodeGetSecurityModelRet{Model: []byte("no"), DOI: []byte("0")},
			&xdr.NodeGetSecurityModelRet{},
			bytesOf(2, int('n'), int('o'), 1, int('0')),
		},
		"a list, and the count behind it": {
			&xdr.ConnectListAllDomainsRet{Domains: []xdr.Domain{domain, domain}, Count: 2},
			&xdr.ConnectListAllDomainsRet{},
			bytesOf(2, domainBytes, domainBytes, 2),
		},
		"optional domain": {
			&xdr.ConnectDomainEventCallbackRegisterAnyArgs{EventID: 3, Domain: &domain},
			&xdr.ConnectDomainEventCallbackRegisterAnyArgs{},
			bytesOf(3, 1, domainBytes),
		},
		"event with its callback in front": {
			&xdr.DomainEventCallbackLifecycleMsg{CallbackID: 5, Msg: xdr.DomainEventLifecycleMsg{Domain: domain, Event: 2, Detail: 1}},
			&xdr.DomainEventCallbackLifecycleMsg{},
			bytesOf(5, domainBytes, 2, 1),
		},
		"error": {
			&xdr.NetError{Code: 42, Domain: 10, Message: new("gone"), Level: 2, Str1: new("gone"), Int1: -1, Int2: -1},
			&xdr.NetError{},
			bytesOf(42, 10, 1, 4, "gone", 2, 0, 1, 4, "gone", 0, 0, -1, -1, 0),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := tt.message.Append(nil)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, tt.wire) {
				t.Errorf("encoded\n% x, want\n% x", got, tt.wire)
			}
			r := xdr.NewReader(tt.wire)
			if err := tt.into.Decode(r); err != nil {
				t.Fatal(err)
			}
			if err := r.End(); err != nil {
				t.Error(err)
			}
			again, err := tt.into.Append(nil)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(again, tt.wire) {
				t.Errorf("decoded and encoded again\n% x, want\n% x", again, tt.wire)
			}
		})
	}
}

func TestReader_NonzeroBool(t *testing.T) {
	var args xdr.ConnectOpenArgs
	r := xdr.NewReader(bytesOf("\x01\x00\x00\x00", 4, "qemu", 1))
	if err := args.Decode(r); err != nil {
		t.Fatal(err)
	}
	if args.Name == nil || *args.Name != "qemu" || args.Flags != 1 {
		t.Errorf("decoded %+v, want name qemu and flags 1", args)
	}
}
