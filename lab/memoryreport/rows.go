package memoryreport

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Policies with a special part in the report.
const (
	subject = "lodge"
	oracle  = "oracle"
)

// kvmAnchors are published policies that run on KVM hosts.
var kvmAnchors = []string{"static", "static+fpr", "mom", "pvestatd"}

// start is how the first line of a file begins.
const start = `{"memory":`

// head says what made the rows.
type head struct {
	Command    string `json:"command"`
	Commit     string `json:"commit"`
	Date       string `json:"date"`
	Took       int    `json:"took"` // s
	Processors int    `json:"processors"`
}

// row is one policy on one trace, with the keys of lodge-sim. The lists have one entry for each factor; Settle and
// Reversals are empty if the trace has no steps or no steady phase.
type row struct {
	Trace      string    `json:"trace"`
	Kind       string    `json:"kind"`
	Policy     string    `json:"policy"`
	Bound      float64   `json:"bound"`
	Factors    []float64 `json:"f"`
	Carried    float64   `json:"carried"`
	P99        []float64 `json:"p99"`
	Worst      []float64 `json:"worst"`
	GuestKills []float64 `json:"oom_guest"`
	HostKills  []float64 `json:"oom_host"`
	Floor      []float64 `json:"floor"`      // guest-seconds below the floor
	Settle     []float64 `json:"settle"`     // s
	Reversals  []float64 `json:"rev_steady"` // per guest-hour
}

// key names one policy on one trace.
type key struct{ trace, policy string }

// study is all rows of a file.
type study struct {
	head
	traces   []string // in the file's order
	kinds    map[string]string
	policies []string
	grids    map[key]*row // evaluations
	common   map[key]*row // runs at the common load
}

// Holds tells whether a file has rows of lodge-sim: its first line says so.
func Holds(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	first := make([]byte, len(start))
	_, err = io.ReadFull(f, first)
	return err == nil && string(first) == start
}

func load(path string) (*study, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read the rows")
	}
	defer f.Close()
	s, err := read(bufio.NewReader(f))
	return s, fault.Wrap(err, fault.Invalid, fault.Host, "cannot read the rows of %s", path)
}

func read(r io.Reader) (*study, error) {
	s := &study{kinds: map[string]string{}, grids: map[key]*row{}, common: map[key]*row{}}
	lines := json.NewDecoder(r)
	var first struct {
		Memory *head `json:"memory"`
	}
	if err := lines.Decode(&first); err != nil {
		return nil, err
	}
	if first.Memory == nil {
		return nil, fault.New(fault.Invalid, fault.Host, "the first line does not begin with %s", start)
	}
	s.head = *first.Memory
	for {
		one := &row{}
		switch err := lines.Decode(one); {
		case errors.Is(err, io.EOF):
			return s, s.complete()
		case err != nil:
			return nil, err
		}
		if err := s.add(one); err != nil {
			return nil, err
		}
	}
}

func (s *study) add(one *row) error {
	n := len(one.Factors)
	for _, column := range [][]float64{one.P99, one.Worst, one.GuestKills, one.HostKills, one.Floor} {
		if n == 0 || len(column) != n || !(one.Bound > 0) {
			return fault.New(fault.Invalid, fault.Host, "the row of %s on %s has not one value for each load", one.Policy, one.Trace)
		}
	}
	if !slices.Contains(s.traces, one.Trace) {
		s.traces = append(s.traces, one.Trace)
		s.kinds[one.Trace] = one.Kind
	}
	if !slices.Contains(s.policies, one.Policy) {
		s.policies = append(s.policies, one.Policy)
	}
	rows := s.grids
	if n == 1 {
		rows = s.common
	}
	k := key{one.Trace, one.Policy}
	if rows[k] != nil {
		return fault.New(fault.Invalid, fault.Host, "%s has two rows on trace %s; traces need different names", one.Policy, one.Trace)
	}
	rows[k] = one
	return nil
}

// complete refuses files that lack an evaluation.
func (s *study) complete() error {
	wanted := append([]string{subject, oracle}, kvmAnchors...)
	for _, policy := range append(wanted, s.policies...) {
		for _, trace := range s.traces {
			if s.grids[key{trace, policy}] == nil {
				return fault.New(fault.Invalid, fault.Host, "%s has no evaluation on trace %s", policy, trace)
			}
		}
	}
	if len(s.traces) == 0 {
		return fault.New(fault.Invalid, fault.Host, "there are no rows")
	}
	return nil
}

// called is a trace's name for readers: that in the trace, and its kind.
func (s *study) called(trace string) string {
	if s.kinds[trace] == trace {
		return trace
	}
	return trace + " " + s.kinds[trace]
}

// seed is what the names of traces of one generator's run begin with.
func seed(trace string) string { return strings.TrimRight(trace, "0123456789") }

// seeds are those of all traces, in the file's order.
func (s *study) seeds() (all []string) {
	for _, trace := range s.traces {
		if !slices.Contains(all, seed(trace)) {
			all = append(all, seed(trace))
		}
	}
	return all
}

// tracesOf are the traces of one seed.
func (s *study) tracesOf(of string) []string {
	return slices.DeleteFunc(slices.Clone(s.traces), func(trace string) bool { return seed(trace) != of })
}
