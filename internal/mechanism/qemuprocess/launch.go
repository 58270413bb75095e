package qemuprocess

import (
	"context"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
)

// Spec is what to run. All files in it stay the caller's, to be closed after
// Launch: a listening socket that the daemon keeps open would hide that QEMU
// has gone.
type Spec struct {
	Binary string   // absolute path
	Args   []string // without the name of the program
	Env    []string // all of the environment
	Dir    string   // working directory; "" is the daemon's

	Files []*os.File // become descriptors 3, 4, …; a nil one stays closed
	Log   *os.File   // standard output and error; nil throws them away

	Credential *syscall.Credential // identity to run as; nil keeps the daemon's

	// Builder makes the place that the process runs in, which Chamber describes, and
	// as whom; nil: it runs where the daemon does.
	Builder *sandbox.Builder
	Sandbox *sandbox.Spec

	// KillWithDaemon lets the kernel kill the process when the daemon ends, however that
	// happens: for one that serves the daemon alone, as a probe does.
	KillWithDaemon bool
}

// Launch starts a process that outlives the daemon, unless it is tied to it: in a
// session and process group of its own, with nothing of the daemon's open but what spec names. It
// returns once the program has replaced the daemon's image, or could not.
func Launch(ctx context.Context, spec Spec) (*Process, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot start %s", spec.Binary)
	}
	defer func() { _ = null.Close() }()
	log := spec.Log
	if log == nil {
		log = null
	}
	files := append([]*os.File{null, log, log}, spec.Files...)
	begin := start
	if spec.Builder != nil {
		begin = startInSandbox
	}
	pid, pidfd, ended, err := begin(spec, files)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot start %s", spec.Binary)
	}
	p, err := watch(pid, pidfd)
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL) // not waited for yet, so the number is still this child's
		_, _ = unix.Wait4(pid, nil, 0, nil)
		if ended != nil {
			close(ended)
		}
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot watch %s", spec.Binary)
	}
	if ended != nil {
		go func() { <-p.exited; close(ended) }()
	}
	return p, nil
}

// startInSandbox runs the program in a chamber. The thread that started one that is
// tied is kept until ended is closed: its end would be the program's.
func startInSandbox(spec Spec, files []*os.File) (pid, pidfd int, ended chan struct{}, err error) {
	c := *spec.Sandbox
	c.Program, pidfd = spec.Binary, -1
	spec.Credential = &syscall.Credential{Uid: c.User.UID, Gid: c.User.GID}
	err = spec.Builder.Run(&c, func() (int, <-chan struct{}, error) {
		var err error
		if pid, pidfd, _, err = start(spec, files); err != nil || !spec.KillWithDaemon {
			return pid, nil, err
		}
		ended = make(chan struct{})
		return pid, ended, nil
	})
	if err != nil && pidfd >= 0 {
		_ = unix.Close(pidfd) // it ended
	}
	return pid, pidfd, ended, err
}

// start runs the program with these files as descriptors 0, 1, ….
func start(spec Spec, files []*os.File) (pid, pidfd int, ended chan struct{}, err error) {
	pidfd = -1
	attr := &syscall.ProcAttr{
		Dir: spec.Dir,
		Env: spec.Env,
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			PidFD:      &pidfd,
			Credential: spec.Credential,
		},
	}
	if spec.KillWithDaemon {
		attr.Sys.Pdeathsig = unix.SIGKILL
	}
	err = withDescriptors(files, nil, func(fds []uintptr) error {
		attr.Files = fds
		var err error
		pid, _, err = syscall.StartProcess(spec.Binary, append([]string{spec.Binary}, spec.Args...), attr)
		return err
	})
	if err == nil && pidfd < 0 { // a kernel that gives none at birth
		pidfd, err = unix.PidfdOpen(pid, 0)
	}
	return pid, pidfd, nil, err
}

// withDescriptors calls do with the numbers of all files, each held open and
// left in the blocking mode it is in.
func withDescriptors(files []*os.File, fds []uintptr, do func(fds []uintptr) error) error {
	if len(files) == 0 {
		return do(fds)
	}
	if files[0] == nil {
		return withDescriptors(files[1:], append(fds, ^uintptr(0)), do)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		inner = withDescriptors(files[1:], append(fds, fd), do)
	})
	if err != nil {
		return err
	}
	return inner
}
