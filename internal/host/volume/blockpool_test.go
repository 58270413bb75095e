package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/volume/blockdev"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

func needTools(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if err := blockdev.NeedTool(tool, ""); err != nil {
			t.Skip(err)
		}
	}
}

// partitionDisk makes a loop device and removes all of its partitions after the test.
func partitionDisk(t *testing.T) string {
	t.Helper()
	needTools(t, "sfdisk", "partx")
	device := loopDevice(t)
	t.Cleanup(func() { // partx fails where none is left
		_ = exec.CommandContext(context.Background(), "partx", "--delete", device).Run()
	})
	return device
}

func diskXML(name, device, format string) string {
	return fmt.Sprintf("<pool type='disk'><name>%s</name><source><device path='%s'/><format type='%s'/></source><target><path>/dev</path></target></pool>", name, device, format)
}

func (d *daemon) pool(doc string) *Pool {
	d.t.Helper()
	p, err := d.Define(d.t.Context(), scope.Daemon("a test"), doc, true)
	must(d.t, err)
	return p
}

func partXML(name string, size uint64) string {
	return fmt.Sprintf("<volume><name>%s</name><capacity>%d</capacity></volume>", name, size)
}

func TestDiskPool_Lifecycle(t *testing.T) {
	for _, format := range diskFormats {
		t.Run(format, func(t *testing.T) { lifeOfADisk(t, format) })
	}
}

func lifeOfADisk(t *testing.T, format string) {
	device := partitionDisk(t)
	d := newDaemon(t)
	p := d.pool(diskXML("disk", device, format))
	wantKind(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild), fault.Failed) // there is no table yet
	must(t, p.Build(t.Context(), scope.Daemon("a test"), MakeTarget))
	for _, how := range []Build{MakeTarget, KeepExisting} {
		wantKind(t, p.Build(t.Context(), scope.Daemon("a test"), how), fault.Exists)
	}
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	if v := p.View(); v.Capacity != 32*mib || v.Allocation != 0 || v.Available < 30*mib || v.Target != "/dev" {
		t.Errorf("view %+v", v)
	}
	name := filepath.Base(device) + "p1"
	_, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), partXML("mine", 4*mib), CreateOptions{})
	wantKind(t, err, fault.Invalid)
	if !strings.Contains(fmt.Sprint(err), name) {
		t.Errorf("the name to take is not told: %v", err)
	}
	_, err = p.CreateVolume(t.Context(), scope.Daemon("a test"), partXML(name, 64*mib), CreateOptions{})
	wantKind(t, err, fault.NoCapacity)

	v := d.volume(p, partXML(name, 4*mib-1))
	if v.Virtual != 4*mib || v.Format != image.Raw || v.Kind != Block || v.Path != "/dev/"+name || v.extents[0] != (blockdev.Extent{Device: device, Start: mib, End: 5 * mib}) {
		t.Errorf("volume %+v", v)
	}
	if size, err := blockdev.Size(v.Path); err != nil || size != 4*mib {
		t.Errorf("the kernel's size %d, %v", size, err)
	}
	doc, err := p.XML(false)
	must(t, err)
	if !strings.Contains(doc, fmt.Sprintf("<freeExtent start='%d' ", 5*mib)) {
		t.Errorf("no free extent in %s", doc)
	}
	d.pool(doc) // a dump can be defined again

	d.restart()
	p, err = d.ByName("disk")
	must(t, err)
	if _, found, err := d.ByPath(v.Path); err != nil || found.Virtual != v.Virtual {
		t.Errorf("after a restart %+v, %v", found, err)
	}
	wantKind(t, p.ResizeVolume(t.Context(), scope.Daemon("a test"), name, 8*mib, ResizeOptions{}), fault.Unsupported)
	must(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), name))
	if _, err := os.Stat(v.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the node is still there: %v", err)
	}
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	wantKind(t, p.Delete(t.Context(), scope.Daemon("a test")), fault.Unsupported)
	must(t, p.Build(t.Context(), scope.Daemon("a test"), Overwrite))
}

