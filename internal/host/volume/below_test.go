package volume

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A volume with a backing file is resized and copied to a larger one. The tool does not look for the backing
// file, and the volume shows no more of it than before.
func TestResize_VolumeWithBackingFile(t *testing.T) {
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("needs qemu-img")
	}
	d := newDaemon(t)
	p := d.dirPool("p")
	base := d.volume(p, volXML("base", "raw", 4*mib, ""))
	above := func(name string, size uint64) string {
		return volXML(name, "qcow2", size, "<backingStore><path>"+base.Path+"</path><format type='raw'/></backingStore>")
	}
	d.volume(p, above("top", 2*mib))
	must(t, p.ResizeVolume(t.Context(), scope.Daemon("a test"), "top", 3*mib, ResizeOptions{}))
	_, err := p.CloneVolume(t.Context(), scope.Daemon("a test"), above("copy", 5*mib), p, "top", CreateOptions{})
	must(t, err)
	for name, want := range map[string]uint64{"top": 3 * mib, "copy": 5 * mib} {
		v, err := p.FreshVolume(t.Context(), name)
		must(t, err)
		if v.Virtual != want || v.Backing == nil || v.Backing.Name != base.Path {
			t.Errorf("%s is %+v", name, v)
		}
		// Data of base beyond the overlays' old ends now read as zeros, not as base's data.
		said, err := exec.CommandContext(t.Context(), "qemu-img", "map", "--output=json", "-f", "qcow2", v.Path).CombinedOutput()
		if must(t, err); !strings.Contains(string(said), fmt.Sprintf(`"start": %d,`, 2*mib)) {
			t.Errorf("%s begins no new part at its old end: %s", name, said)
		}
	}
}

// A volume whose header QEMU changed while it had it open is not copied, neither byte by byte nor as a guest
// would read it, and not resized.
// Promise: X2
func TestClone_ChangedHeaderIsRefused(t *testing.T) {
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("needs qemu-img")
	}
	d := newDaemon(t)
	p := d.dirPool("p")
	other := d.volume(p, volXML("other", "raw", mib, ""))
	top := d.volume(p, volXML("top", "qcow2", mib, ""))
	if err := unix.Setxattr(other.Path, "trusted.lodge", nil, 0); err != nil {
		t.Skip("needs a file system with trusted attributes:", err)
	}
	chain, err := image.OpenChain(t.Context(), scope.Daemon("a test"), top.Path, image.Qcow2)
	must(t, err)
	err = chain[0].RecordBacking()
	chain.Close()
	must(t, err)
	out, err := exec.CommandContext(t.Context(), "qemu-img", "rebase", "-u", "-f", "qcow2", "-b", other.Path, "-F", "raw", top.Path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	same := volXML("same", "qcow2", mib, "<backingStore><path>"+other.Path+"</path><format type='raw'/></backingStore>")
	for what, doc := range map[string]string{"byte by byte": same, "as a guest reads it": volXML("flat", "raw", mib, "")} {
		if _, err := p.CloneVolume(t.Context(), scope.Daemon("a test"), doc, p, "top", CreateOptions{}); !fault.Is(err, fault.Denied) {
			t.Errorf("copied %s: %v", what, err)
		}
	}
	wantKind(t, p.ResizeVolume(t.Context(), scope.Daemon("a test"), "top", 2*mib, ResizeOptions{}), fault.Denied)
}

// forgery makes a folder with another user's file in it. It returns the path at which qemu-img makes a header
// that names that file.
func forgery(t *testing.T) (dir, secret, forged string) {
	t.Helper()
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("needs qemu-img")
	}
	dir = t.TempDir()
	secret = filepath.Join(dir, "secret")
	must(t, os.WriteFile(secret, make([]byte, mib), 0o600))
	if err := unix.Setxattr(secret, "trusted.lodge", nil, 0); err != nil {
		t.Skip("needs a file system with trusted attributes:", err)
	}
	return dir, secret, filepath.Join(dir, "forged")
}

