package guest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// The kernel's side of SELinux and AppArmor is replaced by files that record the daemon's writes. Labels of files
// are real.

// newDaemonWith makes a daemon on a host that enforces something.
func newDaemonWith(t *testing.T, tree string) *daemon {
	t.Helper()
	d := newDaemonOf(t, true)
	d.close()
	d.enforces = kerneltest.Dir(t, tree)
	d.open()
	return d
}

// told is what the kernel was told by one of its files.
func (d *daemon) told(file string) string {
	d.t.Helper()
	text, err := os.ReadFile(filepath.Join(d.enforces, file))
	ok(d.t, err)
	return string(text)
}

const execFile = "proc/thread-self/attr/exec"

// contextOf is a file's label, as the kernel has it.
func contextOf(t *testing.T, path string) string {
	t.Helper()
	var text [256]byte
	n, err := unix.Getxattr(path, "security.selinux", text[:])
	if err == unix.ENODATA {
		return ""
	}
	ok(t, err)
	return strings.TrimRight(string(text[:n]), "\x00")
}

// labelled makes a file with a label that it had before any guest.
func (d *daemon) labelled(name, context string) string {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	ok(d.t, os.WriteFile(path, make([]byte, 1<<20), 0o644)) //nolint:gosec // guests' users read it
	if context != "" {
		if err := unix.Setxattr(path, "security.selinux", append([]byte(context), 0), 0); err != nil {
			d.t.Skip("files here cannot be labelled: ", err)
		}
	}
	return path
}

// wantContext compares a file's label with a pattern.
func wantContext(t *testing.T, when, path, pattern string) {
	t.Helper()
	if now := contextOf(t, path); !regexp.MustCompile("^" + pattern + "$").MatchString(now) {
		t.Errorf("%s: %s is %q, not %q", when, filepath.Base(path), now, pattern)
	}
}

func fileDisk(path, device, dev, bus, more string) string {
	return fmt.Sprintf(`<disk type='file' device='%s'><driver name='qemu' type='raw'/><source file='%s'/><target dev='%s' bus='%s'/>%s</disk>`, device, path, dev, bus, more)
}

const (
	home    = "unconfined_u:object_r:user_home_t:s0"
	pooled  = "system_u:object_r:virt_image_t:s0"
	content = "system_u:object_r:virt_content_t:s0"
	shared  = "system_u:object_r:svirt_image_t:s0"
	private = "system_u:object_r:svirt_image_t:(s0:c[0-9]+,c[0-9]+)"
)

