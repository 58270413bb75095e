package store

import (
	"fmt"
	"runtime/debug"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// guarded does something with bbolt. A page of its map that cannot be read, which
// the kernel answers with a signal, and an assertion of its own that fails end
// what was asked for and not the daemon. What bbolt holds cannot be trusted after
// that: panicked says so.
func guarded(do func() error) (panicked bool, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			panicked, err = true, fault.New(fault.Failed, fault.Store, "the file is damaged or its disk cannot be read (%s)", fmt.Sprint(p))
		}
	}()
	return false, do()
}
