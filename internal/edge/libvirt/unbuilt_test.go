package libvirt

import (
	"regexp"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// The error for a call that is not implemented names the command, not the protocol's number.
func TestErrNotBuilt_NamesAlternative(t *testing.T) {
	constant := regexp.MustCompile(`[A-Z]{3,}_[A-Z]`)
	served := newTable()
	for _, program := range []xdr.Program{xdr.ProgramRemote, xdr.ProgramQEMU} {
		for p := range xdr.Procedures(program) {
			if p.Event || served[rpc.ProcedureKey{Program: program, Number: p.Number}] != nil {
				continue
			}
			if _, ok := rpc.UnbuiltCommandOf(p.Name); !ok {
				t.Errorf("%s is not built, and has no entry", p.Name)
			}
			err := rpc.ErrNotBuilt(p)
			if rpc.CodeOf(err) != rpc.CodeNoSupport || constant.MatchString(err.Error()) {
				t.Errorf("%s: code %d, %v", p.Name, rpc.CodeOf(err), err)
			}
		}
	}
}

// Calls that are implemented are not reported as missing.
func TestUnbuiltCommands_ExcludeServedCalls(t *testing.T) {
	served := map[string]bool{}
	table := newTable()
	for _, program := range []xdr.Program{xdr.ProgramRemote, xdr.ProgramQEMU} {
		for p := range xdr.Procedures(program) {
			served[p.Name] = served[p.Name] || table[rpc.ProcedureKey{Program: program, Number: p.Number}] != nil
		}
	}
	for _, a := range rpc.UnbuiltCommands {
		for call := range strings.FieldsSeq(a.Calls) {
			if served[call] {
				t.Errorf("%s is served, and %q is listed as not built", call, a.Command)
			}
		}
	}
}

// If several commands make a call, the error names all of them.
func TestErrNotBuilt_NamesEachCommand(t *testing.T) {
	for call, want := range map[string]string{
		"DOMAIN_BLOCK_REBASE":        "virsh blockcopy or blockpull --base", // virsh blockcopy --dest without --xml
		"DOMAIN_BLOCK_PULL":          "virsh blockpull",
		"DOMAIN_BLOCK_COPY":          "virsh blockcopy",
		"DOMAIN_SEND_PROCESS_SIGNAL": "virsh send-process-signal",
	} {
		if a, _ := rpc.UnbuiltCommandOf(call); a.Command != want {
			t.Errorf("%s is %q, want %q", call, a.Command, want)
		}
	}
}

func TestFunctionName_LibvirtSpelling(t *testing.T) {
	for call, want := range map[string]string{
		"DOMAIN_GET_STATE":            "virDomainGetState",
		"DOMAIN_CREATE_XML":           "virDomainCreateXML",
		"CONNECT_GET_CPU_MODEL_NAMES": "virConnectGetCPUModelNames",
		"NWFILTER_LOOKUP_BY_UUID":     "virNWFilterLookupByUUID",
	} {
		if got := rpc.FunctionName(call); got != want {
			t.Errorf("%s is %s, want %s", call, got, want)
		}
	}
}