// Each QEMU gets its own category pair. Files that it writes have the same pair, files that it reads can be read
// by all. The next daemon keeps the pair. At the end all labels are restored.
// Promise: I8
func TestLabels_Lifecycle(t *testing.T) {
	d := newDaemonWith(t, kerneltest.SELinux)
	disk, both := d.labelled("disk.raw", pooled), d.labelled("both.raw", pooled)
	medium, bare := d.labelled("medium.iso", home), d.labelled("bare.raw", "")
	before := map[string]string{disk: pooled, both: pooled, medium: home, bare: ""}
	one := d.define(small("one", fileDisk(disk, "disk", "vda", "virtio", ""), fileDisk(both, "disk", "vdb", "virtio", "<shareable/>"),
		fileDisk(medium, "cdrom", "sda", "sata", "<readonly/>"), fileDisk(bare, "disk", "vdc", "virtio", "")))
	two := d.define(small("two", fileDisk(both, "disk", "vdb", "virtio", "<shareable/>"), fileDisk(medium, "cdrom", "sda", "sata", "<readonly/>")))
	ok(t, launch.Start(d.ctx(), one, scope.Daemon("a test"), launch.StartOptions{}))
	process := d.told(execFile)
	if !regexp.MustCompile(`^system_u:system_r:svirt_tcg_t:s0:c\d+,c\d+$`).MatchString(process) {
		t.Fatalf("QEMU is labelled %q", process)
	}
	pair := strings.TrimPrefix(process, "system_u:system_r:svirt_tcg_t:")
	own := "system_u:object_r:svirt_image_t:" + pair
	ok(t, launch.Start(d.ctx(), two, scope.Daemon("a test"), launch.StartOptions{}))
	if d.told(execFile) == process {
		t.Errorf("two guests are labelled %s", process)
	}
	running := func(when string) {
		t.Helper()
		for path, context := range map[string]string{
			disk: own, bare: own, both: shared, medium: content, guest.LogPath(d.Registry, "one"): own, filepath.Join(guest.RunDir(one), "own"): own,
			d.within(one, "dev/null"): own, d.within(one, "etc"): content,
		} {
			wantContext(t, when, path, regexp.QuoteMeta(context))
		}
		v := d.again(one).View()
		text, err := domainxml.Format(v.Active, domainxml.Style{Active: true, ID: v.ID})
		ok(t, err)
		shown := "<seclabel type='dynamic' model='selinux' relabel='yes'>\n    <label>" + process + "</label>\n    <imagelabel>" + own + "</imagelabel>\n  </seclabel>"
		if !strings.Contains(text, shown) || !strings.HasPrefix(labelsOf(d, v), process+" +") || !slices.Contains(v.Isolation, "selinux") {
			t.Errorf("%s: it is said to be %q, kept by %v, and is\n%s", when, labelsOf(d, v), v.Isolation, text)
		}
		if text, err = domainxml.Format(v.Inactive, domainxml.Style{}); err != nil || strings.Contains(text, "seclabel") {
			t.Errorf("%s: a value of one run is stored (%v):\n%s", when, err, text)
		}
	}
	running("started")
	d.reopen(func() {})
	running("adopted")
	// The pair of an adopted guest is not given to another.
	taken := d.define(strings.Replace(small("taken"), "<devices>", "<seclabel type='static' model='selinux'><label>"+process+"</label></seclabel><devices>", 1))
	refused(t, launch.Start(d.ctx(), taken, scope.Daemon("a test"), launch.StartOptions{}), fault.Busy, one.UUID)

	ok(t, guest.Destroy(d.ctx(), d.again(one), scope.Daemon("a test"), false))
	settled(t, d, one)
	for path, context := range map[string]string{disk: pooled, bare: "", both: shared, medium: content} { // two goes on
		wantContext(t, "one has ended", path, regexp.QuoteMeta(context))
	}
	ok(t, guest.Destroy(d.ctx(), d.again(two), scope.Daemon("a test"), false))
	settled(t, d, two)
	for path, context := range before {
		wantContext(t, "both have ended", path, regexp.QuoteMeta(context))
	}
	if left, err := filepath.Glob(filepath.Join(d.dir, "data/guest/labels/*")); err != nil || len(left) > 0 {
		t.Errorf("journals are left: %v %v", left, err)
	}
	if said := d.told("proc/thread-self/attr/sockcreate"); said != "\n" {
		t.Errorf("sockets of the daemon's would be %q", said)
	}
	ok(t, launch.Start(d.ctx(), taken, scope.Daemon("a test"), launch.StartOptions{})) // the pair is free
	if d.told(execFile) != process {
		t.Errorf("it is labelled %q, and says %q", d.told(execFile), process)
	}
}

// within is a path in a guest's sandbox, as the host sees it.
func (d *daemon) within(g *guest.Guest, path string) string {
	return fmt.Sprintf("/proc/%d/root/%s", d.again(g).View().PID, path)
}

// settled waits until a guest has ended and everything is given back.
func settled(t *testing.T, d *daemon, g *guest.Guest) {
	t.Helper()
	eventually(t, g.Name()+" has released its resources", func() bool {
		return d.again(g).View().Active == nil && gone(filepath.Join(d.dir, "run/guest", g.UUID))
	})
}

