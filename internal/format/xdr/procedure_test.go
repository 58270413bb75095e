package xdr_test

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

func TestProcedures_Complete(t *testing.T) {
	var calls, events, refused, priority int
	for p := range xdr.Procedures(xdr.ProgramRemote) {
		switch {
		case p.Event:
			events++
		default:
			calls++
		}
		if p.RefusedReadOnly {
			refused++
		}
		if p.Priority {
			priority++
		}
		if got := xdr.Lookup(p.Program, p.Number); got != p {
			t.Errorf("%s: looked up %v", p.Name, got)
		}
	}
	if calls != 400 || events != 53 || refused != 203 || priority != 187 {
		t.Errorf("%d calls, %d events, %d refused, %d with priority; want 400, 53, 203, 187", calls, events, refused, priority)
	}
}

func TestLookup(t *testing.T) {
	tests := []struct {
		program xdr.Program
		number  int32
		want    string
	}{
		{xdr.ProgramRemote, xdr.ProcDomainDefineXML, "DOMAIN_DEFINE_XML"},
		{xdr.ProgramRemote, xdr.ProcDomainEventNICMACChange, "DOMAIN_EVENT_NIC_MAC_CHANGE"},
		{xdr.ProgramQEMU, xdr.ProcQEMUDomainMonitorCommandWithFiles, "DOMAIN_MONITOR_COMMAND_WITH_FILES"},
		{xdr.ProgramRemote, 0, ""},
		{xdr.ProgramRemote, -1, ""},
		{xdr.ProgramRemote, 454, ""},
		{xdr.ProgramQEMU, 8, ""},
		{xdr.ProgramLXC, 1, ""},
		{xdr.Program(7), 1, ""},
	}
	for _, tt := range tests {
		p := xdr.Lookup(tt.program, tt.number)
		switch {
		case p == nil && tt.want != "":
			t.Errorf("%v %d: not found", tt.program, tt.number)
		case p != nil && (p.Name != tt.want || p.Program != tt.program || p.Number != tt.number):
			t.Errorf("%v %d: found %v %d %s, want %q", tt.program, tt.number, p.Program, p.Number, p.Name, tt.want)
		}
	}
}

func TestProcedure_StreamsAndDescriptors(t *testing.T) {
	streams := map[string]xdr.Stream{
		"DOMAIN_OPEN_CONSOLE": xdr.StreamBoth, "DOMAIN_OPEN_CHANNEL": xdr.StreamBoth,
		"STORAGE_VOL_DOWNLOAD": xdr.StreamDown, "DOMAIN_SCREENSHOT": xdr.StreamDown,
		"STORAGE_VOL_UPLOAD": xdr.StreamUp, "DOMAIN_MIGRATE_PREPARE_TUNNEL": xdr.StreamUp,
		"DOMAIN_MIGRATE_PREPARE_TUNNEL3": xdr.StreamUp, "DOMAIN_MIGRATE_PREPARE_TUNNEL3_PARAMS": xdr.StreamUp,
	}
	fds := map[string]xdr.FDs{
		"DOMAIN_OPEN_GRAPHICS": xdr.FDsIn, "DOMAIN_CREATE_XML_WITH_FILES": xdr.FDsIn,
		"DOMAIN_CREATE_WITH_FILES": xdr.FDsIn, "DOMAIN_FD_ASSOCIATE": xdr.FDsIn, "DOMAIN_OPEN_GRAPHICS_FD": xdr.FDsOut,
	}
	for p := range xdr.Procedures(xdr.ProgramRemote) {
		if p.Stream != streams[p.Name] {
			t.Errorf("%s: stream %d, want %d", p.Name, p.Stream, streams[p.Name])
		}
		if p.FDs != fds[p.Name] {
			t.Errorf("%s: descriptors %d, want %d", p.Name, p.FDs, fds[p.Name])
		}
	}
}

func TestRefusesReadOnly_ByArguments(t *testing.T) {
	tests := map[string]struct {
		number int32
		args   xdr.Message
		want   bool
	}{
		"destroy":                    {xdr.ProcDomainDestroy, &xdr.DomainDestroyArgs{}, true},
		"info":                       {xdr.ProcDomainGetInfo, &xdr.DomainGetInfoArgs{}, false},
		"look up by UUID":            {xdr.ProcDomainLookupByUUID, &xdr.DomainLookupByUUIDArgs{}, false},
		"no arguments":               {xdr.ProcNodeGetInfo, nil, false},
		"vcpus":                      {xdr.ProcDomainGetVCPUsFlags, &xdr.DomainGetVCPUsFlagsArgs{Flags: 5}, false},
		"vcpus as the guest has":     {xdr.ProcDomainGetVCPUsFlags, &xdr.DomainGetVCPUsFlagsArgs{Flags: 8}, true},
		"shut down, same layout":     {xdr.ProcDomainShutdownFlags, &xdr.DomainShutdownFlagsArgs{}, true},
		"addresses by lease":         {xdr.ProcDomainInterfaceAddresses, &xdr.DomainInterfaceAddressesArgs{Source: 0}, false},
		"addresses by agent":         {xdr.ProcDomainInterfaceAddresses, &xdr.DomainInterfaceAddressesArgs{Source: 1}, true},
		"addresses by neighbourhood": {xdr.ProcDomainInterfaceAddresses, &xdr.DomainInterfaceAddressesArgs{Source: 2}, false},
	}
	for name, tt := range tests {
		if got := xdr.Lookup(xdr.ProgramRemote, tt.number).RefusesReadOnly(tt.args); got != tt.want {
			t.Errorf("%s: refused %v, want %v", name, got, tt.want)
		}
	}
}
