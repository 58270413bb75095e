package rpc

import (
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// Text gives an optional text, or "".
func Text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// ZeroEnded is a text as clients take it that have it as bytes.
func ZeroEnded(text string) []byte { return append([]byte(text), 0) }

// Either reports whether a pair of filter flags admits an object. The object has (so) or
// lacks a property. With neither flag, and with both, every object passes.
func Either(flags, ifSo, ifNot uint32, so bool) bool {
	switch flags & (ifSo | ifNot) {
	case ifSo:
		return so
	case ifNot:
		return !so
	}
	return true
}

// OrEmpty is the inverse of optional.
func OrEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// AtMost cuts a list of names to the length that the client has room for.
func AtMost[T any](names *[]T, room int32) error {
	if room < 0 {
		return fault.New(fault.Invalid, fault.Call, "there cannot be room for %d items", room)
	}
	*names = (*names)[:min(len(*names), int(room))]
	return nil
}

// ParamList is a list of named values under construction, up to a bound.
type ParamList struct {
	List []xdr.TypedParam
	Most int
}

// Add appends a parameter, as long as the list has fewer than most.
func (p *ParamList) Add(name string, v xdr.TypedValue) {
	if len(p.List) < p.Most {
		p.List = append(p.List, xdr.TypedParam{Field: name, Value: v})
	}
}

// Number adds an unsigned 64-bit number.
func (p *ParamList) Number(name string, v uint64) { p.Add(name, xdr.Uint64(v)) }

// Count adds a number of things, as an unsigned 32-bit number.
func (p *ParamList) Count(name string, n int) { p.Add(name, xdr.Uint(uint32(n))) }

// Text adds a text; it leaves out an unknown one.
func (p *ParamList) Text(name, v string) {
	if v != "" {
		p.Add(name, xdr.String(v))
	}
}

// TwoPhase serves getters of typed parameters. Clients call them twice: without room
// they get the number of parameters, then they come with room for the parameters.
func TwoPhase(params []xdr.TypedParam, room int32) ([]xdr.TypedParam, int32, error) {
	if room == 0 {
		return nil, int32(len(params)), nil
	}
	err := AtMost(&params, room)
	return params, int32(len(params)), err
}