func TestDiskPool_VolumeData(t *testing.T) {
	needQemuImg(t)
	device := partitionDisk(t)
	d := newDaemon(t)
	p := d.pool(diskXML("disk", device, "gpt"))
	must(t, p.Start(t.Context(), scope.Daemon("a test"), MakeTarget))
	part := func(n int) string { return fmt.Sprintf("%sp%d", filepath.Base(device), n) }
	v := d.volume(p, partXML(part(1), 2*mib))

	data := bytes.Repeat([]byte("lodge!\n\x00"), mib/8)
	up, err := p.Upload(t.Context(), scope.Daemon("a test"), v.Name, mib, 0)
	must(t, err)
	_, err = up.Write(data)
	must(t, err)
	must(t, up.Close())
	got := readVolumeBytes(t, p, v.Name)
	if len(got) != 2*mib || !bytes.Equal(got[mib:], data) {
		t.Errorf("read %d bytes, not those that were written", len(got))
	}

	// A clone has the source's data, also where the partitions below it had other data.
	must(t, dirty(device, 3*mib, 2*mib))
	copied, err := p.CloneVolume(t.Context(), scope.Daemon("a test"), partXML(part(2), 2*mib), p, v.Name, CreateOptions{})
	must(t, err)
	if !bytes.Equal(readVolumeBytes(t, p, copied.Name), got) {
		t.Error("the copy is not like its origin")
	}
	_, err = p.CloneVolume(t.Context(), scope.Daemon("a test"), partXML(part(3), 2*mib), p, v.Name, CreateOptions{Reflink: true})
	wantKind(t, err, fault.Unsupported)

	// A file of the host is not copied because an image above it names it: a guest could have written that
	// image's header.
	files, secret := d.dirPool("files"), filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, make([]byte, mib), 0o600))
	out, err := exec.CommandContext(t.Context(), "qemu-img", "create", "-q", "-f", "qcow2", "-b", secret, "-F", "raw", filepath.Join(files.View().Target, "claims")).CombinedOutput()
	if err != nil {
		t.Fatal(err, string(out))
	}
	must(t, files.Refresh(t.Context(), scope.Daemon("a test")))
	wantKind(t, second(p.CloneVolume(t.Context(), scope.Daemon("a test"), partXML(part(3), 2*mib), files, "claims", CreateOptions{})), fault.Denied)

	must(t, p.WipeVolume(t.Context(), scope.Daemon("a test"), v.Name, false))
	if slices.Max(readVolumeBytes(t, p, v.Name)) != 0 {
		t.Error("something is left after wiping")
	}

	// The space and the number of a deleted partition are used again.
	must(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), v.Name))
	again := d.volume(p, partXML(v.Name, 2*mib))
	if again.extents[0] != v.extents[0] {
		t.Errorf("at %v, not %v", again.extents, v.extents)
	}
}

// dirty fills a part of a device, so that the test sees what is not written later.
func dirty(device string, at int64, n int) error {
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(bytes.Repeat([]byte{0xa5}, n), at); err != nil {
		return err
	}
	return f.Sync()
}

func readVolumeBytes(t *testing.T, p *Pool, name string) []byte {
	t.Helper()
	down, err := p.Download(t.Context(), scope.Daemon("a test"), name, 0, 0)
	must(t, err)
	defer down.Close()
	got, err := io.ReadAll(down)
	must(t, err)
	return got
}

// Promise: F20
func TestDiskPool_RefusesDevicesInUse(t *testing.T) {
	device := partitionDisk(t)
	needTools(t, "mkfs.ext4")
	d := newDaemon(t)
	p := d.pool(diskXML("disk", device, "dos"))
	must(t, p.Start(t.Context(), scope.Daemon("a test"), MakeTarget))
	v := d.volume(p, partXML(filepath.Base(device)+"p1", 8*mib))

	_, err := blockdev.Run(t.Context(), mkfsTime, "mkfs.ext4", "-q", v.Path)
	must(t, err)
	dir := t.TempDir()
	must(t, unix.Mount(v.Path, dir, "ext4", 0, ""))
	mounted := true
	defer func() {
		if mounted {
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	}()
	wantKind(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), v.Name), fault.Busy)
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	wantKind(t, p.Build(t.Context(), scope.Daemon("a test"), Overwrite), fault.Busy)
	wantKind(t, takes(t, device), fault.Busy)
	must(t, unix.Unmount(dir, 0))
	mounted = false

	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	release := openAsGuest(t, v.Path)
	wantKind(t, takes(t, device), fault.Busy) // a disk that this partition is part of
	wantKind(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), v.Name), fault.Busy)
	if _, err := p.Volume(v.Name); err != nil {
		t.Error(err)
	}
	release()
	release = openAsGuest(t, device)
	wantKind(t, takes(t, v.Path), fault.Busy) // a partition of that disk
	release()
	must(t, takes(t, v.Path))

	// A new partition in the same place is not taken for the old file system.
	must(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), v.Name))
	d.volume(p, partXML(v.Name, 8*mib))
	if held, err := blockdev.Content(t.Context(), v.Path); held != "" || err != nil {
		t.Errorf("the new partition holds %s, %v", held, err)
	}
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
}

