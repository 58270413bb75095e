package image

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// The record of an image that a QEMU had open applies until the daemon has checked the image. A changed
// header is refused. A header that lost its backing file does no harm. The record of an unchanged header
// is removed, so that others may change the image afterwards.
// Promise: X2
func TestRecord_HeaderChangedByQEMU(t *testing.T) {
	tool(t)
	dir := t.TempDir()
	base, other, top := filepath.Join(dir, "base"), filepath.Join(dir, "other"), filepath.Join(dir, "top")
	for _, path := range []string{base, other} {
		if err := os.WriteFile(path, make([]byte, mib), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Setxattr(base, recordAttributes[0], nil, 0); err != nil {
		t.Skip("needs a file system with trusted attributes:", err)
	}
	over := func(path string) { qemuImg(t, "rebase", "-u", "-f", "qcow2", "-b", path, "-F", "raw", top) }
	opens := func(says string, want bool) {
		t.Helper()
		chain, err := OpenChain(t.Context(), scope.Daemon("a test"), top, Qcow2)
		chain.Close()
		if want && err != nil || !want && !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", says, err)
		}
	}
	takeBack := func(want bool) {
		t.Helper()
		if changed, err := RemoveRecord(top, Qcow2); err != nil || changed != want {
			t.Errorf("changed is %v: %v", changed, err)
		}
	}
	qemuImg(t, "create", "-q", "-f", "qcow2", "-b", base, "-F", "raw", top)
	chain, err := OpenChain(t.Context(), scope.Daemon("a test"), top, Qcow2)
	if err != nil {
		t.Fatal(err)
	}
	err = chain[0].RecordBacking()
	chain.Close()
	if err != nil {
		t.Fatal(err)
	}
	opens("as it was", true)
	over(other)
	opens("with another layer", false)
	takeBack(true)
	opens("still", false)
	qemuImg(t, "rebase", "-u", "-f", "qcow2", "-b", "", top)
	opens("without a layer", true)
	over(base)
	kept, err := os.OpenFile(top, os.O_WRONLY, 0) // without a lock, as a process that got it from QEMU
	if err != nil {
		t.Fatal(err)
	}
	takeBack(false)
	over(other)
	opens("changed by whom QEMU gave it to", false)
	over(base)
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	takeBack(false)
	over(other)
	opens("changed by whom nobody lent it", true)
}

// NFS and SMB refuse a lease on a file unless their server has promised them one, as if another process had the
// file open to write. A guest may use its disk there all the same.
// Promise: I1
func TestCheckNoWriter_NetworkFileSystem(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "disk")) // f is the process that has it open to write
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	disk, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if !isWritable(disk) {
		t.Skip("needs a file system with leases")
	}
	if err := CheckNoWriter(disk); !fault.Is(err, fault.Busy) {
		t.Errorf("what a process has to write: %v", err)
	}
	release, err := LockToWrite(f) // as QEMU does; it may release its lock during the check
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := CheckNoWriter(disk); !fault.Is(err, fault.Busy) {
		t.Errorf("what a process has to write, with QEMU's locks: %v", err)
	}
	count(t, &leaseRefusers, f)
	if err := CheckNoWriter(disk); err != nil {
		t.Errorf("where a refusal tells of nobody: %v", err)
	}
	if !isWritable(disk) { // so that its record stays
		t.Error("what a process may have to write is taken for nobody's")
	}
}

