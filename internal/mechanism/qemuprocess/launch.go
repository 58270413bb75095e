package qemuprocess

import (
	"context"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
)

// Spec describes the process to start. The caller keeps its files and closes them after Launch: a
// listening socket that the daemon keeps open would hide that QEMU has ended.
type Spec struct {
	Binary string   // absolute path
	Args   []string // without the program's name
	Env    []string // the whole environment
	Dir    string   // working directory; "" is the daemon's

	Files []*os.File // become descriptors 3, 4, …; nil leaves a descriptor closed
	Log   *os.File   // standard output and error; nil discards them

	Credential *syscall.Credential // identity to run as; nil keeps the daemon's

	// Builder and Sandbox describe the sandbox that the process runs in, and its user. With a nil Builder
	// it runs as the daemon does.
	Builder *sandbox.Builder
	Sandbox *sandbox.Spec

	// KillWithDaemon makes the kernel kill the process when the daemon ends in any way: for a process that
	// serves only the daemon, such as a probe.
	KillWithDaemon bool
}

// Launch starts a process that outlives the daemon, unless KillWithDaemon is set. The process has its own
// session and process group, and no descriptors of the daemon except those of the specification. Launch
// returns when exec has succeeded or failed.
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
	p, err := newProcess(pid, pidfd)
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL) // not waited for yet, so the pid is still this child's
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

// startInSandbox runs the program in a sandbox. With KillWithDaemon the thread that forked it is kept
// until ended is closed: the kernel would kill the program when that thread ends.
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
		_ = unix.Close(pidfd) // the process has been killed
	}
	return pid, pidfd, ended, err
}

// start runs the program with these files as descriptors 0, 1, and so on.
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
	if err == nil && pidfd < 0 { // this kernel returns no pidfd from clone
		pidfd, err = unix.PidfdOpen(pid, 0)
	}
	return pid, pidfd, nil, err
}

// withDescriptors calls do with the descriptor numbers of all files. The files stay open meanwhile, and
// keep their blocking mode.
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
