package libvirt

import (
	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// paramStringOkay is a bit that clients set in the flags of calls that return
// typed parameters. It asks for nothing that is not done anyway.
const paramStringOkay = 4

// checkFlags refuses flags that a call does not know. A flag that is ignored
// would be a promise that is not kept.
func checkFlags(call string, flags, known uint32) error {
	if unknown := flags &^ known; unknown != 0 {
		return fault.New(fault.Invalid, fault.Call, "unsupported flags (0x%x) in function %s", unknown, functionName(call))
	}
	return nil
}

// paramFlags is checkFlags for the getters of typed parameters, where clients
// set one bit more. It gives the flags without that bit.
func paramFlags(call string, flags, known uint32) (uint32, error) {
	flags &^= paramStringOkay
	return flags, checkFlags(call, flags, known)
}