// takes defines and deletes a pool on a device.
func takes(t *testing.T, device string) error {
	t.Helper()
	f, err := blockdev.Claim(t.Context(), device, true)
	if err == nil {
		must(t, f.Close())
	}
	return err
}

// A guest cannot open a device while a pool is built on it or while its size changes.
// Promise: F20
func TestDiskPool_LocksDeviceAgainstGuests(t *testing.T) {
	name, dir, device, _ := fakeGroup(t)
	begun, goOn := filepath.Join(t.TempDir(), "begun"), filepath.Join(t.TempDir(), "go")
	must(t, errors.Join(unix.Mkfifo(begun, 0o600), unix.Mkfifo(goOn, 0o600)))
	script := "echo > " + begun + "; read line < " + goOn
	fakeTools(t, map[string]string{"mkfs.ext4": script, "lvreduce": script})
	d := newDaemon(t)
	built := d.pool("<pool type='fs'><name>a</name><source><device path='" + device + "'/><format type='ext4'/></source><target><path>" + t.TempDir() + "</path></target></pool>")
	p := d.pool(strings.ReplaceAll(logicalXML(), "lvtest", name))
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	must(t, os.Symlink(device, filepath.Join(dir, "disk")))
	must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	for what, do := range map[string]func() error{
		"building": func() error { return built.Build(t.Context(), scope.Daemon("a test"), Overwrite) },
		"shrinking": func() error {
			return p.ResizeVolume(t.Context(), scope.Daemon("a test"), "disk", 16*mib, ResizeOptions{Shrink: true})
		},
	} {
		done := make(chan error, 1)
		go func() { done <- do() }()
		_, err := os.ReadFile(begun)
		must(t, err)
		f, err := os.OpenFile(device, os.O_RDWR, 0)
		must(t, err)
		if _, err := image.LockToWrite(f); !fault.Is(err, fault.Busy) { // as QEMU does
			t.Errorf("%s it leaves it to a guest: %v", what, err)
		}
		must(t, f.Close())
		must(t, os.WriteFile(goOn, []byte("on\n"), 0o600))
		must(t, <-done)
	}
}

// openAsGuest opens a device with the locks that QEMU takes.
func openAsGuest(t *testing.T, path string) (release func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	lock := unix.Flock_t{Type: unix.F_RDLCK, Start: 100, Len: 1}
	must(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock))
	return func() { must(t, f.Close()) }
}

func TestDefine_RefusedDevicePools(t *testing.T) {
	d := newDaemon(t)
	logical := func(inner string) string { return "<pool type='logical'><name>vg</name>" + inner + "</pool>" }
	disk := func(inner string) string { return "<pool type='disk'><name>d</name>" + inner + "</pool>" }
	for doc, want := range map[string]fault.Kind{
		"<pool type='logical'><name>--config</name></pool>": fault.Invalid,
		logical("<source><name>-x</name></source>"):         fault.Invalid,
		logical("<source><name>a b</name></source>"):        fault.Invalid,
		logical("<source><name>..</name></source>"):         fault.Invalid,
		logical("<source><device path='sdb'/></source>"):    fault.Invalid,
		logical("<source><format type='lvm1'/></source>"):   fault.Invalid,
		logical("<target><path>/dev/other</path></target>"): fault.Unsupported,
		disk(""): fault.Invalid,
		disk("<source><device path='-x'/></source>"):                                                  fault.Invalid,
		disk("<source><device path='/dev/x'/><device path='/dev/y'/></source>"):                       fault.Invalid,
		disk("<source><device path='/dev/x'/><format type='mac'/></source>"):                          fault.Unsupported,
		disk("<source><device path='/dev/x' part_separator='yes'/></source>"):                         fault.Unsupported,
		disk("<source><device path='/dev/x'/></source><target><path>/dev/disk/by-id</path></target>"): fault.Unsupported,
	} {
		if _, err := d.Define(t.Context(), scope.Daemon("a test"), doc, true); !fault.Is(err, want) {
			t.Errorf("%s: %v (%v), want %v", doc, err, fault.Of(err), want)
		}
	}
	d.pool(disk("<source><device path='/dev/x'/></source>"))
	if _, err := d.Define(t.Context(), scope.Daemon("a test"), strings.Replace(disk("<source><device path='/dev/x'/></source>"), ">d<", ">e<", 1), true); !fault.Is(err, fault.Exists) {
		t.Errorf("two pools on one disk: %v", err)
	}
	d.pool(strings.Replace(disk("<source><device path='/dev/y'/></source>"), ">d<", ">e<", 1))
}

