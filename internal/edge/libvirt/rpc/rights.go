package rpc

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// right is the permission that a call needs.
type right struct {
	Verbs    []authz.Permission // all of them
	Anywhere bool               // and that files may lie wherever they do
	// Everything says that only rules for everything give it.
	Everything bool
}

// Last is the verb that goes furthest. Documents and files are judged by it.
func (r right) Last() authz.Permission { return r.Verbs[len(r.Verbs)-1] }

//go:embed verbs.table
var rightsText string

// CallRights are the rights of every call. A call without an entry is refused.
var CallRights = readRights(rightsText)

func readRights(text string) map[ProcedureKey]right {
	found := map[ProcedureKey]right{}
	named := map[string]ProcedureKey{}
	var now right
	for line := range strings.Lines(text) {
		if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) == "" {
			continue
		}
		if name, is := strings.CutPrefix(line, "program "); is {
			named = callsOf(strings.TrimSpace(name))
			continue
		}
		if head, rest, is := strings.Cut(line, ":"); is {
			now, line = readRight(head), rest
		}
		for name := range strings.FieldsSeq(line) {
			key, known := named[name]
			if _, twice := found[key]; !known || twice {
				panic(fmt.Sprintf("verbs.table: %s is no call, or stands there twice", name))
			}
			found[key] = now
		}
	}
	return found
}

func readRight(head string) right {
	var r right
	for word := range strings.FieldsSeq(head) {
		verb, known := authz.ParsePermission(word)
		switch {
		case word == "everything":
			r.Everything = true
		case word == "anywhere":
			r.Anywhere = true
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

func callsOf(program string) map[string]ProcedureKey {
	programs := map[string]xdr.Program{"remote": xdr.ProgramRemote, "qemu": xdr.ProgramQEMU}
	calls := map[string]ProcedureKey{}
	for p := range xdr.Procedures(programs[program]) {
		if !p.Event {
			calls[p.Name] = ProcedureKey{p.Program, p.Number}
		}
	}
	return calls
}

// inGuest are calls with texts that name things inside the guest, or nothing on the host.
var inGuest = []int32{
	xdr.ProcDomainSetMetadata, xdr.ProcNetworkSetMetadata, xdr.ProcDomainFSTrim, xdr.ProcDomainFSFreeze, xdr.ProcDomainFSThaw,
}

// writing are calls that write to the file which they name, whatever is there.
var writing = []int32{
	xdr.ProcDomainSave, xdr.ProcDomainSaveFlags, xdr.ProcDomainSaveParams, xdr.ProcDomainCoreDump, xdr.ProcDomainCoreDumpWithFormat,
}

// looksAtTexts says whether a call's texts can name files of the host, or bring documents.
func (r right) looksAtTexts(p *xdr.Procedure) bool {
	switch r.Last() {
	case authz.Start, authz.Define, authz.Change, authz.Save, authz.Migrate, authz.Volumes, authz.Pools, authz.Networks:
		return p.Program != xdr.ProgramRemote || !slices.Contains(inGuest, p.Number)
	case authz.Open, authz.Read, authz.Stop, authz.Console, authz.Agent, authz.Filters, authz.Secrets, authz.Host, authz.Monitor:
	}
	return false
}
