package image

import (
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
)

// maxThreads bounds the threads of qemu-img: it has up to 64 workers.
const maxThreads = 192

// startSandboxed starts qemu-img in a sandbox, as a user that no other process runs as. qemu-img can only
// open paths, so it opens its inherited descriptors again as /proc/self/fd/N, and the kernel checks
// whether its user may. It therefore keeps the one capability that overrides file modes. The capability is
// of no other use: everything else in its root is read-only, and it sees no other process.
func (t *Tool) startSandboxed(cmd *exec.Cmd, b bounds) (done func(), err error) {
	user, release, err := t.user(cmd.ExtraFiles)
	if err != nil {
		return nil, err
	}
	c := &sandbox.Spec{
		User: user, Program: t.path, MountProc: true, Capabilities: []uintptr{unix.CAP_DAC_OVERRIDE},
		Limits: sandbox.Limits{Threads: maxThreads, Memory: maxMemory, File: b.file, Seconds: uint64(b.cpu / time.Second), Nice: niceness},
	}
	if user.UID == 0 {
		c.Limits.Threads = 0 // the limit would count root's other threads
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user.UID, Gid: user.GID}
	cmd.SysProcAttr.AmbientCaps = c.Capabilities
	ended := make(chan struct{})
	err = t.quarters.Builder.Run(c, func() (int, <-chan struct{}, error) {
		if err := cmd.Start(); err != nil {
			return 0, nil, err
		}
		return cmd.Process.Pid, ended, nil
	})
	if err != nil {
		if cmd.Process != nil {
			_ = cmd.Wait() // killed by the sandbox builder
		}
		release()
		return nil, fault.Wrap(err, fault.Of(err), fault.Volume, "cannot run %s", t.path)
	}
	return func() { close(ended); release() }, nil
}

// ownAccessRules are the file systems that decide about access themselves or on a server. There a
// capability helps no user but the daemon's own.
var ownAccessRules = []int64{
	unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC, unix.V9FS_MAGIC, unix.AFS_SUPER_MAGIC,
}

// isOn reports whether a file lies on one of these file systems.
func isOn(f *os.File, systems []int64) bool {
	var fs unix.Statfs_t
	err := unix.Fstatfs(int(f.Fd()), &fs)
	return err == nil && slices.Contains(systems, int64(fs.Type))
}

// user chooses the user that qemu-img runs as. For images on a file system with access rules of its own it
// is the daemon's user, with as few privileges as possible.
func (t *Tool) user(files []*os.File) (u sandbox.User, release func(), err error) {
	for _, f := range files {
		if isOn(f, ownAccessRules) {
			return sandbox.User{}, func() {}, nil
		}
	}
	u, err = t.quarters.Users.Take("qemu-img")
	return u, func() {
		if err := t.quarters.Users.Free(u); err != nil {
			t.log.Error("qemu-img has left something running", "error", err)
		}
	}, err
}
