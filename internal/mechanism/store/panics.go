package store

import (
	"fmt"
	"runtime/debug"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// recoverPanics calls bbolt and contains its panics. Two things end the call and not the
// daemon: a mapped page that cannot be read (the kernel sends SIGBUS) and a failed
// assertion of bbolt. After either bbolt's state cannot be trusted: panicked is
// true then.
func recoverPanics(do func() error) (panicked bool, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			panicked, err = true, fault.New(fault.Failed, fault.Store, "the file is damaged or its disk cannot be read (%s)", fmt.Sprint(p))
		}
	}()
	return false, do()
}
