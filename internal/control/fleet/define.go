package fleet

import (
	"context"
	"fmt"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// maxDocuments bounds the definitions of one request.
const maxDocuments = 65536

// define defines one guest from each document. Two documents with one name are refused before any is defined.
func (f *Fleet) define(ctx context.Context, sc scope.Scope, q Request, plan func(Plan), report func(Result)) (Summary, error) {
	if len(q.Documents) > maxDocuments {
		return Summary{}, fault.New(fault.Invalid, fault.Call, "%d documents are too many for one request; at most %d", len(q.Documents), maxDocuments)
	}
	names, uuids := make([]string, len(q.Documents)), make([]string, len(q.Documents))
	seen := map[string]int{}
	for i, doc := range q.Documents {
		root, err := xmltree.Parse(doc)
		if err != nil || root.Child("name").Text() == "" {
			names[i] = fmt.Sprintf("document %d", i+1) // its turn reports what is wrong with it
			continue
		}
		names[i], uuids[i] = root.Child("name").Text(), root.Child("uuid").Text()
		if before, twice := seen[names[i]]; twice {
			return Summary{}, fault.New(fault.Invalid, fault.XML, "documents %d and %d both define domain %q", before+1, i+1, names[i])
		}
		seen[names[i]] = i
	}
	entries := orderGuests(names, nil, unordered)
	s := &schedule{
		log: f.log, order: entries, names: names, parallel: q.Parallel, keepGoing: q.KeepGoing,
		do: func(ctx context.Context, i int) Result {
			r, uuid := f.defineOne(ctx, sc, q, names[i], q.Documents[i])
			if uuid != "" {
				uuids[i] = uuid
			}
			return r
		},
	}
	return s.runAndCount(ctx, plan, func(i int, r Result) {
		r.Name, r.UUID = names[i], uuids[i]
		report(r)
	}), nil
}

// defineOne defines one guest. Its result has the UUID, which the document may lack.
func (f *Fleet) defineOne(ctx context.Context, sc scope.Scope, q Request, name, doc string) (Result, string) {
	if q.AdmitDocument != nil {
		var err error
		if sc, err = q.AdmitDocument(sc, doc); err != nil {
			return Result{Outcome: Failed, Error: err}, ""
		}
	}
	if q.DryRun {
		def, err := domainxml.Parse(doc, domainxml.Options{Validate: q.Options.Validate, Submitted: true})
		if err == nil {
			err = f.guests.ReserveQuota(ctx, sc, def, doc)
		}
		if err != nil {
			return Result{Outcome: Failed, Error: err}, ""
		}
		return Result{Outcome: Would}, ""
	}
	ctx = context.WithoutCancel(ctx)
	if q.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, q.Timeout, fault.New(fault.Timeout, fault.Domain, "define of domain %q did not end within %v", name, q.Timeout))
		defer stop()
	}
	var before *guest.View
	if g, err := f.guests.ByName(name); err == nil {
		before = g.View()
	}
	g, err := guest.Define(ctx, f.guests, sc, doc, q.Options.Validate)
	if err != nil {
		return Result{Outcome: Failed, Error: err}, ""
	}
	r := Result{Outcome: Done}
	if before != nil && equalDefinitions(before.Inactive, g.View().Inactive) {
		r.Outcome = Unchanged
	}
	notes := f.guests.Clashes(g.View(), q.seesGuest(f))
	if before == nil {
		for _, d := range provision.Decisions(g.View()) {
			notes = append(notes, d.String())
		}
	}
	r.Note = strings.Join(notes, "; ")
	return r, g.UUID
}

// seesGuest returns whether the request may affect a guest.
func (q *Request) seesGuest(f *Fleet) func(*guest.Guest) bool {
	if q.Sees == nil {
		return nil
	}
	return func(g *guest.Guest) bool { return q.Sees(f.MemberOf(g)) }
}

// equalDefinitions compares definitions by their XML.
func equalDefinitions(a, b *domain.Definition) bool {
	if a == nil || b == nil {
		return false
	}
	was, err := domainxml.Format(a, domainxml.Style{Secure: true})
	if err != nil {
		return false
	}
	is, err := domainxml.Format(b, domainxml.Style{Secure: true})
	return err == nil && was == is
}