// A client limited to folders uploads an image whose header names another user's file, and has the image
// copied byte by byte. A guest with either volume as its disk does not reach that file.
// Promise: X2
func TestUpload_ForgedBackingFile(t *testing.T) {
	dir, secret, forged := forgery(t)
	d := newDaemon(t)
	p := d.dirPool("p")
	disk := d.volume(p, volXML("disk", "raw", mib, "")) // of a guest that uses it as qcow2
	held := func(folders ...string) scope.Scope { return scope.Daemon("a test").Within(folders) }
	upload := func(sc scope.Scope, base string, end func(*Upload) error) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "qemu-img", "create", "-q", "-u", "-f", "qcow2", "-b", base, "-F", "raw", forged, "1M").CombinedOutput()
		if err != nil {
			t.Fatal(err, string(out))
		}
		b, err := os.ReadFile(forged)
		must(t, err)
		u, err := p.Upload(t.Context(), sc, "disk", 0, 0)
		must(t, err)
		_, err = u.Write(b)
		must(t, err)
		must(t, end(u))
	}
	opens := func(path string, want bool) {
		t.Helper()
		chain, err := image.OpenChain(t.Context(), scope.Daemon("a test"), path, image.Qcow2)
		chain.Close()
		if want && err != nil || !want && !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", path, err)
		}
	}
	abort := func(u *Upload) error { u.Abort(); return nil }
	upload(held(), secret, abort)
	opens(disk.Path, false)
	upload(held(), secret, (*Upload).Close)
	opens(disk.Path, false)
	copied, err := p.CloneVolume(t.Context(), held(), volXML("copy", "raw", mib, ""), p, "disk", CreateOptions{})
	must(t, err)
	opens(copied.Path, false)
	upload(held(dir), secret, (*Upload).Close)
	opens(disk.Path, true)
	beside := d.volume(p, volXML("beside", "raw", mib, "")).Path
	up, err := filepath.Rel(filepath.Dir(disk.Path), secret)
	must(t, err)
	upload(held(dir), up, (*Upload).Close) // after the file is moved, the relative name leads elsewhere
	opens(disk.Path, false)
	upload(held(filepath.Dir(disk.Path)), filepath.Base(beside), (*Upload).Close)
	opens(disk.Path, true)
	upload(scope.Daemon("a test"), secret, (*Upload).Close) // by a client that is not limited
	opens(disk.Path, true)
	copied, err = p.CloneVolume(t.Context(), scope.Daemon("a test"), volXML("bytes", "raw", mib, ""), p, "disk", CreateOptions{}) // these bytes may be a guest's
	must(t, err)
	opens(copied.Path, false)
}

// A client limited to folders uploads an image that names one of its own files by a long path, so that the
// next note is long. Then it uploads one that names another user's file.
func TestUpload_LongBackingFileName(t *testing.T) {
	_, secret, forged := forgery(t)
	d := newDaemon(t)
	p := d.dirPool("p")
	disk := d.volume(p, volXML("disk", "raw", mib, "")) // of a guest that uses it as qcow2
	d.volume(p, volXML("base", "raw", mib, ""))
	out, err := exec.CommandContext(t.Context(), "qemu-img", "create", "-q", "-u", "-f", "qcow2", "-b", secret, "-F", "raw", forged, "1M").CombinedOutput()
	if err != nil {
		t.Fatal(err, string(out))
	}
	header, err := os.ReadFile(forged)
	must(t, err)
	own := filepath.Dir(disk.Path)
	named := func(path string) []byte {
		return []byte("# Disk DescriptorFile\nparentFileNameHint=\"" + path + "\"\n")
	}
	for _, upload := range []struct {
		name string
		b    []byte
	}{
		{"base", append([]byte("COWD"), make([]byte, 60)...)},
		{"disk", named(own + strings.Repeat("/.", 1500) + "/base")},
		{"disk", named(own + strings.Repeat("/.", 1500) + "/base")},
		{"disk", header},
	} {
		u, err := p.Upload(t.Context(), scope.Daemon("a test").Within([]string{own}), upload.name, 0, 0)
		must(t, err)
		_, err = u.Write(upload.b)
		must(t, err)
		must(t, u.Close())
	}
	chain, err := image.OpenChain(t.Context(), scope.Daemon("a test"), disk.Path, image.Qcow2)
	chain.Close()
	wantKind(t, err, fault.Denied)
}