// fakeTools puts scripts before the host's tools in PATH. The variable LOG names a file to which each script
// appends its arguments, one line a call.
func fakeTools(t *testing.T, scripts map[string]string) (calls func() []string) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "calls")
	for name, script := range scripts {
		text := "#!/bin/sh\necho " + name + " \"$@\" >> " + log + "\n" + script + "\n"
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700)) //nolint:gosec // it is a program
	}
	before := blockdev.ToolPath
	blockdev.ToolPath = dir + ":" + before
	t.Cleanup(func() { blockdev.ToolPath = before })
	return func() []string {
		text, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		_ = os.Remove(log) // each read shows only the calls since the last one
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
}

// printing makes a script that prints a recorded output.
func printing(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	must(t, err)
	return "cat <<'END'\n" + string(text) + "\nEND"
}

func logicalXML(devices ...string) string {
	var source strings.Builder
	for _, device := range devices {
		source.WriteString("<device path='" + device + "'/>")
	}
	return "<pool type='logical'><name>guests</name><source>" + source.String() + "<name>lvtest</name><format type='lvm2'/></source><target><path>/dev/lvtest</path></target></pool>"
}

// LVM's reports for a group with volumes of each type, as far as Lodge reads them. Snapshots, stripes and thin
// volumes follow LVM's manual: without device-mapper they could not be made and recorded.
func TestLogicalPool_ParsesReports(t *testing.T) {
	text, err := os.ReadFile("testdata/lvs.json")
	must(t, err)
	report, err := blockdev.ParseReport(string(text))
	must(t, err)
	d, err := parsePool(logicalXML(), "", true)
	must(t, err)
	got := map[string]*Volume{}
	for _, v := range (volumeGroup{d}).volumes(report) {
		got[v.Name] = v
	}
	if len(got) != 5 {
		t.Errorf("%d volumes", len(got))
	}
	for name, want := range map[string]struct{ virtual, allocated uint64 }{
		"one": {20 * mib, 20 * mib}, "big": {80 * mib, 80 * mib}, "striped": {16 * mib, 16 * mib},
		"snap": {20 * mib, 8 * mib}, "thin": {40 * mib, 10 * mib},
	} {
		if v := got[name]; v == nil || v.Virtual != want.virtual || v.Allocated != want.allocated || v.Format != image.Raw {
			t.Errorf("%s is %+v", name, v)
		}
	}
	if at := got["big"].extents; !slices.Equal(at, []blockdev.Extent{{Device: "/dev/loop1", Start: 0, End: 60 * mib}, {Device: "/dev/loop0", Start: 20 * mib, End: 40 * mib}}) {
		t.Errorf("big lies at %v", at)
	}
	if at := got["striped"].extents; !slices.Equal(at, []blockdev.Extent{{Device: "/dev/loop0", Start: 80 * mib, End: 88 * mib}, {Device: "/dev/loop1", Start: 60 * mib, End: 68 * mib}}) {
		t.Errorf("striped lies at %v", at)
	}
	if b := got["snap"].Backing; b == nil || b.Name != "/dev/lvtest/one" {
		t.Errorf("snap is on %v", b)
	}
	doc, err := got["big"].XML()
	must(t, err)
	if want := "<source>\n    <device path='/dev/loop1'>\n      <extent start='0' end='62914560'/>\n    </device>\n    <device path='/dev/loop0'>"; !strings.Contains(doc, want) || strings.Contains(doc, "<format") {
		t.Errorf("big is shown as\n%s", doc)
	}
}

