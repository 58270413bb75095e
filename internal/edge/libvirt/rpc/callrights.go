package rpc

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// callRight is what a call needs by the rules: a line of verbs.table.
type callRight struct {
	// Verbs are all needed, on every object of the call.
	Verbs []authz.Permission
	// NeedsAnyPath: only clients whose rules give "images: any" may make the call.
	NeedsAnyPath bool
	// NeedsEverything: only a rule for all objects grants the verbs.
	NeedsEverything bool
}

// Strongest returns the last verb of the line, which allows the most. Documents and files are checked for it.
func (r callRight) Strongest() authz.Permission { return r.Verbs[len(r.Verbs)-1] }

//go:embed verbs.table
var rightsText string

// CallRights are the rights of every call. A call without an entry is refused.
var CallRights = parseCallRights(rightsText)

func parseCallRights(text string) map[ProcedureKey]callRight {
	found := map[ProcedureKey]callRight{}
	named := map[string]ProcedureKey{}
	var now callRight
	for line := range strings.Lines(text) {
		if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) == "" {
			continue
		}
		if name, is := strings.CutPrefix(line, "program "); is {
			named = procedureKeys(strings.TrimSpace(name))
			continue
		}
		if head, rest, is := strings.Cut(line, ":"); is {
			now, line = parseCallRight(head), rest
		}
		for name := range strings.FieldsSeq(line) {
			key, known := named[name]
			if _, twice := found[key]; !known || twice {
				panic(fmt.Sprintf("verbs.table: %s is no call, or is listed twice", name))
			}
			found[key] = now
		}
	}
	return found
}

func parseCallRight(head string) callRight {
	var r callRight
	for word := range strings.FieldsSeq(head) {
		verb, known := authz.ParsePermission(word)
		switch {
		case word == "everything":
			r.NeedsEverything = true
		case word == "anywhere":
			r.NeedsAnyPath = true
		case word == "open":
			r.Verbs = append(r.Verbs, authz.Open)
		case known:
			r.Verbs = append(r.Verbs, verb)
		default:
			panic("verbs.table: there is no verb " + word)
		}
	}
	return r
}

func procedureKeys(program string) map[string]ProcedureKey {
	programs := map[string]xdr.Program{"remote": xdr.ProgramRemote, "qemu": xdr.ProgramQEMU}
	calls := map[string]ProcedureKey{}
	for p := range xdr.Procedures(programs[program]) {
		if !p.Event {
			calls[p.Name] = ProcedureKey{p.Program, p.Number}
		}
	}
	return calls
}

// guestTextCalls are calls with strings that name things inside the guest, or nothing on the host.
var guestTextCalls = []int32{
	xdr.ProcDomainSetMetadata, xdr.ProcNetworkSetMetadata, xdr.ProcDomainFSTrim, xdr.ProcDomainFSFreeze, xdr.ProcDomainFSThaw,
}

// fileWritingCalls are calls that write to the file that they name, even if it exists.
var fileWritingCalls = []int32{
	xdr.ProcDomainSave, xdr.ProcDomainSaveFlags, xdr.ProcDomainSaveParams, xdr.ProcDomainCoreDump, xdr.ProcDomainCoreDumpWithFormat,
}

// checksTexts reports whether a call's strings can name files of the host, or can be documents.
func (r callRight) checksTexts(p *xdr.Procedure) bool {
	switch r.Strongest() {
	case authz.Start, authz.Define, authz.Change, authz.Save, authz.Migrate, authz.Volumes, authz.Pools, authz.Networks:
		return p.Program != xdr.ProgramRemote || !slices.Contains(guestTextCalls, p.Number)
	case authz.Open, authz.Read, authz.Stop, authz.Console, authz.Agent, authz.Filters, authz.Secrets, authz.Host, authz.Monitor:
	}
	return false
}
