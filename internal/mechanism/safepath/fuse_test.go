package safepath

import (
	"encoding/binary"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// The kernel's numbers of FUSE messages.
const (
	fuseLookup, fuseForget, fuseGetattr, fuseReadlink, fuseStatfs, fuseInit = 1, 2, 3, 5, 17, 26

	fuseHeader, fuseAnswer = 40, 16
)

// claim is a file system with one folder, a file and links. It reports root as the owner of
// all of them.
type claim struct{ links []string }

// over mounts it on a folder, visible to all users, which users may do if /etc/fuse.conf allows it.
func (c *claim) over(t *testing.T, dir string) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("needs /dev/fuse:", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40755,user_id=%d,group_id=%d,allow_other", fd, alice, alice)
	if err := unix.Mount("claim", dir, "fuse.claim", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		_ = unix.Close(fd) // nothing was mounted
		t.Skip("cannot mount FUSE here:", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.serve(fd)
	}()
	t.Cleanup(func() {
		must(t, unix.Unmount(dir, 0))
		<-done
		must(t, unix.Close(fd))
	})
}

// serve answers the kernel until the file system is unmounted.
func (c *claim) serve(fd int) {
	message := make([]byte, 1<<17)
	for {
		n, err := unix.Read(fd, message)
		if err == unix.EINTR || err == unix.ENOENT { // a request that was withdrawn
			continue
		}
		if err != nil {
			return
		}
		u32, u64 := binary.NativeEndian.Uint32, binary.NativeEndian.Uint64
		opcode, node := u32(message[4:]), u64(message[16:])
		if opcode == fuseForget {
			continue
		}
		body, failed := c.answer(opcode, node, message[fuseHeader:n])
		answer := make([]byte, fuseAnswer, fuseAnswer+len(body))
		binary.NativeEndian.PutUint32(answer, uint32(fuseAnswer+len(body)))
		binary.NativeEndian.PutUint32(answer[4:], uint32(-int32(failed)))
		copy(answer[8:16], message[8:16])
		_, _ = unix.Write(fd, append(answer, body...)) // the client of the request may be gone
	}
}

func (c *claim) answer(opcode uint32, node uint64, asked []byte) (body []byte, failed unix.Errno) {
	switch opcode {
	case fuseInit:
		body = make([]byte, 64)
		binary.NativeEndian.PutUint32(body, 7)
		binary.NativeEndian.PutUint32(body[4:], 31)
		return body, 0
	case fuseLookup:
		var n int
		if _, err := fmt.Sscanf(string(asked), "%d", &n); err != nil || n > len(c.links) {
			return nil, unix.ENOENT
		}
		body = make([]byte, 40)
		binary.NativeEndian.PutUint64(body, uint64(n)+2)
		return append(body, c.attributes(uint64(n)+2)...), 0
	case fuseGetattr:
		return append(make([]byte, 16), c.attributes(node)...), 0
	case fuseReadlink:
		return []byte(c.links[node-3]), 0
	case fuseStatfs:
		return make([]byte, 80), 0
	}
	return nil, unix.ENOSYS
}

// attributes returns those of the folder (node 1), of the file (node 2), or of a link. The
// fourth link reports bob as its owner.
func (c *claim) attributes(node uint64) []byte {
	mode := uint32(unix.S_IFLNK | 0o777)
	switch node {
	case 1:
		mode = unix.S_IFDIR | 0o755
	case 2:
		mode = unix.S_IFREG | 0o644
	}
	a := make([]byte, 88)
	binary.NativeEndian.PutUint64(a, node)
	binary.NativeEndian.PutUint32(a[60:], mode)
	binary.NativeEndian.PutUint32(a[64:], 1)
	if node == 6 {
		binary.NativeEndian.PutUint32(a[68:], bob)
	}
	return a
}

// A user's own file system reports the user's links as root's, or as another user's. They may lead
// only to files on the same file system.
// Promise: X11
func TestOpen_LinkOnFUSE(t *testing.T) {
	f := newField(t)
	c := &claim{links: []string{"0", "../../root/file", f.path("root/fresh"), f.path("bob/file")}}
	c.links = append(c.links, f.path("bob/own/1")) // a link on another such file system
	for _, dir := range []string{"alice/own", "bob/own"} {
		must(t, unix.Mkdir(f.path(dir), 0o755))
	}
	c.over(t, f.path("alice/own"))
	(&claim{links: []string{"0"}}).over(t, f.path("bob/own"))
	f.link(0, "into", "alice/own/1")
	for path, want := range map[string]bool{"alice/own/0": true, "alice/own/1": true, "into": true, "alice/own/2": false, "alice/own/3": false, "alice/own/4": false, "alice/own/5": false, "bob/own/1": true} {
		err := OpenParent(f.path(path), func(string, int) error { return nil })
		if want && err != nil || !want && !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// The same holds for a file system that a user has brought along, such as a stick: its user was root elsewhere.
// Promise: X11
func TestOpen_LinkOnRemovableMedia(t *testing.T) {
	f := newField(t)
	before := removableDirs
	removableDirs = []string{f.path("media/")}
	t.Cleanup(func() { removableDirs = before })
	must(t, unix.Mkdir(f.path("media"), 0o755))
	if err := unix.Mount("stick", f.path("media"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		t.Skip("cannot mount here:", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(f.path("media"), 0)) })
	must(t, unix.Mkdir(f.path("media/folder"), 0o755))
	f.link(0, "media/own", "folder")
	f.link(0, "media/away", f.path("root/file"))
	f.link(0, "into", "media/away")
	for path, want := range map[string]bool{"media/own": true, "media/away": false, "into": false} {
		err := OpenParent(f.path(path), func(string, int) error { return nil })
		if want && err != nil || !want && !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
