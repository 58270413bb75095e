package rpc

import (
	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// paramStringOkay is a bit that clients set in the flags of calls that return
// typed parameters. It asks for nothing that is not done anyway.
const paramStringOkay = 4

// CheckFlags refuses flags that a call does not know. A flag that is ignored
// would be a promise that is not kept.
func CheckFlags(call string, flags, known uint32) error {
	if unknown := flags &^ known; unknown != 0 {
		return fault.New(fault.Invalid, fault.Call, "unsupported flags (0x%x) in function %s", unknown, FunctionName(call))
	}
	return nil
}

// ParamFlags is CheckFlags for the getters of typed parameters, where clients
// set one bit more. It returns the flags without that bit.
func ParamFlags(call string, flags, known uint32) (uint32, error) {
	flags &^= paramStringOkay
	return flags, CheckFlags(call, flags, known)
}
