package rpc

import (
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// StringValue returns an optional string of the wire, or "". OptionalString is its inverse.
func StringValue(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// NULTerminated returns a string for fields that clients read as a NUL-terminated array of bytes.
func NULTerminated(text string) []byte { return append([]byte(text), 0) }

// MatchesFilter reports whether an object passes a pair of filter flags: one for objects with a
// property, one for objects without. With neither flag, and with both, every object passes.
func MatchesFilter(flags, with, without uint32, has bool) bool {
	switch flags & (with | without) {
	case with:
		return has
	case without:
		return !has
	}
	return true
}

// TruncateList shortens a list to the number of items that the client has room for.
func TruncateList[T any](names *[]T, room int32) error {
	if room < 0 {
		return fault.New(fault.Invalid, fault.Call, "a client cannot have room for %d items", room)
	}
	*names = (*names)[:min(len(*names), int(room))]
	return nil
}

// ParamList builds a list of typed parameters, of at most Max.
type ParamList struct {
	List []xdr.TypedParam
	Max  int
}

// Add appends a parameter; a full list stays as it is.
func (p *ParamList) Add(name string, v xdr.TypedValue) {
	if len(p.List) < p.Max {
		p.List = append(p.List, xdr.TypedParam{Field: name, Value: v})
	}
}

// AddUint64 adds an unsigned 64-bit number (VIR_TYPED_PARAM_ULLONG).
func (p *ParamList) AddUint64(name string, v uint64) { p.Add(name, xdr.Uint64(v)) }

// AddCount adds a number of items, as an unsigned 32-bit number (VIR_TYPED_PARAM_UINT).
func (p *ParamList) AddCount(name string, n int) { p.Add(name, xdr.Uint(uint32(n))) }

// AddString adds a string, unless it is empty.
func (p *ParamList) AddString(name, v string) {
	if v != "" {
		p.Add(name, xdr.String(v))
	}
}

// CheckParamNames refuses parameters that are not known, and those that are named twice.
func CheckParamNames(params []xdr.TypedParam, known func(name string) bool) error {
	named := map[string]bool{}
	for _, p := range params {
		switch {
		case !known(p.Field):
			return fault.New(fault.Invalid, fault.Call, "parameter '%s' not supported", p.Field)
		case named[p.Field]:
			return fault.New(fault.Invalid, fault.Call, "parameter '%s' occurs multiple times", p.Field)
		}
		named[p.Field] = true
	}
	return nil
}

// ParamsOrCount serves getters of typed parameters, which clients call twice: with room for none
// they get the number of parameters, and then with that room the parameters.
func ParamsOrCount(params []xdr.TypedParam, room int32) ([]xdr.TypedParam, int32, error) {
	if room == 0 {
		return nil, int32(len(params)), nil
	}
	err := TruncateList(&params, room)
	return params, int32(len(params)), err
}