// Guests end without a daemon that sees it: QEMU ends while no daemon runs, the host reboots, or the daemon ends
// during a start.
// Promise: I8
func TestLabels_EndWhileNoDaemonRan(t *testing.T) {
	for what, meanwhile := range map[string]func(d *daemon, run string){
		"QEMU ended": func(*daemon, string) {},
		"the host was booted anew": func(d *daemon, run string) {
			ok(t, d.groups.Guest(filepath.Base(run)).Clear(d.ctx()))
			ok(t, os.RemoveAll(run))
		},
		"a start was cut off": func(_ *daemon, run string) {
			text, err := os.ReadFile(filepath.Join(run, "run.json"))
			ok(t, err)
			text = regexp.MustCompile(`"Phase":\d+`).ReplaceAll(text, []byte(`"Phase":0`))
			ok(t, os.WriteFile(filepath.Join(run, "run.json"), text, 0o600))
		},
	} {
		t.Run(what, func(t *testing.T) {
			d := newDaemonWith(t, kerneltest.SELinux)
			disk, medium, others := d.labelled("disk.raw", pooled), d.labelled("medium.iso", home), d.labelled("others.raw", home)
			g := d.define(small("g", fileDisk(disk, "disk", "vda", "virtio", ""), fileDisk(medium, "cdrom", "sda", "sata", "<readonly/>"),
				fileDisk(others, "disk", "vdb", "virtio", "")))
			ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
			wantContext(t, "started", disk, private)
			pid, run := g.View().PID, guest.RunDir(g)
			d.reopen(func() {
				kill(t, pid)
				meanwhile(d, run)
				ok(t, unix.Setxattr(others, "security.selinux", []byte("a:b:c:s0\x00"), 0)) // a label that another program has set
			})
			settled(t, d, g)
			wantContext(t, what, disk, pooled)
			wantContext(t, what, medium, home)
			wantContext(t, what, others, "a:b:c:s0")
			if left, err := filepath.Glob(filepath.Join(d.dir, "data/guest/labels/*")); err != nil || len(left) > 0 {
				t.Errorf("journals are left: %v %v", left, err)
			}
		})
	}
}

// kill ends a QEMU and waits until it is gone.
func kill(t *testing.T, pid int) {
	t.Helper()
	ok(t, unix.Kill(pid, unix.SIGKILL))
	eventually(t, "QEMU is gone", func() bool {
		p, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(p), ") Z ")
	})
}

// Attached files are labelled. When the device goes, they get their own labels back.
// Promise: I8
func TestLabels_Attach(t *testing.T) {
	d := newDaemonWith(t, kerneltest.SELinux)
	g := d.define(small("g", `<controller type='usb' model='qemu-xhci'/>`, `<disk type='file' device='cdrom'><target dev='sda' bus='sata'/></disk>`))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	live := machine.Affect{Live: true}
	path, medium, next := d.labelled("stick.raw", home), d.labelled("medium.iso", home), d.labelled("next.iso", home)
	stick := fileDisk(path, "disk", "sdb", "usb", "")
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), stick, live))
	wantContext(t, "plugged", path, private)
	other := d.define(small("other", fileDisk(path, "disk", "vda", "virtio", "<readonly/>")))
	refused(t, launch.Start(d.ctx(), other, scope.Daemon("a test"), launch.StartOptions{}), fault.Busy, "shareable")
	wantContext(t, "refused", path, private)
	d.reopen(func() {})
	g = d.again(g)
	ok(t, hotplug.Detach(d.ctx(), g, scope.Daemon("a test"), stick, live))
	eventually(t, "the stick's label is given back", func() bool { return contextOf(t, path) == home })

	ok(t, hotplug.Update(d.ctx(), g, scope.Daemon("a test"), fileDisk(medium, "cdrom", "sda", "sata", "<readonly/>"), live, false))
	wantContext(t, "in the drive", medium, content)
	ok(t, hotplug.Update(d.ctx(), g, scope.Daemon("a test"), fileDisk(next, "cdrom", "sda", "sata", "<readonly/>"), live, false))
	wantContext(t, "out of the drive", medium, home)
	wantContext(t, "in the drive", next, content)
	ok(t, hotplug.Update(d.ctx(), g, scope.Daemon("a test"), `<disk type='file' device='cdrom'><target dev='sda' bus='sata'/></disk>`, live, false))
	wantContext(t, "out of the drive", next, home)

	// A plug of nothing that fails takes nothing back that is the guest's.
	if err := hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), `<disk type='file' device='cdrom'><target dev='sdz' bus='sata'/></disk>`, live); err == nil {
		t.Error("a SATA drive is plugged in")
	}
	wantContext(t, "a plug failed", guest.LogPath(d.Registry, "g"), private)

	// While memory is written to the image, the image belongs to the guest alone.
	image := filepath.Join(d.dir, "saved")
	ok(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), image, savestate.SaveOptions{}))
	settled(t, d, g)
	wantContext(t, "saved", image, "")
	again, err := guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), image, savestate.SaveOptions{})
	ok(t, err)
	wantContext(t, "restored", image, content)
	ok(t, guest.Destroy(d.ctx(), again, scope.Daemon("a test"), false))
	settled(t, d, again)
	wantContext(t, "ended", image, "")
}

