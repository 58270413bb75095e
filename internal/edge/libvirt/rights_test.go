package libvirt

import (
	"bytes"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// TestRights_EveryCall: every call of both programs is in verbs.table, and a call that is
// refused on a read-only connection needs more than the right to read.
// Promise: A2
func TestRights_EveryCall(t *testing.T) {
	// Queries that libvirt refuses on read-only connections, because they start programs or
	// ask the guest's agent.
	harmless := map[string]bool{
		"CONNECT_GET_DOMAIN_CAPABILITIES": true, "CONNECT_COMPARE_HYPERVISOR_CPU": true, "CONNECT_BASELINE_HYPERVISOR_CPU": true,
		"DOMAIN_MIGRATE_GET_MAX_SPEED": true, "DOMAIN_GET_LAUNCH_SECURITY_INFO": true,
		"DOMAIN_GET_VCPUS_FLAGS": true, "DOMAIN_INTERFACE_ADDRESSES": true, // need more for the flags that ask the agent
	}
	for _, program := range []xdr.Program{xdr.ProgramRemote, xdr.ProgramQEMU} {
		for p := range xdr.Procedures(program) {
			if p.Event {
				continue
			}
			r, known := rpc.CallRights[rpc.ProcedureKey{Program: p.Program, Number: p.Number}]
			if !known || len(r.Verbs) == 0 {
				t.Errorf("%s is not in verbs.table", p.Name)
				continue
			}
			if reads := r.Strongest() <= authz.Read; reads && p.RefusedReadOnly && !harmless[p.Name] {
				t.Errorf("%s is refused on a read-only connection, and needs only %q", p.Name, r.Strongest())
			}
		}
	}
}

// TestIsDocument_TextsOfCalls: every document is recognized, because others are not checked against the rules.
// Promise: A1
func TestIsDocument_TextsOfCalls(t *testing.T) {
	for _, text := range []string{"<domain/>", "\ufeff\n<domain/>", "\u00a0<domain/>", "&#32;<domain/>"} {
		found := false
		brought := &xdr.DomainSaveParamsArgs{Params: []xdr.TypedParam{{Field: "dxml", Value: xdr.String(text)}}}
		rpc.EachText(reflect.ValueOf(brought).Elem(), "", func(field, text string) bool {
			found = rpc.IsDocument(field, text)
			return !found
		})
		if !found {
			t.Errorf("%q is not recognized", text)
		}
	}
}

// TestRights_ChangesNameObjects: a rule for some objects allows calls that name one of them. A changing
// call that names none, in an argument or a document, would be allowed by any such rule.
// Promise: A2
func TestRights_ChangesNameObjects(t *testing.T) {
	for key, route := range newTable() {
		r, p := rpc.CallRights[key], route.Proc
		whole := slices.Contains([]authz.Permission{authz.Filters, authz.Secrets, authz.Host, authz.Monitor}, r.Strongest()) // only rules for everything grant these
		if r.Strongest() <= authz.Read || whole || r.NeedsEverything || r.NeedsAnyPath {
			continue
		}
		args, document := reflect.TypeOf(rpc.ZeroArgs(p)).Elem(), false
		for field := range args.Fields() {
			document = document || field.Name == "XML"
		}
		if !rpc.NamesObject(args) && !document {
			t.Errorf("%s needs %q, and names no object of the rules", p.Name, r.Strongest())
		}
	}
}

// A client on a read-only socket tries to change something.
// Promise: A5
func TestAudit_ReadOnlyRefusal(t *testing.T) {
	var log bytes.Buffer
	audit, err := authz.OpenAudit("", slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	h := serve(t, func(s *rpc.Server) { s.Audit = audit })
	h.open("-ro").refused(xdr.ProcDomainCreateXML, &xdr.DomainCreateXMLArgs{}, rpc.CodeOperationDenied)
	if err := audit.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "call=DOMAIN_CREATE_XML verb=define result=denied") {
		t.Errorf("the audit has %q", log.String())
	}
}

// TestRights_SaveWithDefinition: a call that saves a guest with another definition also needs the right to
// define it.
func TestRights_SaveWithDefinition(t *testing.T) {
	text := "<domain/>"
	for _, c := range []struct {
		number int32
		args   xdr.Message
		want   bool
	}{
		{xdr.ProcDomainSaveFlags, &xdr.DomainSaveFlagsArgs{To: "/x"}, false},
		{xdr.ProcDomainSaveFlags, &xdr.DomainSaveFlagsArgs{To: "/x", DestXML: &text}, true},
		{xdr.ProcDomainSaveParams, &xdr.DomainSaveParamsArgs{Params: []xdr.TypedParam{{Field: "file", Value: xdr.String("/x")}}}, false},
		{xdr.ProcDomainSaveParams, &xdr.DomainSaveParamsArgs{Params: []xdr.TypedParam{{Field: "dxml", Value: xdr.String(text)}}}, true},
	} {
		p := &xdr.Procedure{Program: xdr.ProgramRemote, Number: c.number}
		if got := slices.Contains((&rpc.Session{}).VerbsByArgs(p, c.args), authz.Define); got != c.want {
			t.Errorf("%+v needs define: %v", c.args, got)
		}
		// The files in the definition are checked by the path limits of define.
		if got := (&rpc.Session{}).DocumentVerb(p, authz.Save, c.args) == authz.Define; got != c.want {
			t.Errorf("%+v is checked by the path limits of define: %v", c.args, got)
		}
	}
	if r := rpc.CallRights[rpc.ProcedureKey{Program: xdr.ProgramRemote, Number: xdr.ProcDomainManagedSaveDefineXML}]; !slices.Contains(r.Verbs, authz.Define) {
		t.Errorf("%q suffice to give a managed save another definition", r.Verbs)
	}
}

// TestRights_FlagsNeedMore: with some flags a call does or returns more, and needs more verbs.
// Promise: A1
func TestRights_FlagsNeedMore(t *testing.T) {
	for _, c := range []struct {
		number int32
		args   xdr.Message
		want   []authz.Permission
	}{
		{xdr.ProcDomainCreateWithFlags, &xdr.WithDomainFlags{Flags: rpc.StartPaused | rpc.StartBypassCache}, nil},
		{xdr.ProcDomainCreateWithFlags, &xdr.WithDomainFlags{Flags: rpc.StartForceBoot}, []authz.Permission{authz.Save}},
		{xdr.ProcDomainCreateWithFiles, &xdr.WithDomainFlags{Flags: rpc.StartForceBoot | rpc.StartResetNVRAM}, []authz.Permission{authz.Save, authz.Define}},
		{xdr.ProcDomainCreateWithFlags, &xdr.WithDomainFlags{Flags: rpc.StartAutoDestroy}, []authz.Permission{authz.Stop}},
		{xdr.ProcDomainCreateXML, &xdr.WithXMLFlags{Flags: rpc.StartAutoDestroy}, []authz.Permission{authz.Stop}},
		{xdr.ProcDomainCreateXMLWithFiles, &xdr.WithXMLFlags{Flags: rpc.StartAutoDestroy}, []authz.Permission{authz.Stop}},
		{xdr.ProcSecretDefineXML, &xdr.WithXMLFlags{Flags: rpc.StartAutoDestroy}, nil},
		{xdr.ProcDomainGetXMLDesc, &xdr.WithDomainFlags{}, nil},
		{xdr.ProcDomainGetXMLDesc, &xdr.WithDomainFlags{Flags: rpc.XMLSecure}, []authz.Permission{authz.Define}},
		{xdr.ProcDomainGetXMLDesc, &xdr.WithDomainFlags{Flags: rpc.XMLMigratable}, []authz.Permission{authz.Define}},
		{xdr.ProcDomainManagedSaveGetXMLDesc, &xdr.WithDomainFlags{Flags: rpc.XMLSecure}, []authz.Permission{authz.Define}},
		{xdr.ProcDomainSnapshotGetXMLDesc, &xdr.WithSnapshotFlags{Flags: rpc.XMLSecure}, []authz.Permission{authz.Define}},
		{xdr.ProcDomainCheckpointGetXMLDesc, &xdr.WithCheckpointFlags{Flags: rpc.XMLSecure}, []authz.Permission{authz.Define}},
		{xdr.ProcDomainSetVCPUsFlags, &xdr.DomainSetVCPUsFlagsArgs{Flags: rpc.VCPUGuest}, []authz.Permission{authz.Agent}},
		{xdr.ProcDomainGetVCPUsFlags, &xdr.DomainGetVCPUsFlagsArgs{Flags: rpc.VCPUGuest}, []authz.Permission{authz.Agent}},
		{xdr.ProcDomainGetVCPUsFlags, &xdr.DomainGetVCPUsFlagsArgs{}, nil},
		{xdr.ProcDomainInterfaceAddresses, &xdr.DomainInterfaceAddressesArgs{Source: 1}, []authz.Permission{authz.Agent}},
		{xdr.ProcDomainInterfaceAddresses, &xdr.DomainInterfaceAddressesArgs{}, nil},
		{xdr.ProcDomainManagedSave, &xdr.WithDomainFlags{Flags: rpc.StartForceBoot}, nil}, // another flag, of another call
		{xdr.ProcDomainCoreDump, &xdr.DomainCoreDumpArgs{Flags: rpc.DumpLive | rpc.DumpMemoryOnly}, nil},
		{xdr.ProcDomainCoreDump, &xdr.DomainCoreDumpArgs{Flags: rpc.DumpCrash}, []authz.Permission{authz.Stop}},
		{xdr.ProcDomainCoreDumpWithFormat, &xdr.DomainCoreDumpWithFormatArgs{Flags: rpc.DumpReset}, []authz.Permission{authz.Stop}},
	} {
		p := &xdr.Procedure{Program: xdr.ProgramRemote, Number: c.number}
		if got := (&rpc.Session{}).VerbsByArgs(p, c.args); !slices.Equal(got, c.want) {
			t.Errorf("call %d with %+v also needs %v, want %v", c.number, c.args, got, c.want)
		}
	}
}