// An upload by a client limited to folders is not taken for a saved guest, because a restore trusts the
// definition inside. An upload that is no save image gets no owner's mark.
func TestUpload_NotTakenForSavedGuest(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("p")
	path := d.volume(p, volXML("disk", "raw", mib, "")).Path
	if err := unix.Setxattr(path, "trusted.lodge", nil, 0); err != nil {
		t.Skip("needs a file system with trusted attributes:", err)
	}
	for text, want := range map[string]bool{"LibvirtQemudSave": false, "LodgeSaveChanges": false, "Libvirt": true} {
		u, err := p.Upload(t.Context(), scope.Daemon("a test").Within(nil), "disk", 0, 0)
		must(t, err)
		_, err = u.Write(append([]byte(text), 0))
		must(t, err)
		must(t, u.Close())
		f, err := os.Open(path)
		must(t, err)
		if err := image.CheckNotWritten(f); want && err != nil || !want && !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", text, err)
		}
		must(t, f.Close())
	}
}

// The copy of a volume belongs to root. It leads to no file that the volume's owner may not read, nor to a
// file that its header came to name after the check.
// Promise: X2
func TestClone_BackingFileAccess(t *testing.T) {
	if _, err := exec.LookPath("qemu-img"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs qemu-img, and root: it gives a volume to another user")
	}
	const user = 4242
	d := newDaemon(t)
	p := d.dirPool("p")
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, make([]byte, mib), 0o600))
	top := d.volume(p, volXML("top", "qcow2", mib, ""))
	out, err := exec.CommandContext(t.Context(), "qemu-img", "rebase", "-u", "-f", "qcow2", "-b", secret, "-F", "raw", top.Path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	copied := func(doc string) error {
		return second(p.CloneVolume(t.Context(), scope.Daemon("a test"), doc, p, "top", CreateOptions{}))
	}
	wantKind(t, copied(volXML("late", "qcow2", mib, "")), fault.Busy)
	must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	above := "<backingStore><path>" + secret + "</path><format type='raw'/></backingStore>"
	must(t, copied(volXML("own", "qcow2", mib, above)))
	must(t, os.Chown(top.Path, user, user))
	wantKind(t, copied(volXML("theirs", "qcow2", mib, above)), fault.Denied)
}

// A client limited to folders makes no volume that belongs to root and that the client may write by its path:
// later readers would trust what it wrote there.
// Promise: A3
func TestCreateVolume_RestrictedClientOwnership(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("p")
	d.volume(p, volXML("disk", "raw", mib, ""))
	held := scope.Daemon("a test").Within(nil)
	for mode, want := range map[string]bool{"0600": true, "0644": true, "0620": false, "0602": false, "0666": false} {
		doc := strings.Replace(volXML(mode, "raw", mib, ""), "</target>", "<permissions><mode>"+mode+"</mode></permissions></target>", 1)
		for what, err := range map[string]error{
			"made":   second(p.CreateVolume(t.Context(), held, doc, CreateOptions{})),
			"copied": second(p.CloneVolume(t.Context(), held, strings.Replace(doc, mode, mode+"-copy", 1), p, "disk", CreateOptions{})),
		} {
			if want && err != nil || !want && !fault.Is(err, fault.Denied) {
				t.Errorf("one of mode %s is %s: %v", mode, what, err)
			}
		}
		must(t, second(p.CreateVolume(t.Context(), scope.Daemon("a test"), strings.Replace(doc, mode, mode+"-free", 1), CreateOptions{})))
	}
}
