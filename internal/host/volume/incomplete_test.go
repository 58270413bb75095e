package volume

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A store restored from a backup says of volumes that they are being made or wiped, although that was
// completed since.
// Promise: F33
func TestOpen_CompletedVolumesStay(t *testing.T) {
	needQemuImg(t)
	d := newDaemon(t)
	p := d.dirPool("p")
	made, wiped, half := d.volume(p, volXML("made", "raw", mib, "")), d.volume(p, volXML("wiped", "qcow2", mib, "")), d.volume(p, volXML("half", "raw", mib, ""))
	f, err := os.OpenFile(half.Path, os.O_RDWR, 0)
	must(t, err)
	if !markIncomplete(f) {
		t.Skip("this file system keeps no attributes")
	}
	must(t, f.Close())
	if isMarked, err := isIncomplete(p.View().Target, "made"); err != nil || isMarked {
		t.Fatalf("a volume that was made says that it is not (%v)", err)
	}
	must(t, os.WriteFile(wiped.Path, []byte("a guest's"), 0o600))
	must(t, p.declare("made", declaration{Format: image.Raw, Inode: made.inode, Building: true, Marked: true}))
	must(t, p.declare("half", declaration{Format: image.Raw, Inode: half.inode, Building: true, Marked: true}))
	must(t, p.declare("wiped", declaration{Format: image.Qcow2, Inode: wiped.inode, Remake: &image.Plan{Format: image.Qcow2, Virtual: mib}, Marked: true}))
	// An earlier daemon knows nothing of another file with that name, also on file systems without file
	// identity.
	others := []*Volume{d.volume(p, volXML("others-half", "raw", mib, "")), d.volume(p, volXML("others-wiped", "raw", mib, ""))}
	for _, v := range others {
		must(t, os.WriteFile(v.Path, []byte("another's"), 0o600))
	}
	must(t, p.declare("others-half", declaration{Format: image.Raw, Inode: others[0].inode + 1, Building: true}))
	must(t, p.declare("others-wiped", declaration{Format: image.Raw, Inode: others[1].inode + 2, Remake: &image.Plan{Format: image.Raw, Virtual: mib}}))
	d.restart()
	for _, v := range others {
		if text, err := os.ReadFile(v.Path); err != nil || string(text) != "another's" {
			t.Errorf("%s is now %q (%v)", v.Name, text, err)
		}
	}
	p, err = d.ByName("p")
	must(t, err)
	if _, err := p.Volume("made"); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(wiped.Path); err != nil || string(text) != "a guest's" {
		t.Errorf("what was wiped once has now %q (%v)", text, err)
	}
	if _, err := p.Volume("half"); !fault.Is(err, fault.NotFound) {
		t.Errorf("an incomplete volume stays: %v", err)
	}
	if name := p.declared["made"]; name.Building || name.Marked {
		t.Errorf("it is still marked as incomplete: %+v", name)
	}
}

// A volume is marked as unfinished while it is wiped, and not afterwards.
func TestWipe_MarksUnfinishedMeanwhile(t *testing.T) {
	needQemuImg(t)
	d := newDaemon(t)
	p := d.dirPool("p")
	v := d.volume(p, volXML("v", "qcow2", mib, ""))
	must(t, p.WipeVolume(t.Context(), scope.Daemon("a test"), "v", false))
	for _, mark := range incompleteMarks {
		if _, err := unix.Getxattr(v.Path, mark, nil); err == nil {
			t.Errorf("it has %s", mark)
		}
	}
}

// A volume that this daemon is making is not taken for one that an earlier daemon left unfinished. A pool that
// is slow to reactivate accepts clients before it was read.
// Promise: F33
func TestRefresh_KeepsVolumeBeingMade(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("a")
	_, err := p.beginJob(scope.Daemon("a test"), "disk", "creation", true)
	must(t, err)
	f, inode, err := p.createFile(t.Context(), "disk", image.Plan{Format: image.Raw, Virtual: mib})
	must(t, err)
	defer f.Close()
	must(t, p.reattach(t.Context()))
	must(t, p.completeVolume(t.Context(), "disk", declaration{Format: image.Raw, Inode: inode}))
	p.endJob("disk", "")
	must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	if names := dirNames(t, p); names != "disk" {
		t.Errorf("there is %q", names)
	}
	left, _, err := p.createFile(t.Context(), "left", image.Plan{Format: image.Raw, Virtual: mib})
	must(t, err)
	must(t, left.Close())
	must(t, p.reattach(t.Context()))
	if names := dirNames(t, p); names != "disk" {
		t.Errorf("what was left stays: %q", names)
	}
}

// A pool may be started before the file system on its folder is mounted, for instance at boot. It keeps the
// declarations of its volumes; without them, data that a guest wrote would decide the format.
// Promise: X2
func TestStart_TargetNotMountedYet(t *testing.T) {
	d, disk := newDaemon(t), t.TempDir()
	p := d.pool(dirXML("p", t.TempDir()))
	target := p.View().Target
	bind := func() {
		if err := unix.Mount(disk, target, "", unix.MS_BIND, ""); err != nil {
			t.Skip("cannot mount here:", err)
		}
	}
	bind()
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) }) // when the test has not done so
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	v := d.volume(p, volXML("disk", "raw", mib, ""))
	half, _, err := p.createFile(t.Context(), "half", image.Plan{Format: image.Raw, Virtual: mib}) // then its daemon is killed
	must(t, err)
	must(t, half.Close())
	must(t, os.WriteFile(v.Path, append([]byte("QFI\xfb\x00\x00\x00\x03"), make([]byte, mib)...), 0o600))
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	must(t, unix.Unmount(target, 0))

	d.restart()
	p, err = d.ByName("p")
	must(t, err)
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	bind()
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	if v, err := p.Volume("disk"); err != nil || v.Format != image.Raw {
		t.Errorf("it is %+v now, %v", v, err)
	}
	if names := dirNames(t, p); names != "disk" {
		t.Errorf("an incomplete volume stays: %q", names)
	}
	must(t, os.Remove(v.Path))
	must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	if len(p.declared) != 0 {
		t.Errorf("one that is gone is known still: %+v", p.declared)
	}
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	must(t, unix.Unmount(target, 0))
}

// A guest that opened a volume just before the volume's making failed keeps its disk, also when the store
// refuses to record that.
// Promise: F33
func TestCreateVolume_FailureKeepsGuestsDisk(t *testing.T) {
	for _, refused := range []bool{false, true} {
		d := newDaemon(t)
		p := d.dirPool("p")
		f, inode, err := p.createFile(t.Context(), "disk", image.Plan{Format: image.Raw, Virtual: mib})
		must(t, err)
		must(t, f.Close())
		end := openAsGuest(t, f.Name())
		takesAgain := func() {}
		if refused {
			takesAgain = d.refuseChanges()
		}
		p.discardVolume("disk", inode)
		takesAgain()
		d.restart()
		end()
		d.restart()
		p, err = d.ByName("p")
		must(t, err)
		if v, err := p.Volume("disk"); err != nil || v.Format != image.Raw || dirNames(t, p) != "disk" {
			t.Errorf("where the store refuses: %v; there is %q (%v)", refused, dirNames(t, p), err)
		}
	}
}