// TestStart_SourceMissing: clients take "not found" to mean that no such pool is defined.
func TestStart_SourceMissing(t *testing.T) {
	fakeTools(t, map[string]string{"vgchange": `echo '  Volume group "lvtest" not found' >&2; exit 5`})
	d := newDaemon(t)
	for says, c := range map[string]struct {
		doc   string
		about fault.Subject
	}{
		"device path /dev/nosuch does not exist": {diskXML("disk", "/dev/nosuch", "dos"), fault.Pool},
		"this host has no volume group lvtest":   {logicalXML(), fault.Config},
	} {
		p := d.pool(c.doc)
		err := p.Start(t.Context(), scope.Daemon("a test"), NoBuild)
		if !fault.Is(err, fault.Invalid) || fault.About(err) != c.about || !strings.Contains(err.Error(), says) {
			t.Errorf("%v (%v, %v), want %q", err, fault.Of(err), fault.About(err), says)
		}
		must(t, p.Undefine(t.Context(), scope.Daemon("a test")))
		_, err = d.Create(t.Context(), scope.Daemon("a test"), c.doc, false, NoBuild)
		if !fault.Is(err, fault.Invalid) || fault.About(err) != c.about {
			t.Errorf("create: %v (%v, %v), want %q", err, fault.Of(err), fault.About(err), says)
		}
	}
}

func TestLogicalPool_RunsCommands(t *testing.T) {
	const fail = "echo '  Volume group \"lvtest\" has insufficient free space (5 extents): 100 required.' >&2; exit 5"
	closed := filepath.Join(t.TempDir(), "closed")
	calls := fakeTools(t, map[string]string{
		"vgs": printing(t, "vgs.json"), "lvs": printing(t, "lvs.json"), "vgchange": "[ $2 = y ] || [ -e " + closed + " ]", "lvcreate": fail, "lvextend": "", "lvreduce": "", "lvremove": "", "vgremove": "",
	})
	d := newDaemon(t)
	p := d.pool(logicalXML("/dev/loop0", "/dev/loop1"))
	wantKind(t, p.Delete(t.Context(), scope.Daemon("a test")), fault.Exists) // the group has volumes
	calls()
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	if got := calls(); got[0] != "vgchange --activate y lvtest" {
		t.Errorf("starting calls %q", got)
	}
	if v := p.View(); v.Capacity != 120*mib || v.Available != 20*mib || v.Allocation != 100*mib || v.Target != "/dev/lvtest" {
		t.Errorf("view %+v", v)
	}
	for doc, want := range map[string]struct {
		kind fault.Kind
		call string
	}{
		partXML("new", 400*mib): {fault.NoCapacity, "lvcreate --yes --name new --size 419430400b lvtest"},
		"<volume><name>s</name><capacity>20971520</capacity><allocation>4194304</allocation><backingStore><path>/dev/lvtest/one</path></backingStore></volume>": {fault.Unsupported, "lvs"}, // in the report, another size comes last
		"<volume><name>s</name><backingStore><path>/dev/other/one</path></backingStore></volume>":                                                               {fault.Unsupported, ""},
		"<volume><name>-x</name><capacity>1</capacity></volume>":                                                                                                {fault.Invalid, ""},
		"<volume><name>t</name><capacity>8</capacity><allocation>4</allocation></volume>":                                                                       {fault.Unsupported, ""},
		"<volume><name>q</name><capacity>8</capacity><target><format type='qcow2'/></target></volume>":                                                          {fault.Unsupported, ""},
		"<volume><name>q</name></volume>":                       {fault.Invalid, ""},
		"<volume><name>q</name><capacity>0</capacity></volume>": {fault.Invalid, ""},
	} {
		_, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), doc, CreateOptions{})
		wantKind(t, err, want.kind)
		if got := calls(); !strings.HasPrefix(got[0], want.call) {
			t.Errorf("%s calls %q", doc, got)
		}
	}
	g := volumeGroup{p.saved}
	v := &Volume{Name: "one", Path: "/dev/lvtest/one", Info: image.Info{Virtual: 20 * mib}}
	must(t, g.resize(t.Context(), v, 24*mib))
	must(t, g.resize(t.Context(), v, 8*mib))
	must(t, g.remove(t.Context(), v, nil))
	wantKind(t, g.remove(t.Context(), v, []*Volume{{Name: "snap", backingPath: v.Path}}), fault.Busy)
	if got, want := calls(), []string{
		"lvextend --size 25165824b lvtest/one", "lvreduce --yes --force --size 8388608b lvtest/one", "lvremove --yes lvtest/one",
	}; !slices.Equal(got, want) {
		t.Errorf("calls %q", got)
	}
	// A group with an open volume stays as it was.
	wantKind(t, p.Stop(t.Context(), scope.Daemon("a test")), fault.Failed)
	if got := calls(); !slices.Equal(got, []string{"vgchange --activate n lvtest", "vgchange --activate y lvtest"}) || !p.View().Active() {
		t.Errorf("a stop that is refused calls %q", got)
	}
	must(t, os.WriteFile(closed, nil, 0o600))
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	if got := calls(); !slices.Equal(got, []string{"vgchange --activate n lvtest"}) {
		t.Errorf("stopping calls %q", got)
	}
}