// A definition can name labels, ask for none, or leave files alone.
func TestLabels_Definition(t *testing.T) {
	d := newDaemonWith(t, kerneltest.SELinux)
	disk := d.labelled("disk.raw", pooled)
	with := func(name, seclabel, insource string) string {
		doc := small(name, strings.Replace(fileDisk(disk, "disk", "vda", "virtio", ""), "<source file='"+disk+"'/>", "<source file='"+disk+"'>"+insource+"</source>", 1))
		return strings.Replace(doc, "<devices>", seclabel+"<devices>", 1)
	}
	for name, c := range map[string]struct{ seclabel, insource, process, file string }{
		"fixed":    {"<seclabel type='static' model='selinux' relabel='yes'><label>a_u:a_r:a_t:s0:c1,c2</label></seclabel>", "", "a_u:a_r:a_t:s0:c1,c2", "system_u:object_r:svirt_image_t:s0:c1,c2"},
		"left":     {"<seclabel type='static' model='selinux'><label>a_u:a_r:a_t:s0:c1,c2</label></seclabel>", "", "a_u:a_r:a_t:s0:c1,c2", pooled},
		"based":    {"<seclabel type='dynamic' model='selinux'><baselabel>b_u:b_r:b_t:s0</baselabel></seclabel>", "", `b_u:b_r:b_t:s0:c\d+,c\d+`, private},
		"none":     {"<seclabel type='none' model='selinux'/>", "", "", pooled},
		"noneall":  {"<seclabel type='none'/>", "", "", pooled},
		"diskleft": {"", "<seclabel model='selinux' relabel='no'/>", `system_u:system_r:svirt_tcg_t:s0:c\d+,c\d+`, pooled},
		"diskown":  {"", "<seclabel model='selinux'><label>d_u:d_r:d_t:s0</label></seclabel>", `system_u:system_r:svirt_tcg_t:s0:c\d+,c\d+`, "d_u:d_r:d_t:s0"},
	} {
		ok(t, os.WriteFile(filepath.Join(d.enforces, execFile), nil, 0o600))
		g := d.define(with(name, c.seclabel, c.insource))
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
		if said := d.told(execFile); !regexp.MustCompile("^" + c.process + "$").MatchString(said) {
			t.Errorf("%s: it is labelled %q", name, said)
		}
		wantContext(t, name, disk, c.file)
		if c.process != "" { // files of the guest alone have its label, whatever label its disks have
			wantContext(t, name, d.within(g, "dev/null"), `system_u:object_r:svirt_image_t:s0:c\d+,c\d+`)
		}
		ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
		settled(t, d, g)
		wantContext(t, name+" has ended", disk, pooled)
	}
	for why, doc := range map[string]string{
		"relabel":  with("bad", "<seclabel type='dynamic' model='selinux' relabel='no'/>", ""),
		"<label>":  with("bad", "<seclabel type='static' model='selinux'/>", ""),
		"apparmor": with("bad", "<seclabel type='static' model='apparmor'><label>x</label></seclabel>", ""),
	} {
		if _, err := guest.Define(d.ctx(), d.Registry, scope.Daemon("a test"), doc, false); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("it is not refused for %s: %v", why, err)
		}
	}
	_, err := guest.Define(d.ctx(), d.Registry, scope.Daemon("a test"), with("bad", "", "<seclabel model='selinux'><label>rubbish</label></seclabel>"), false)
	refused(t, err, fault.Invalid, "rubbish")
}