// The daemon cannot tell which processes still have a block device open to write, so its record stays.
// Promise: X2
func TestRemoveRecord_BlockDevice(t *testing.T) {
	tool(t)
	dir := t.TempDir()
	base, other, file := filepath.Join(dir, "base"), filepath.Join(dir, "other"), filepath.Join(dir, "file")
	for _, path := range []string{base, other} {
		if err := os.WriteFile(path, make([]byte, mib), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 8*mib)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		t.Skipf("needs a loop device: %v %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	defer func() {
		_ = unix.Removexattr(device, recordAttributes[0]) // the node stays for others
		if out, err := exec.CommandContext(context.Background(), "losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("%s: %s", device, out)
		}
	}()
	if err := unix.Setxattr(device, recordAttributes[0], nil, 0); err != nil {
		t.Skip("needs a file system with trusted attributes:", err)
	}
	qemuImg(t, "create", "-q", "-f", "qcow2", "-b", base, "-F", "raw", device, "1M")
	f, err := os.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := writeRecord(f, "raw:"+base); err != nil {
		t.Fatal(err)
	}
	if changed, err := RemoveRecord(device, Qcow2); err != nil || changed {
		t.Errorf("changed is %v: %v", changed, err)
	}
	qemuImg(t, "rebase", "-u", "-f", "qcow2", "-b", other, "-F", "raw", device) // as a process that got it from QEMU
	chain, err := OpenChain(t.Context(), scope.Daemon("a test"), device, Qcow2)
	chain.Close()
	if !fault.Is(err, fault.Denied) {
		t.Errorf("a header that was changed after its guest: %v", err)
	}
}

// A record that cannot be read, for example one that is longer than any header's name, matches no header, and stays.
func TestReadRecord_Unreadable(t *testing.T) {
	tool(t)
	dir := t.TempDir()
	secret, disk := filepath.Join(dir, "secret"), filepath.Join(dir, "disk")
	if err := os.WriteFile(secret, make([]byte, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	qemuImg(t, "create", "-q", "-f", "qcow2", "-b", secret, "-F", "raw", disk)
	if err := unix.Setxattr(disk, recordAttributes[0], []byte("vmdk:"+strings.Repeat("x", maxRecord)), 0); err != nil {
		t.Skip("needs a file system with trusted attributes, and large ones:", err)
	}
	f, err := os.OpenFile(disk, os.O_RDWR, 0)
	if err == nil {
		err = errors.Join(RecordBeforeWrite(f), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := RemoveRecord(disk, Qcow2); err != nil {
		t.Error(err)
	}
	chain, err := OpenChain(t.Context(), scope.Daemon("a test"), disk, Qcow2)
	chain.Close()
	if !fault.Is(err, fault.Denied) {
		t.Errorf("got %v", err)
	}
}

// A guest may write a header into a raw disk, or a client may write one into a file byte by byte. A reader that takes
// the file for an image does not follow such a header. A header that names a file its writer may read is accepted.
// Promise: X2
func TestRecordBeforeWrite_RawBytesBecomeAHeader(t *testing.T) {
	tool(t)
	dir := t.TempDir()
	secret, own, disk, forged := filepath.Join(dir, "secret"), filepath.Join(dir, "own/base"), filepath.Join(dir, "disk"), filepath.Join(dir, "forged")
	for _, path := range []string{secret, own, disk} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, mib), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Setxattr(secret, recordAttributes[0], nil, 0); err != nil {
		t.Skip("needs a file system with trusted attributes:", err)
	}
	write := func(base string) {
		t.Helper()
		qemuImg(t, "create", "-q", "-f", "qcow2", "-b", base, "-F", "raw", forged)
		b, err := os.ReadFile(forged)
		if err == nil {
			var f *os.File
			if f, err = os.OpenFile(disk, os.O_WRONLY, 0); err == nil {
				_, err = f.WriteAt(b, 0)
				err = errors.Join(err, f.Close())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	opens := func(says string, want bool) {
		t.Helper()
		chain, err := OpenChain(t.Context(), scope.Daemon("a test"), disk, Qcow2)
		chain.Close()
		if want && err != nil || !want && !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", says, err)
		}
	}
	noted := func(want bool) {
		t.Helper()
		f, err := os.Open(disk)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, _, is := readRecord(f); is != want {
			t.Errorf("it is noted: %v", is)
		}
	}

	chain, err := OpenChain(t.Context(), scope.Daemon("a test"), disk, Raw)
	if err == nil {
		err = chain[0].RecordBacking()
		chain.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	write(secret)
	opens("while the guest runs", false)
	if changed, err := RemoveRecord(disk, Raw); changed || err != nil {
		t.Errorf("changed is %v: %v", changed, err)
	}
	opens("when it has ended", false)
	if err := os.WriteFile(disk, make([]byte, mib), 0o600); err != nil { // which keeps the file
		t.Fatal(err)
	}
	if _, err := RemoveRecord(disk, Raw); err != nil {
		t.Error(err)
	}
	noted(false)

	held := scope.Daemon("a test").Within([]string{filepath.Join(dir, "own")})
	for base, want := range map[string]bool{secret: false, own: true} {
		f, err := os.OpenFile(disk, os.O_RDWR, 0)
		if err == nil {
			err = RecordBeforeWrite(f)
		}
		if err != nil {
			t.Fatal(err)
		}
		write(base)
		opens("amid it", false)
		_ = f.Close()
		if f, err = os.Open(disk); err != nil {
			t.Fatal(err)
		}
		if err := RemoveRecordOfCopy(t.Context(), held, f); (err == nil) != want {
			t.Errorf("over %s: %v", base, err)
		}
		_ = f.Close()
		opens("over "+base, want)
		if err := os.WriteFile(disk, make([]byte, mib), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := RemoveRecord(disk, Raw); err != nil {
			t.Error(err)
		}
	}
}

// The file that the header of a user's image names is opened if the user may read it, by the modes of the file and
// of the folders on its path. A file that the header of root's image names is always opened.
// Promise: X11
func TestOpenChain_UnreadableForOwner(t *testing.T) {
	tool(t)
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes files of others'")
	}
	const alice, team, nobody = 4242, 4300, 65534 // users and a group that the host knows
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	made := func(name string, uid, gid int, mode os.FileMode) {
		t.Helper()
		err := errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o755), os.WriteFile(at(name), make([]byte, mib), 0o600),
			os.Chown(at(name), uid, gid), os.Chmod(at(name), mode))
		if err != nil {
			t.Fatal(err)
		}
	}
	for path := dir; path != os.TempDir() && path != "/"; path = filepath.Dir(path) { // test directories are open to root only
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	made("alices", alice, alice, 0o600)
	made("everybodys", 0, 0, 0o644)
	made("roots", 0, 0, 0o600)
	made("teams", 0, team, 0o640)
	made("within/open", 0, 0, 0o644)
	if err := os.Chmod(at("within"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		owner, group int
		base         string
		want         bool
	}{
		{alice, alice, "alices", true},
		{alice, alice, "everybodys", true},
		{alice, alice, "roots", false},
		{alice, alice, "within/open", false},
		{alice, alice, "teams", false},
		{alice, team, "teams", true},
		{nobody, team, "teams", false},
		{0, 0, "roots", true},
		{0, 0, "alices", true},
	} {
		top := at("top")
		qemuImg(t, "create", "-q", "-f", "qcow2", "-b", at(c.base), "-F", "raw", top)
		if err := os.Chown(top, c.owner, c.group); err != nil {
			t.Fatal(err)
		}
		chain, err := OpenChain(t.Context(), scope.Daemon("a test"), top, Qcow2)
		chain.Close()
		if c.want && err != nil || !c.want && !fault.Is(err, fault.Denied) {
			t.Errorf("an image of %d:%d over %s: %v", c.owner, c.group, c.base, err)
		}
	}
	// Another file has replaced the one that was opened.
	top := &Layer{Path: at("top"), owner: sandbox.User{UID: alice, GID: alice}}
	if err := top.checkOwnerMayRead(t.Context(), &Layer{Path: at("everybodys"), id: [2]uint64{1, 1}}); !fault.Is(err, fault.Denied) {
		t.Errorf("an image over what lies there no more: %v", err)
	}
}

// A file system that reports any owner it likes is not trusted: the header of an image on it may only name
// files on the same file system.
// Promise: X11
func TestOpenChain_UntrustedFileSystem(t *testing.T) {
	top := &Layer{Path: "/media/alice/top", untrustedFS: true, id: [2]uint64{7, 1}}
	for device, want := range map[uint64]bool{7: true, 8: false} {
		err := top.checkOwnerMayRead(t.Context(), &Layer{Path: "/base", id: [2]uint64{device, 2}})
		if want && err != nil || !want && !fault.Is(err, fault.Denied) {
			t.Errorf("to device %d: %v", device, err)
		}
	}
}

// A QEMU that was told to rebase an image may name the new backing file in the header, and no other.
func TestFinishRebase(t *testing.T) {
	tool(t)
	dir := t.TempDir()
	base, mid, top := filepath.Join(dir, "base"), filepath.Join(dir, "mid"), filepath.Join(dir, "top")
	if err := os.WriteFile(base, make([]byte, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(base, recordAttributes[0], nil, 0); err != nil {
		t.Skip("needs a file system with trusted attributes:", err)
	}
	qemuImg(t, "create", "-q", "-f", "qcow2", "-b", base, "-F", "raw", mid)
	qemuImg(t, "create", "-q", "-f", "qcow2", "-b", mid, "-F", "qcow2", top)
	chain, err := OpenChain(t.Context(), scope.Daemon("a test"), top, Qcow2)
	if err != nil {
		t.Fatal(err)
	}
	defer chain.Close()
	if err := chain[0].RecordBacking(); err != nil {
		t.Fatal(err)
	}
	rebased := func(to Backing) error { return FinishRebase(chain[0].File, Qcow2, to) }
	onto := Backing{Name: base, Format: Raw}
	for range 2 { // a daemon that was cut off may do it again: both backings are accepted, and no others
		if err := RecordRebase(chain[0].File, Backing{Name: mid, Format: Qcow2}, onto); err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range []string{base, mid} {
		qemuImg(t, "rebase", "-u", "-f", "qcow2", "-b", to, "-F", map[string]string{base: "raw", mid: "qcow2"}[to], top)
		now, err := OpenChain(t.Context(), scope.Daemon("a test"), top, Qcow2)
		if err != nil {
			t.Errorf("amid a change, on %s: %v", to, err)
		}
		now.Close()
	}
	qemuImg(t, "rebase", "-u", "-f", "qcow2", "-b", top+"-other", "-F", "raw", top)
	if err := os.WriteFile(top+"-other", make([]byte, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenChain(t.Context(), scope.Daemon("a test"), top, Qcow2); !fault.Is(err, fault.Denied) {
		t.Errorf("amid a change, on neither: %v", err)
	}
	qemuImg(t, "rebase", "-u", "-f", "qcow2", "-b", mid, "-F", "qcow2", top)
	if err := FinishRebase(chain[0].File, Qcow2, Backing{Name: mid, Format: Qcow2}); err != nil {
		t.Errorf("taken back: %v", err)
	}
	if err := rebased(onto); !fault.Is(err, fault.Denied) {
		t.Errorf("before it was: %v", err)
	}
	qemuImg(t, "rebase", "-u", "-f", "qcow2", "-b", base, "-F", "raw", top)
	if _, err := OpenChain(t.Context(), scope.Daemon("a test"), top, Qcow2); !fault.Is(err, fault.Denied) {
		t.Errorf("before it is noted: %v", err)
	}
	if err := rebased(Backing{Name: mid, Format: Qcow2}); !fault.Is(err, fault.Denied) {
		t.Errorf("onto another than it was told: %v", err)
	}
	for range 2 {
		if err := rebased(onto); err != nil {
			t.Error(err)
		}
	}
	now, err := OpenChain(t.Context(), scope.Daemon("a test"), top, Qcow2)
	if err != nil || len(now) != 2 {
		t.Errorf("%d layers: %v", len(now), err)
	}
	now.Close()
	if changed, err := RemoveRecord(top, Qcow2); err != nil || changed {
		t.Errorf("changed is %v: %v", changed, err)
	}
	if err := rebased(onto); err != nil { // no process has it open to write any more
		t.Error(err)
	}
	if _, _, noted := readRecord(chain[0].File); noted {
		t.Error("something is noted of an image that nobody has")
	}
}

// The header of a layer names a lower one by its path, or by a relative name that stays right if all are moved
// together.
func TestNameBelow(t *testing.T) {
	layer := func(path, below string) Layer {
		l := Layer{Path: path}
		if below != "" {
			l.Backing = &Backing{Name: below}
		}
		return l
	}
	chain := Chain{layer("/a/top", "b/two"), layer("/a/b/two", "file:../one"), layer("/a/one", "/base"), layer("/base", "")}
	for _, c := range []struct {
		above, below int
		relative     bool
		want         string
	}{
		{0, 3, false, "/base"},
		{1, 2, false, "/a/one"},
		{0, 2, true, "one"},
		{1, 2, true, "../one"},
		{0, 1, true, "b/two"},
	} {
		if got, err := chain.NameBelow(c.above, c.below, c.relative); err != nil || got != c.want {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
	for _, wrong := range []Chain{chain, {layer("/a", "file:/b"), layer("/b", "")}, {layer("/a", ""), layer("/b", "")}} {
		if _, err := wrong.NameBelow(0, len(wrong)-1, true); !fault.Is(err, fault.WrongState) || !strings.Contains(err.Error(), "can't keep relative backing relationship") {
			t.Errorf("with a path on the way, or no name: %v", err)
		}
	}
}