// Without device-mapper in the kernel, LVM can only keep its metadata. So LVM's own tools run here on real
// devices, with device-mapper turned off. Volumes have no nodes and show only in the sizes of the group.
func TestLogicalPool_RealVolumeGroup(t *testing.T) {
	needTools(t, "lvm", "wipefs", "blkid")
	one, two := loopDevice(t), loopDevice(t)
	scripts := map[string]string{}
	for _, tool := range []string{"pvcreate", "vgcreate", "vgremove", "pvremove", "vgs", "lvs", "pvs", "lvremove", "lvextend"} {
		scripts[tool] = "exec lvm " + tool + " --driverloaded n --devices " + one + "," + two + " \"$@\""
	}
	scripts["lvcreate"] = "exec lvm lvcreate --driverloaded n --devices " + one + "," + two + " --activate n --zero n --wipesignatures n \"$@\""
	scripts["vgchange"] = ""
	fakeTools(t, scripts)
	t.Cleanup(func() { // when the test fails half way
		_, _ = blockdev.Run(context.Background(), blockdev.ToolTime, "wipefs", "--all", "--force", one, two)
	})
	d := newDaemon(t)
	events := d.log.Reader()
	must(t, dirty(one, 0, mib))
	_, err := blockdev.Run(t.Context(), mkfsTime, "mkfs.ext4", "-q", "-F", two)
	must(t, err)
	p := d.pool(logicalXML(one, two))
	wantKind(t, p.Build(t.Context(), scope.Daemon("a test"), MakeTarget), fault.Exists) // the second device holds a file system
	must(t, p.Build(t.Context(), scope.Daemon("a test"), Overwrite))
	wantKind(t, p.Build(t.Context(), scope.Daemon("a test"), KeepExisting), fault.Exists)
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	if v := p.View(); v.Capacity != 56*mib || v.Available != v.Capacity {
		t.Errorf("view %+v", v)
	}
	if found, err := FindSources(t.Context(), Logical, ""); err != nil || !strings.Contains(found, "<name>lvtest</name>") || !strings.Contains(found, "<device path='"+two+"'/>") {
		t.Errorf("found %s, %v", found, err)
	}
	g := volumeGroup{p.saved}
	size := uint64(40 * mib)
	must(t, g.add(t.Context(), &volumeRequest{name: "big", format: image.Raw, capacity: &size}))
	wantKind(t, g.add(t.Context(), &volumeRequest{name: "more", format: image.Raw, capacity: &size}), fault.NoCapacity)
	must(t, g.resize(t.Context(), &Volume{Name: "big", Info: image.Info{Virtual: size}}, 44*mib))
	_, err = p.CreateVolume(t.Context(), scope.Daemon("a test"), partXML("unseen", 4*mib), CreateOptions{})
	wantKind(t, err, fault.NotFound) // it has no node, so it is removed again
	must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	if v := p.View(); v.Allocation != 44*mib || v.Available != 12*mib || len(v.Volumes) != 0 {
		t.Errorf("view %+v", v)
	}
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	wantKind(t, p.Delete(t.Context(), scope.Daemon("a test")), fault.Exists)
	must(t, g.remove(t.Context(), &Volume{Name: "big"}, nil))
	must(t, p.Delete(t.Context(), scope.Daemon("a test")))
	for _, device := range []string{one, two} {
		if held, err := blockdev.Content(t.Context(), device); held != "" || err != nil {
			t.Errorf("%s holds %s, %v", device, held, err)
		}
	}
	var last event.Payload
	for range 6 {
		e, _, err := events.Next(t.Context())
		must(t, err)
		last = e.Payload
	}
	if last != (event.PoolChange{Change: event.Deleted}) {
		t.Errorf("the last event is %+v", last)
	}
}

