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

// maxThreads is how many threads the tool may have: its workers are 64.
const maxThreads = 192

// startApart starts the tool in a chamber, as a user that nothing else runs as.
//
// The tool can only be told paths, and opens what it was handed once more, as
// /proc/self/fd/N; the kernel then asks whether its user may. So it keeps the one
// capability that overrides the modes of files. There is nothing else in its root
// that it could be of use on: everything there is read-only, and it sees no process
// but itself.
func (t *Tool) startApart(cmd *exec.Cmd, b bounds) (done func(), err error) {
	user, release, err := t.user(cmd.ExtraFiles)
	if err != nil {
		return nil, err
	}
	c := &sandbox.Spec{
		User: user, Program: t.path, MountProc: true, Capabilities: []uintptr{unix.CAP_DAC_OVERRIDE},
		Limits: sandbox.Limits{Threads: maxThreads, Memory: maxMemory, File: b.file, Seconds: uint64(b.cpu / time.Second), Nice: niceness},
	}
	if user.UID == 0 {
		c.Limits.Threads = 0 // root has others
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
			_ = cmd.Wait() // ended by the house
		}
		release()
		return nil, fault.Wrap(err, fault.Of(err), fault.Volume, "cannot run %s", t.path)
	}
	return func() { close(ended); release() }, nil
}

// judging are the file systems that decide by themselves, or far away, who may
// open what: there no capability helps another user than the daemon's.
var judging = []int64{
	unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC, unix.V9FS_MAGIC, unix.AFS_SUPER_MAGIC,
}

// isOn says whether a file lies on one of these file systems.
func isOn(f *os.File, systems []int64) bool {
	var fs unix.Statfs_t
	err := unix.Fstatfs(int(f.Fd()), &fs)
	return err == nil && slices.Contains(systems, int64(fs.Type))
}

// user gives who the tool runs as. For images on a file system that judges by
// itself that is the daemon's own user, with as little privilege.
func (t *Tool) user(files []*os.File) (u sandbox.User, release func(), err error) {
	for _, f := range files {
		if isOn(f, judging) {
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