// A file system without labels, such as NFS, is reported, and its guests start.
// Promise: I8
func TestLabels_FileSystemWithout(t *testing.T) {
	d := newDaemonWith(t, kerneltest.SELinux)
	at := filepath.Join(d.dir, "plain")
	ok(t, os.Mkdir(at, 0o755)) //nolint:gosec // guests' users go in
	if err := unix.Mount("plain", at, "ramfs", 0, ""); err != nil {
		t.Skip("no file system without labels: ", err)
	}
	t.Cleanup(func() {
		d.destroyAll()
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	disk := d.labelled("plain/disk.raw", "")
	if err := unix.Setxattr(disk, "security.selinux", []byte("a:b:c\x00"), 0); err == nil {
		t.Skip("this kernel's ramfs keeps labels")
	}
	g := d.define(small("g", fileDisk(disk, "disk", "vda", "virtio", "")))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	if all := g.View().Messages; !slices.ContainsFunc(all, func(m string) bool { return strings.Contains(m, disk) && strings.Contains(m, "label") }) {
		t.Errorf("it is not told: %v", all)
	}
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	settled(t, d, g)
}

// A host without the required labels starts no guest.
// Promise: I10
func TestLabels_Required(t *testing.T) {
	d := newDaemonOf(t, true)
	d.required = true
	d.reopen(func() {})
	if d.Labels != nil {
		t.Skip("this host has labels")
	}
	g := d.define(small("g"))
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Unsupported, "--security-labels=require")
	if i := provision.HostIsolation(d.Registry); !slices.ContainsFunc(i.Lacking, func(s string) bool { return strings.HasPrefix(s, "labels (") }) {
		t.Errorf("it lacks %v", i.Lacking)
	}
	d.enforces = kerneltest.Dir(t, kerneltest.SELinux)
	d.reopen(func() {})
	ok(t, launch.Start(d.ctx(), d.again(g), scope.Daemon("a test"), launch.StartOptions{}))
	none := d.define(strings.Replace(small("none"), "<devices>", "<seclabel type='none' model='selinux'/><devices>", 1))
	refused(t, launch.Start(d.ctx(), none, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, "none")
}

// newParser puts a fake apparmor_parser into the path, which records the profiles that it was to load.
func newParser(t *testing.T) (loaded func() string) {
	t.Helper()
	dir := t.TempDir()
	at := filepath.Join(dir, "profile")
	script := fmt.Sprintf("#!/bin/sh\necho \"$*\" >%s/how\ncat >%s\n", dir, at)
	ok(t, os.WriteFile(filepath.Join(dir, "apparmor_parser"), []byte(script), 0o700)) //nolint:gosec // a program
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() string {
		t.Helper()
		how, err := os.ReadFile(filepath.Join(dir, "how"))
		ok(t, err)
		if !strings.Contains(string(how), "--replace") {
			t.Errorf("the parser was run with %q", how)
		}
		text, err := os.ReadFile(at)
		ok(t, err)
		return string(text)
	}
}

// Each QEMU enters a profile. It allows the files that this QEMU needs, and no file of another guest. The
// profile grows and shrinks with the guest's devices, and is removed with the guest.
// Promise: I9
func TestLabels_AppArmorProfile(t *testing.T) {
	parser, err := exec.LookPath("apparmor_parser") // AppArmor's own
	profile := newParser(t)
	d := newDaemonWith(t, kerneltest.AppArmor)
	disk, medium, path := d.labelled("disk 1,{a}.raw", ""), d.labelled("medium.iso", ""), d.labelled("stick.raw", "")
	g := d.define(small("g", `<controller type='usb' model='qemu-xhci'/>`, fileDisk(disk, "disk", "vda", "virtio", ""),
		fileDisk(medium, "cdrom", "sda", "sata", "<readonly/>"), `<graphics type='vnc'/>`))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	name := "lodge-" + d.Instance + "-" + g.UUID
	if said := d.told("proc/thread-self/attr/apparmor/exec"); said != "exec "+name {
		t.Errorf("QEMU enters %q", said)
	}
	own := "/room" + filepath.Join(guest.RunDir(g), "own")
	start := profile()
	for _, want := range []string{
		`profile "` + name + `" flags=(attach_disconnected) {`,
		`"` + strings.NewReplacer(",", `\,`, "{", `\{`, "}", `\}`).Replace(disk) + `" rwk,`, `"` + medium + `" rk,`,
		`"` + own + `/**" rwk,`, `"/room/usr/**" rm,`, `"/room/dev/urandom" rwk,`, `"/room/dev/ptmx" rwk,`, `"` + guest.LogPath(d.Registry, "g") + `" w,`,
		`"` + filepath.Join(guest.RunDir(g), "monitor.sock") + `" rw,`, "  network inet,", `ptrace (readby, tracedby) peer="unconfined",`,
	} {
		if !strings.Contains(start, want) {
			t.Errorf("it does not say %s:\n%s", want, start)
		}
	}
	for _, not := range []string{path, `"/room/dev/kvm"`, "capability", "/run.json", `"/etc`, `"/**"`} {
		if strings.Contains(start, not) {
			t.Errorf("it allows %s:\n%s", not, start)
		}
	}
	if err == nil {
		c := exec.CommandContext(t.Context(), parser, "-Q", "-K")
		c.Stdin = strings.NewReader(start)
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("AppArmor's parser does not take it: %v\n%s\n%s", err, out, start)
		}
	} else {
		t.Log("AppArmor's own parser is not asked: ", err)
	}
	if v := g.View(); !strings.HasPrefix(labelsOf(d, v), name+" +") || !slices.Contains(v.Isolation, "apparmor") {
		t.Errorf("it is said to be %q, kept by %v", labelsOf(d, v), v.Isolation)
	}
	live, stick := machine.Affect{Live: true}, fileDisk(path, "disk", "sdb", "usb", "")
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), stick, live))
	if now := profile(); !strings.Contains(now, `"`+path+`" rwk,`) || !strings.Contains(now, medium) {
		t.Errorf("with the stick it says\n%s", now)
	}
	d.reopen(func() {})
	g = d.again(g)
	ok(t, hotplug.Detach(d.ctx(), g, scope.Daemon("a test"), stick, live))
	eventually(t, "the stick is forbidden again", func() bool { return profile() == start })

	bad := d.labelled("bad\".raw", "")
	if err := hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), fileDisk(strings.ReplaceAll(bad, `"`, "&quot;"), "disk", "sdc", "usb", ""), live); !fault.Is(err, fault.Invalid) {
		t.Errorf("a path that no profile can have is taken: %v", err)
	}
	if profile() != start {
		t.Errorf("after a plug that failed it says\n%s", profile())
	}
	list := filepath.Join(d.enforces, "sys/kernel/security/apparmor/profiles")
	ok(t, os.WriteFile(list, []byte(name+" (enforce)\n"), 0o600))
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	settled(t, d, g)
	if said := d.told("sys/kernel/security/apparmor/.remove"); said != name {
		t.Errorf("the kernel was told to remove %q", said)
	}
	if left, err := filepath.Glob(filepath.Join(d.dir, "data/guest/labels/*")); err != nil || len(left) > 0 {
		t.Errorf("journals are left: %v %v", left, err)
	}
}