// fakeGroup makes tools that act as LVM with device-mapper. The one volume that they can make is a link in the
// group's directory to a loop device.
func fakeGroup(t *testing.T) (name, dir, device string, calls func() []string) {
	t.Helper()
	device = loopDevice(t)
	name = fmt.Sprintf("lodge-test-%d", os.Getpid())
	dir = filepath.Join("/dev", name)
	must(t, os.Mkdir(dir, 0o700))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	calls = fakeTools(t, map[string]string{
		"vgs":      printing(t, "vgs.json"),
		"vgchange": "",
		"lvcreate": `ln -s ` + device + ` ` + dir + `/"$3"`,
		"lvremove": `rm /dev/"$2"`,
		"lvs": `cd ` + dir + `; printf '{"report":[{"seg":['; for v in *; do test -L "$v" &&
			printf '{"lv_name":"%s","lv_attr":"-wi-a-----","lv_size":"33554432","seg_size":"33554432","vg_extent_size":"4194304","devices":"/dev/loop1(2)"}' "$v"; done; echo ']}]}'`,
	})
	return name, dir, device, calls
}

// The beginning of a copy on a block device is written last, so an interrupted copy is not taken for a disk.
// Promise: F33
func TestClone_DeviceHeaderIsWrittenLast(t *testing.T) {
	needQemuImg(t)
	name, _, device, _ := fakeGroup(t)
	tool, err := exec.LookPath("qemu-img")
	must(t, err)
	dir := t.TempDir()
	seen := filepath.Join(dir, "seen")
	script := "#!/bin/sh\ncase \"$*\" in *,size=*) head -c 2M " + device + " > " + seen + ";; esac\nexec " + tool + " \"$@\"\n"
	must(t, os.WriteFile(filepath.Join(dir, "qemu-img"), []byte(script), 0o700)) //nolint:gosec // it is a program
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	d := newDaemon(t)
	p, files := d.pool(strings.ReplaceAll(logicalXML(), "lvtest", name)), d.dirPool("files")
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	data := bytes.Repeat([]byte{7}, 2*mib)
	_, err = files.FillVolume(t.Context(), scope.Daemon("a test"), "origin", data)
	must(t, err)
	must(t, dirty(device, 0, 3*mib))
	_, err = p.CloneVolume(t.Context(), scope.Daemon("a test"), partXML("copy", 32*mib), files, "origin", CreateOptions{})
	must(t, err)
	if got := readVolumeBytes(t, p, "copy"); !bytes.Equal(got, append(data, make([]byte, 30*mib)...)) {
		t.Error("the copy is not like its origin")
	}
	half, err := os.ReadFile(seen)
	must(t, err)
	if !bytes.Equal(half, append(make([]byte, copiedLast), data[copiedLast:]...)) {
		t.Error("just before its end it begins already, or lacks something")
	}
	must(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), "copy"))
}

// A tool that runs longer than its caller waits leaves no empty volume behind.
// Promise: F33
func TestCreateVolume_ToolExceedsDeadline(t *testing.T) {
	name, dir, device, _ := fakeGroup(t)
	slow := filepath.Join(t.TempDir(), "slow")
	must(t, unix.Mkfifo(slow, 0o600))
	calls := fakeTools(t, map[string]string{"lvcreate": "read line < " + slow + "; ln -s " + device + " " + dir + `/"$3"`})
	d := newDaemon(t)
	p := d.pool(strings.ReplaceAll(logicalXML(), "lvtest", name))
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	createTime = 10 * time.Millisecond
	defer func() { createTime = answerTime }()
	_, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), partXML("late", 32*mib), CreateOptions{})
	wantKind(t, err, fault.Timeout)
	must(t, os.WriteFile(slow, []byte("go on\n"), 0o600))
	must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 || len(p.View().Volumes) != 0 {
		t.Errorf("%v and %v are left (%v)", left, p.View().Volumes, err)
	}
	if got := calls(); len(got) != 1 || !strings.HasPrefix(got[0], "lvcreate ") {
		t.Errorf("it called %q", got)
	}
}

