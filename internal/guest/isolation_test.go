package guest_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// opensIn runs a root process in a guest's control group that opens a file for reading. It returns the error text,
// if any.
func (d *daemon) opensIn(group *kernel.Group, path string) string {
	d.t.Helper()
	return d.doesIn(group, exec.CommandContext(d.ctx(), "/bin/sh", "-c", "read go; exec <\"$0\"", path))
}

// doesIn runs a program that does nothing before it is told to in a guest's control group.
func (d *daemon) doesIn(group *kernel.Group, cmd *exec.Cmd) string {
	d.t.Helper()
	in, err := cmd.StdinPipe()
	ok(d.t, err)
	var said strings.Builder
	cmd.Stderr = &said
	ok(d.t, cmd.Start())
	if group != nil {
		ok(d.t, group.AddProcess(cmd.Process.Pid))
	}
	_, err = io.WriteString(in, "go\n")
	ok(d.t, err)
	if err := cmd.Wait(); err != nil {
		return said.String() + err.Error()
	}
	return ""
}

// The kernel lets a compromised QEMU open the devices of its own sandbox only, even as root.
// Promise: I2
func TestIsolation_Devices(t *testing.T) {
	d := newDaemonOf(t, true)
	if !d.groups.Has(kernel.DeviceController) {
		t.Skip("this host does not control devices: ", d.groups.Absent()[kernel.DeviceController])
	}
	other := filepath.Join(d.dir, "other")
	ok(t, unix.Mknod(other, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 11)))) // the kernel's log
	if said := d.opensIn(nil, other); said != "" {
		t.Skip("device nodes on this file system cannot be opened by any process: ", said)
	}
	g := d.define(small("bounded", "<controller type='usb' model='qemu-xhci'/>"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	group := d.groups.Guest(g.UUID)
	if said := d.opensIn(group, "/dev/urandom"); said != "" {
		t.Errorf("it may not open a device of every sandbox: %s", said)
	}
	if d.opensIn(group, other) == "" {
		t.Error("it may open any device")
	}
	const passed = "/dev/fuse"
	if said := d.opensIn(nil, passed); said != "" {
		t.Skip("there is no node to be passed on: ", said)
	}
	port := "<serial type='dev'><source path='" + passed + "'/><target type='usb-serial' port='1'/></serial>"
	refuses := func() bool { return d.opensIn(group, passed) != "" }
	live := machine.Affect{Live: true}
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), port, live))
	if refuses() {
		t.Error("it may not open the plugged device")
	}
	ok(t, hotplug.Detach(d.ctx(), g, scope.Daemon("a test"), port, live))
	eventually(t, "it may not open what it has let go", refuses)
	nothing := filepath.Join(d.dir, "nothing")
	ok(t, unix.Mknod(nothing, unix.S_IFCHR|0o666, int(unix.Mkdev(240, 77)))) // of no driver
	if err := hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), strings.Replace(port, passed, nothing, 1), live); err == nil {
		t.Error("QEMU opens what is not there")
	}
	eventually(t, "it may not open what QEMU has refused", func() bool { return strings.Contains(d.opensIn(group, nothing), "not permitted") })
}

// takesPages has the test's own program, as an escapist, take two huge pages when it is told to.
const takesPages = "takes-huge-pages"

