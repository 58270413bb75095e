package xdr_test

import (
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// Promise: X4
func TestDecode_HostilePayloads(t *testing.T) {
	tests := map[string]struct {
		into xdr.Message
		wire []byte
		want string
	}{
		"string over its limit":       {&xdr.DomainDefineXMLArgs{}, bytesOf(xdr.MaxString+1, "x"), "XML: 4194305 bytes are over the limit of 4194304"},
		"string longer than the rest": {&xdr.DomainDefineXMLArgs{}, bytesOf(100, "abcd"), "XML: needs 100 bytes and 4 are left"},
		"string without its padding":  {&xdr.DomainDefineXMLArgs{}, bytesOf(5, "abcde"), "XML: needs 8 bytes and 5 are left"},
		"nothing at all":              {&xdr.DomainDefineXMLArgs{}, nil, "XML: needs 4 bytes and 0 are left"},
		"list over its limit":         {&xdr.ConnectGetAllDomainStatsArgs{}, bytesOf(xdr.MaxDomainList + 1), "Domains: 16385 items are over the limit of 16384"},
		"lying count":                 {&xdr.ConnectGetAllDomainStatsArgs{}, bytesOf(16000, domainBytes), "Domains: claims 16000 items and only 28 bytes are left"},
		"huge count":                  {&xdr.ConnectGetAllDomainStatsArgs{}, bytesOf(-1), "Domains: 4294967295 items are over the limit of 16384"},
		"half a list":                 {&xdr.ConnectGetAllDomainStatsArgs{}, bytesOf(1, 8, "12345678", 0, 0, 0, 0), "Domain.ID: needs 4 bytes and 0 are left"},
		"half a uuid":                 {&xdr.DomainLookupByUUIDArgs{}, bytesOf(1, 2), "UUID: needs 16 bytes and 8 are left"},
		"opaque over its limit":       {&xdr.DomainPinVCPUArgs{}, bytesOf(domainBytes, 0, 2049), "CPUMap: 2049 bytes are over the limit of 2048"},
		"chars over their limit":      {&xdr.AuthSASLStepArgs{}, bytesOf(0, 65537), "Data: 65537 items are over the limit of 65536"},
		"unknown kind of parameter":   {&xdr.NodeSetMemoryParametersArgs{}, bytesOf(1, 1, "x\x00\x00\x00", 8, 0), `"x" has unknown type 8`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := tt.into.Decode(xdr.NewReader(tt.wire))
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an Invalid with %q", err, tt.want)
			}
		})
	}
}

func TestAppend_OverLimit(t *testing.T) {
	tests := map[string]struct {
		message xdr.Message
		want    string
	}{
		"string": {&xdr.DomainDefineXMLArgs{XML: strings.Repeat("x", xdr.MaxString+1)}, "XML: 4194305 bytes"},
		"list":   {&xdr.ConnectListAllDomainsRet{Domains: make([]xdr.Domain, xdr.MaxDomainList+1)}, "Domains: 16385 items"},
		"opaque": {&xdr.SecretSetValueArgs{Value: make([]byte, xdr.MaxSecretValue+1)}, "Value: 65537 bytes"},
		"chars":  {&xdr.NodeGetSecurityModelRet{Model: make([]byte, 258)}, "Model: 258 items"},
		"optional string": {
			&xdr.DomainRenameArgs{NewName: new(strings.Repeat("x", xdr.MaxString+1))}, "NewName: 4194305 bytes",
		},
		"parameter without a value": {&xdr.NodeSetMemoryParametersArgs{Params: make([]xdr.TypedParam, 1)}, "unknown type 0"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := tt.message.Append(nil)
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an Invalid with %q", err, tt.want)
			}
		})
	}
}

func TestDecode_ListsAtLimit(t *testing.T) {
	full := xdr.ConnectListAllDomainsRet{Domains: make([]xdr.Domain, xdr.MaxDomainList)}
	b, err := full.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	var got xdr.ConnectListAllDomainsRet
	if err := got.Decode(xdr.NewReader(b)); err != nil || len(got.Domains) != xdr.MaxDomainList {
		t.Errorf("decoded %d domains, %v", len(got.Domains), err)
	}
}

func TestDecode_TrailingBytes(t *testing.T) {
	var args xdr.DomainDefineXMLArgs
	r := xdr.NewReader(bytesOf(1, "x\x00\x00\x00", 7, 8))
	if err := args.Decode(r); err != nil {
		t.Fatal(err)
	}
	if r.Rest() != 8 {
		t.Errorf("%d bytes rest, want 8", r.Rest())
	}
	if err := r.End(); !fault.Is(err, fault.Invalid) {
		t.Errorf("end gave %v", err)
	}
}

func TestDecode_BufferReused(t *testing.T) {
	wire := bytesOf(domainBytes, 1, 4, "\x01\x02\x03\x04")
	var args xdr.DomainPinVCPUArgs
	if err := args.Decode(xdr.NewReader(wire)); err != nil {
		t.Fatal(err)
	}
	clear(wire)
	if args.Domain.Name != "web" || args.Domain.UUID != uuid || args.CPUMap[0] != 1 {
		t.Errorf("changed with the buffer: %+v", args)
	}
}
