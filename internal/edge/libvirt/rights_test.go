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

// TestEveryCallHasItsRight asks for a place in verbs.table for every call of both
// programs, and that none which a read-only connection is refused passes as reading.
// Promise: A2
func TestEveryCallHasItsRight(t *testing.T) {
	// Questions that libvirt refuses to readers, because they start programs or
	// ask the guest for them.
	harmless := map[string]bool{
		"CONNECT_GET_DOMAIN_CAPABILITIES": true, "CONNECT_COMPARE_HYPERVISOR_CPU": true, "CONNECT_BASELINE_HYPERVISOR_CPU": true,
		"DOMAIN_MIGRATE_GET_MAX_SPEED": true, "DOMAIN_GET_LAUNCH_SECURITY_INFO": true,
		"DOMAIN_GET_VCPUS_FLAGS": true, "DOMAIN_INTERFACE_ADDRESSES": true, // with more for what asks the agent
	}
	for _, program := range []xdr.Program{xdr.ProgramRemote, xdr.ProgramQEMU} {
		for p := range xdr.Procedures(program) {
			if p.Event {
				continue
			}
			r, known := rpc.CallRights[rpc.ProcedureKey{Program: p.Program, Number: p.Number}]
			if !known || len(r.Verbs) == 0 {
				t.Errorf("%s stands nowhere in verbs.table", p.Name)
				continue
			}
			if reads := r.Strongest() <= authz.Read; reads && p.RefusedReadOnly && !harmless[p.Name] {
				t.Errorf("%s is refused on a read-only connection, and takes no more than %q", p.Name, r.Strongest())
			}
		}
	}
}

// TestDocumentsAreFoundAmongTexts: one that is taken for none is judged by no rule.
// Promise: A1
func TestDocumentsAreFoundAmongTexts(t *testing.T) {
	for _, text := range []string{"<domain/>", "\ufeff\n<domain/>", "\u00a0<domain/>", "&#32;<domain/>"} {
		found := false
		brought := &xdr.DomainSaveParamsArgs{Params: []xdr.TypedParam{{Field: "dxml", Value: xdr.String(text)}}}
		rpc.EachText(reflect.ValueOf(brought).Elem(), "", func(field, text string) bool {
			found = rpc.IsDocument(field, text)
			return !found
		})
		if !found {
			t.Errorf("%q is not judged", text)
		}
	}
}

// TestEveryChangeIsOfSomething: rules for some objects give a call where it is about one of them.
// One that names none, in an argument or a document, would be given by a rule about any other.
// Promise: A2
func TestEveryChangeIsOfSomething(t *testing.T) {
	for key, route := range newTable() {
		r, p := rpc.CallRights[key], route.Proc
		whole := slices.Contains([]authz.Permission{authz.Filters, authz.Secrets, authz.Host, authz.Monitor}, r.Strongest()) // never given for some
		if r.Strongest() <= authz.Read || whole || r.NeedsEverything || r.NeedsAnyPath {
			continue
		}
		args, document := reflect.TypeOf(rpc.ZeroArgs(p)).Elem(), false
		for field := range args.Fields() {
			document = document || field.Name == "XML"
		}
		if !rpc.NamesObject(args) && !document {
			t.Errorf("%s takes %q, and says of nothing that rules know", p.Name, r.Strongest())
		}
	}
}

// A client on a read-only socket tries to change something.
// Promise: A5
func TestARefusalToAReaderIsInTheAudit(t *testing.T) {
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

// TestADefinitionThatIsSavedTakesItsRight: a call that saves a guest defines it, too, where it brings
// a definition.
func TestADefinitionThatIsSavedTakesItsRight(t *testing.T) {
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
			t.Errorf("%+v takes it: %v", c.args, got)
		}
		// What the definition names is held to where definitions may name it.
		if got := (&rpc.Session{}).DocumentVerb(p, authz.Save, c.args) == authz.Define; got != c.want {
			t.Errorf("%+v is held to the places of define: %v", c.args, got)
		}
	}
	if r := rpc.CallRights[rpc.ProcedureKey{Program: xdr.ProgramRemote, Number: xdr.ProcDomainManagedSaveDefineXML}]; !slices.Contains(r.Verbs, authz.Define) {
		t.Errorf("a managed save is given another definition by %q", r.Verbs)
	}
}

// TestWhatACallLosesTakesItsRight: a flag has a call do, or tell, more than its verb says.
// Promise: A1
func TestWhatACallLosesTakesItsRight(t *testing.T) {
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
			t.Errorf("call %d with %+v takes %v besides, and not %v", c.number, c.args, got, c.want)
		}
	}
}
