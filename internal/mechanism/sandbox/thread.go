package sandbox

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// onOwnThread runs do on a thread that does nothing else and ends after it: do may
// change the thread's namespaces, root and privileges. What do starts has the
// thread as its parent, and the thread stays until stay is closed; nil: it goes
// at once.
func onOwnThread(do func() (stay <-chan struct{}, err error)) error {
	result := make(chan error, 1)
	run := func() {
		stay, err := do()
		result <- err
		if stay != nil {
			<-stay
		}
	}
	go func() {
		runtime.LockOSThread() // and never unlocked: the runtime then ends the thread
		if unix.Gettid() != os.Getpid() {
			run()
			return
		}
		// The first thread cannot end, and is what /proc/self tells of. It is held
		// until another one has been found.
		defer runtime.UnlockOSThread()
		found := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(found)
			run()
		}()
		<-found
	}()
	return <-result
}
