package safepath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

const alice, bob = 4242, 4243

// field is a folder with files of root, alice and bob.
type field struct {
	t   *testing.T
	dir string
}

func newField(t *testing.T) *field {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes files of others'")
	}
	f := &field{t, t.TempDir()}
	for name, uid := range map[string]int{"root": 0, "alice": alice, "bob": bob} {
		must(t, errors.Join(os.Mkdir(f.path(name), 0o755), os.WriteFile(f.path(name+"/file"), []byte(name), 0o644),
			os.Chown(f.path(name), uid, uid), os.Chown(f.path(name+"/file"), uid, uid)))
	}
	return f
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (f *field) path(name string) string { return f.dir + "/" + name } // not cleaned

func (f *field) link(uid int, name, to string) {
	f.t.Helper()
	must(f.t, errors.Join(os.Symlink(to, f.path(name)), os.Lchown(f.path(name), uid, uid)))
}

// A link of root may lead anywhere, any other link only to files of its owner: the owner of a folder on
// the path cannot lead the daemon to files of others.
// Promise: X11
func TestOpen_UserLink(t *testing.T) {
	f := newField(t)
	f.link(0, "everybody", "bob")
	f.link(0, "alice/roots", "../root/file")
	f.link(alice, "alice/own", "file")
	f.link(alice, "alice/farther", f.path("alice/own"))
	f.link(alice, "alice/up", "../alice")
	f.link(alice, "alice/shadow", "../root/file")
	f.link(alice, "alice/folder", f.path("root"))
	f.link(alice, "alice/bobs", "../bob/file")
	f.link(alice, "alice/by-root", "roots")
	f.link(bob, "bob/alices", "../alice/own")
	f.link(alice, "alice/by-bob", "../bob/alices")
	f.link(alice, "alice/none", "fresh")
	f.link(alice, "alice/below", "../root/fresh")
	f.link(alice, "alice/round", "round")
	for path, want := range map[string]string{
		"alice/file": "alice", "everybody/file": "bob", "everybody/../alice/./file/": "alice", "alice/roots": "root", "alice/own": "alice",
		"alice/farther": "alice", "alice/up/up/own": "alice", "alice/up/up/../bob/file": "", "alice/shadow": "", "alice/folder/file": "", "alice/bobs": "",
		"alice/by-root": "", "bob/alices": "", "alice/by-bob": "",
	} {
		at, err := Open(f.path(path))
		if want == "" {
			if !fault.Is(err, fault.Denied) {
				t.Errorf("%s: %v", path, err)
			}
			continue
		}
		must(t, err)
		got, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", at.Fd()))
		if must(t, errors.Join(err, at.Close())); string(got) != want {
			t.Errorf("%s is what %s has, not %s", path, got, want)
		}
	}
	for path, want := range map[string]error{"alice/round": unix.ELOOP, "alice/none": fs.ErrNotExist, "alice/file/x": unix.ENOTDIR, "nobody/file": fs.ErrNotExist} {
		if at, err := Open(f.path(path)); !errors.Is(err, want) {
			t.Errorf("%s: %v, %v", path, at, err)
		}
	}

	made := func(path string) error {
		return OpenParent(f.path(path), func(at string, nofollow int) error {
			file, err := os.OpenFile(at, os.O_CREATE|os.O_WRONLY|nofollow, 0o600)
			return errors.Join(err, file.Close())
		})
	}
	must(t, made("alice/none"))
	if _, err := os.Lstat(f.path("alice/fresh")); err != nil {
		t.Error(err)
	}
	if err := made("alice/below"); !fault.Is(err, fault.Denied) {
		t.Errorf("a file was made where alice may not: %v", err)
	}
	if found, err := os.ReadDir(f.path("root")); err != nil || len(found) != 1 {
		t.Errorf("root has %v, %v", found, err)
	}
}

// A link that replaces a file after the check is not followed; nor is a link
// in a place where a file is made.
// Promise: X11
func TestOpenParent_LinkAppearsLater(t *testing.T) {
	f := newField(t)
	err := OpenParent(f.path("alice/file"), func(at string, nofollow int) error {
		must(t, os.Remove(f.path("alice/file")))
		f.link(alice, "alice/file", "../root/file")
		file, err := os.OpenFile(at, os.O_RDONLY|nofollow, 0)
		_ = file.Close() // must not exist
		return err
	})
	if !errors.Is(err, unix.ELOOP) {
		t.Errorf("opened: %v", err)
	}
	must(t, OpenLink(f.path("alice/file"), os.Remove))
	if _, err := os.Lstat(f.path("root/file")); err != nil {
		t.Error(err)
	}
	must(t, os.Rename(f.path("alice"), f.path("away")))
	f.link(alice, "alice", "root")
	if err := OpenLink(f.path("alice/file"), os.Remove); !fault.Is(err, fault.Denied) {
		t.Errorf("removed behind a link: %v", err)
	}
}
