package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A user who owns a folder that holds pools puts a link there: in place of a pool's directory, above it, as a
// volume, before the pool starts or after. No client can make, change, remove or read anything through it.
// Promise: X5, X11
func TestPools_UserLinksAreNotFollowed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes links of another user's")
	}
	const user = 4242
	own, theirs := t.TempDir(), filepath.Join(t.TempDir(), "theirs")
	link := func(name, to string) string {
		t.Helper()
		path := filepath.Join(own, name)
		must(t, errors.Join(os.Symlink(to, path), os.Lchown(path, user, user)))
		return path
	}
	must(t, errors.Join(os.Chown(own, user, user), os.Mkdir(theirs, 0o700), os.WriteFile(filepath.Join(theirs, "shadow"), []byte("secret"), 0o600)))
	untouched := func(what string) {
		t.Helper()
		var st unix.Stat_t
		must(t, unix.Stat(theirs, &st))
		entries, err := os.ReadDir(theirs)
		must(t, err)
		content, err := os.ReadFile(filepath.Join(theirs, "shadow"))
		if err != nil || string(content) != "secret" || len(entries) != 1 || st.Uid != 0 || st.Mode&0o777 != 0o700 {
			t.Fatalf("%s: theirs is of user %d, mode %o, has %v, shadow %q (%v)", what, st.Uid, st.Mode&0o777, entries, content, err)
		}
	}
	d, ctx := newDaemon(t), t.Context()
	at := link("link", theirs)
	for _, target := range []string{at, at + "/below"} {
		p, err := d.Define(ctx, scope.Daemon("a test"), "<pool type='dir'><name>a</name><target><path>"+target+"</path><permissions><mode>0777</mode><owner>4242</owner></permissions></target></pool>", true)
		must(t, err)
		wantKind(t, p.Build(ctx, scope.Daemon("a test"), MakeTarget), fault.Denied)
		wantKind(t, p.Start(ctx, scope.Daemon("a test"), NoBuild), fault.Denied)
		if err := p.Delete(ctx, scope.Daemon("a test")); err == nil {
			t.Errorf("the directory of %s was removed", target)
		}
		untouched("a pool at " + target)
		must(t, p.Undefine(ctx, scope.Daemon("a test")))
	}

	target := filepath.Join(own, "pool")
	p, err := d.Define(ctx, scope.Daemon("a test"), dirXML("b", target), true)
	must(t, err)
	must(t, errors.Join(p.Build(ctx, scope.Daemon("a test"), MakeTarget), os.WriteFile(filepath.Join(target, "shadow"), nil, 0o600), p.Start(ctx, scope.Daemon("a test"), NoBuild)))
	link("pool/inside", filepath.Join(theirs, "shadow"))
	must(t, p.Refresh(ctx, scope.Daemon("a test")))
	if _, err := p.Volume("inside"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a user's link is a volume: %v", err)
	}
	must(t, os.Rename(target, target+".away")) // while the pool runs
	link("pool", theirs)
	for what, err := range map[string]error{
		"made":    second(p.CreateVolume(ctx, scope.Daemon("a test"), volXML("new", "raw", mib, ""), CreateOptions{})),
		"written": second(p.Upload(ctx, scope.Daemon("a test"), "shadow", 0, 4)),
		"read":    second(p.Download(ctx, scope.Daemon("a test"), "shadow", 0, 4)),
		"copied":  second(p.CloneVolume(ctx, scope.Daemon("a test"), volXML("copy", "raw", mib, ""), p, "shadow", CreateOptions{})),
		"resized": p.ResizeVolume(ctx, scope.Daemon("a test"), "shadow", mib, ResizeOptions{}),
		"wiped":   p.WipeVolume(ctx, scope.Daemon("a test"), "shadow", false),
		"removed": p.DeleteVolume(ctx, scope.Daemon("a test"), "shadow"),
		"listed":  p.Refresh(ctx, scope.Daemon("a test")),
	} {
		if !fault.Is(err, fault.Denied) {
			t.Errorf("through a link a volume is %s: %v", what, err)
		}
	}
	untouched("a pool whose directory was moved away")
}

func second[T any](_ T, err error) error { return err }

// Root's links on the way to a pool are followed, several in a row, and a cycle of links ends with an error.
// Promise: X5
func TestPools_RootLinksAreFollowed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: others' links are not followed")
	}
	d, ctx, dir := newDaemon(t), t.Context(), t.TempDir()
	must(t, errors.Join(os.MkdirAll(filepath.Join(dir, "real", "images"), 0o755),
		os.Symlink("../"+filepath.Base(dir)+"/real", filepath.Join(dir, "near")),
		os.Symlink(filepath.Join(dir, "near"), filepath.Join(dir, "far")),
		os.Symlink("round", filepath.Join(dir, "round"))))
	p, err := d.Define(ctx, scope.Daemon("a test"), dirXML("a", filepath.Join(dir, "far", "images")), true)
	must(t, errors.Join(err, p.Start(ctx, scope.Daemon("a test"), NoBuild)))
	d.volume(p, volXML("disk", "raw", mib, ""))
	if _, err := os.Stat(filepath.Join(dir, "real", "images", "disk")); err != nil {
		t.Error(err)
	}
	p, err = d.Define(ctx, scope.Daemon("a test"), dirXML("b", filepath.Join(dir, "round", "images")), true)
	must(t, err)
	wantKind(t, p.Start(ctx, scope.Daemon("a test"), NoBuild), fault.Failed)
	must(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	p, err = d.Define(ctx, scope.Daemon("a test"), dirXML("c", filepath.Join(dir, "dangling")), true)
	must(t, err)
	if err := p.Build(ctx, scope.Daemon("a test"), MakeTarget); err == nil || !strings.Contains(err.Error(), "cannot make directory "+filepath.Join(dir, "dangling")) {
		t.Errorf("behind a link that leads nowhere: %v", err)
	}
}

// Several pools in one missing folder are built at once, as Terraform does.
func TestBuild_SharedFolderConcurrently(t *testing.T) {
	var makers sync.WaitGroup
	for range 64 {
		above := filepath.Join(t.TempDir(), "a", "b")
		for _, name := range []string{"one", "two", "three", "four"} {
			makers.Go(func() {
				dir, _, err := makeDir(filepath.Join(above, name), 0o700)
				if err != nil {
					t.Error(err)
					return
				}
				_ = dir.Close() // opened only for its name
			})
		}
		makers.Wait()
	}
}
