package sandbox

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// onOwnThread runs do on a thread that does nothing else and ends afterwards, so do may change the
// thread's namespaces, root directory and privileges. Processes that do starts have the thread as their
// parent. The thread stays until the channel stay is closed; with a nil stay it ends at once.
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
		runtime.LockOSThread() // not unlocked, so the runtime ends the thread
		if unix.Gettid() != os.Getpid() {
			run()
			return
		}
		// The main thread cannot end, and /proc/self describes it. Hold it until
		// another thread has taken the work.
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