func TestLogicalPool_VolumeLifecycle(t *testing.T) {
	needQemuImg(t)
	name, dir, _, calls := fakeGroup(t)
	d := newDaemon(t)
	p := d.pool(strings.ReplaceAll(logicalXML(), "lvtest", name))
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	v := d.volume(p, partXML("disk", 32*mib))
	if v.Path != filepath.Join(dir, "disk") || v.Virtual != 32*mib || v.Kind != Block {
		t.Errorf("volume %+v", v)
	}
	doc, err := p.XML(false)
	must(t, err)
	d.pool(doc) // a dump can be defined again
	if path, format, err := d.Resolve("guests", "disk", ""); err != nil || path != v.Path || format != image.Raw {
		t.Errorf("%s, %s, %v", path, format, err)
	}
	up, err := p.Upload(t.Context(), scope.Daemon("a test"), "disk", 0, 0)
	must(t, err)
	_, err = up.Write([]byte("QFI\xfb\x00\x00\x00\x03")) // data that a guest writes do not turn it into a qcow2 image
	must(t, err)
	must(t, up.Close())
	if v, err = p.Volume("disk"); err != nil || v.Format != image.Raw || v.Virtual != 32*mib {
		t.Errorf("%+v, %v", v, err)
	}
	must(t, p.WipeVolume(t.Context(), scope.Daemon("a test"), "disk", false))
	release := openAsGuest(t, v.Path)
	for _, err := range []error{
		p.DeleteVolume(t.Context(), scope.Daemon("a test"), "disk"), p.WipeVolume(t.Context(), scope.Daemon("a test"), "disk", false), p.ResizeVolume(t.Context(), scope.Daemon("a test"), "disk", 40*mib, ResizeOptions{}),
	} {
		wantKind(t, err, fault.Busy)
	}
	release()
	must(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), "disk"))
	if got := calls(); !slices.Contains(got, "lvremove --yes "+name+"/disk") || dirNames(t, p) != "" {
		t.Errorf("calls %q", got)
	}

	// A copy that fails is removed: here there is no space for its data.
	files := d.dirPool("files")
	origin := d.volume(files, volXML("large", "qcow2", 40*mib, ""))
	must(t, exec.CommandContext(t.Context(), "qemu-io", "-c", "write -P 7 36M 1M", origin.Path).Run())
	_, err = p.CloneVolume(t.Context(), scope.Daemon("a test"), partXML("copy", 40*mib), files, "large", CreateOptions{})
	wantKind(t, err, fault.Failed)
	if dirNames(t, p) != "" {
		t.Error("half a copy is left")
	}
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
}

func TestDevicePools_MissingToolNamesPackage(t *testing.T) {
	before := blockdev.ToolPath
	blockdev.ToolPath = t.TempDir()
	defer func() { blockdev.ToolPath = before }()
	d := newDaemon(t)
	for doc, pack := range map[string]string{logicalXML("/dev/x"): "package lvm2", diskXML("d", "/dev/null", "gpt"): "package fdisk"} {
		p := d.pool(doc)
		for _, err := range []error{p.Start(t.Context(), scope.Daemon("a test"), NoBuild), p.Build(t.Context(), scope.Daemon("a test"), KeepExisting)} {
			if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), pack) {
				t.Errorf("%v, want %s", err, pack)
			}
		}
	}
	doc, err := Capabilities()
	if err != nil || !strings.Contains(doc, "<pool type='logical' supported='no'/>") || !strings.Contains(doc, "<pool type='disk' supported='no'/>") {
		t.Errorf("%s, %v", doc, err)
	}
}

// Partition tables and labels on a device are foreign input.
func FuzzLVMReports(f *testing.F) {
	for _, file := range []string{"lvs.json", "vgs.json", "sfdisk.json"} {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	d, err := parsePool(logicalXML(), "", true)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if report, err := blockdev.ParseReport(string(text)); err == nil {
			for _, v := range (volumeGroup{d}).volumes(report) {
				doc, err := v.XML()
				if err == nil {
					_, err = xmltree.Parse(doc)
				}
				if err != nil {
					t.Fatalf("%v: %s", err, doc)
				}
			}
		}
		table, err := blockdev.ParseTable(string(text), 64*mib)
		if err != nil {
			return
		}
		for _, e := range table.Free() {
			if e.Start >= e.End || e.End > 64*mib || e.Start%blockdev.Align != 0 || e.End%blockdev.Align != 0 {
				t.Fatalf("%+v in %s", e, text)
			}
		}
	})
}
