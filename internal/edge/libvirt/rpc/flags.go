package rpc

import (
	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// paramStringOkay is a bit that clients set in the flags of calls that return typed parameters
// (VIR_TYPED_PARAM_STRING_OKAY). It has no effect here: strings are always sent.
const paramStringOkay = 4

// CheckFlags refuses flags that a call does not know: a client must not believe that
// an ignored flag had its effect.
func CheckFlags(call string, flags, known uint32) error {
	if unknown := flags &^ known; unknown != 0 {
		return fault.New(fault.Invalid, fault.Call, "unsupported flags (0x%x) in function %s", unknown, FunctionName(call))
	}
	return nil
}

// ParamFlags is CheckFlags for the getters of typed parameters. It accepts paramStringOkay
// too, and returns the flags without that bit.
func ParamFlags(call string, flags, known uint32) (uint32, error) {
	flags &^= paramStringOkay
	return flags, CheckFlags(call, flags, known)
}