func takePages() {
	_, err := os.Stdin.Read(make([]byte, 1))
	if err == nil {
		_, err = unix.Mmap(-1, 0, 2*hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|21<<unix.MAP_HUGE_SHIFT)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const hugePage = 2 << 20

// A compromised QEMU gets only the huge pages that its guest's memory, plugged modules included, may use. The
// host's other huge pages stay free for others.
// Promise: I2
func TestIsolation_HugePages(t *testing.T) {
	d := newDaemonOf(t, true)
	if !d.groups.Has(kernel.HugePages) {
		t.Skip("this host does not control huge pages: ", d.groups.Absent()[kernel.HugePages])
	}
	pool := kernel.HugePageDir(topology.AnyCell, hugePage) + "/nr_hugepages"
	before, err := os.ReadFile(pool)
	if err != nil {
		t.Skip("this kernel has no huge pages of 2 MiB: ", err)
	}
	had, err := strconv.Atoi(strings.TrimSpace(string(before)))
	ok(t, err)
	ok(t, os.WriteFile(pool, fmt.Appendf(nil, "%d", had+4), 0))
	t.Cleanup(func() { ok(t, os.WriteFile(pool, before, 0)) })
	takes := func(group *kernel.Group) string {
		cmd := exec.CommandContext(d.ctx(), os.Args[0])
		cmd.Args = []string{escapist, takesPages}
		return d.doesIn(group, cmd)
	}
	if said := takes(nil); said != "" {
		t.Skip("this host has no huge pages to spare: ", said)
	}
	g := d.define(growing("pages"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	group := d.groups.Guest(g.UUID)
	if takes(group) == "" {
		t.Error("a guest without huge pages takes those of others")
	}
	module := `<memory model='dimm'><source><pagesize unit='MiB'>2</pagesize></source><target><size unit='MiB'>2</size><node>0</node></target></memory>`
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), module, machine.Affect{Live: true}))
	if takes(group) == "" {
		t.Error("a guest with a huge page takes those of others")
	}
}

// labelsOf are a guest's labels in the order of their models.
func labelsOf(d *daemon, v *guest.View) string {
	var all []string
	for _, l := range provision.SecurityLabels(d.Registry, v) {
		all = append(all, l.Label)
	}
	return strings.Join(all, " ")
}

// The live definition and the guest's view show the isolation of a guest, and they are true.
// Promise: I6
func TestIsolation_Reported(t *testing.T) {
	d := newDaemonOf(t, true)
	g := d.define(small("told", ""))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	v := g.View()
	var of unix.Stat_t
	ok(t, unix.Stat(fmt.Sprintf("/proc/%d", v.PID), &of))
	label := fmt.Sprintf("+%d:+%d", of.Uid, of.Gid)
	text, err := domainxml.Format(v.Active, domainxml.Style{Active: true, ID: v.ID})
	ok(t, err)
	if told := labelsOf(d, v); told != label || !strings.Contains(text, "<seclabel type='dynamic' model='dac' relabel='no'>\n    <label>"+label+"</label>") {
		t.Errorf("it runs as %s, is said to run as %q, and its definition is\n%s", label, told, text)
	}
	text, err = domainxml.Format(v.Inactive, domainxml.Style{})
	ok(t, err)
	if strings.Contains(text, "seclabel") {
		t.Errorf("a value of one run is kept:\n%s", text)
	}
	inForce := provision.HostIsolation(d.Registry)
	for _, barrier := range []string{"user", "root", "capabilities", "calls", "io_uring"} {
		if !slices.Contains(v.Isolation, barrier) || !slices.Contains(inForce.InForce, barrier) || !inForce.On {
			t.Errorf("%s is not told: the guest is said to have %v, and the host %+v", barrier, v.Isolation, inForce)
		}
	}
	if own := !(kernel.Root{}).SharesNetwork(v.PID); own != slices.Contains(v.Isolation, "network") {
		t.Errorf("that it has a network of its own is %v, and it is said to have %v", own, v.Isolation)
	}
	d.reopen(func() {})
	if again := d.again(g).View(); !slices.Equal(again.Isolation, v.Isolation) || labelsOf(d, again) != label {
		t.Errorf("the next daemon tells of %v and %q, not of %v", again.Isolation, labelsOf(d, again), v.Isolation)
	}
}

// Each guest has its own scheduling cookie. The kernel runs only threads with the same cookie on one core at the
// same time.
// Promise: I7
func TestIsolation_CoreScheduling(t *testing.T) {
	d := newDaemonOf(t, true)
	if err := d.Isolation.Builder.EnableCoreScheduling(); err != nil {
		t.Skip(err)
	}
	cookies := map[uint64]string{}
	for _, name := range []string{"one", "two"} {
		g := d.define(small(name, ""))
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
		var cookie uint64
		ok(t, unix.Prctl(unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_GET, uintptr(d.pid(name)), unix.PR_SCHED_CORE_SCOPE_THREAD, uintptr(unsafe.Pointer(&cookie))))
		if cookie == 0 || cookies[cookie] != "" {
			t.Errorf("%s has the cookie %x, as %q has", name, cookie, cookies[cookie])
		}
		cookies[cookie] = name
		if !slices.Contains(g.View().Isolation, "cores") {
			t.Errorf("it is not told: %v", g.View().Isolation)
		}
	}
}

// With io_uring QEMU could create sockets that no filter sees. So a guest that needs no io_uring gets none.
// Promise: I1
func TestIsolation_IOUring(t *testing.T) {
	d := newDaemonOf(t, true)
	if err := makesRing(); err != nil {
		t.Skipf("this kernel has no io_uring: %v", err)
	}
	disk := func(name, target string) string {
		path := filepath.Join(d.dir, name)
		ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
		return `<disk type='file'><driver type='raw' io='io_uring'/><source file='` + path + `'/><target dev='` + target + `' bus='virtio'/></disk>`
	}
	live := machine.Affect{Live: true}
	with, without := d.define(small("with", disk("a", "vda"))), d.define(small("without", ""))
	ok(t, launch.Start(d.ctx(), with, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, launch.Start(d.ctx(), without, scope.Daemon("a test"), launch.StartOptions{}))
	d.reopen(func() {}) // what a guest began with is known to the next daemon
	ok(t, hotplug.Attach(d.ctx(), d.again(with), scope.Daemon("a test"), disk("b", "vdb"), live))
	refused(t, hotplug.Attach(d.ctx(), d.again(without), scope.Daemon("a test"), disk("c", "vdb"), live), fault.Unsupported, "started without io_uring, which its disk needs")
}

// A QEMU that crashes leaves its memory in no file, and passes it to no core dump program of the host. Such a
// program ignores a limit of 0.
// Promise: K7
func TestIsolation_NoCoreDump(t *testing.T) {
	d := newDaemonOf(t, true)
	g := d.define(small("crashes"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	var own unix.Rlimit
	ok(t, unix.Getrlimit(unix.RLIMIT_CORE, &own))
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", g.View().PID))
	ok(t, err)
	_, rest, _ := strings.Cut(string(limits), "Max core file size")
	if its := strings.Fields(rest)[:2]; own.Max > 0 && !slices.Equal(its, []string{"1", "1"}) {
		t.Errorf("its core may have %s bytes, and at most %s: one is handed on at any number but 1", its[0], its[1])
	}
}
