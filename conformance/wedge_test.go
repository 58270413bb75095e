package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"golang.org/x/sys/unix"
)

const (
	wedgeGuests = 20
	wedgeStuck  = 2  // of these guests have a stopped QEMU
	wedgeHung   = 25 // clients that hang on those
	// promptTime is far below every deadline of a call that hangs, and far above the time that other calls take on
	// a busy machine.
	promptTime = 3 * time.Second
	// hungTime is the longest deadline of a call that hangs, with a margin.
	hungTime = 50 * time.Second
	// deadCalls is the number of calls on a file system that does not answer. The daemon uses fewer threads for it
	// than there are calls.
	deadCalls = 100
)

// operationTimeout is VIR_ERR_OPERATION_TIMEOUT.
const operationTimeout = 68

// wedge is a daemon in a world with hanging parts.
type wedge struct {
	*daemon
	l      *libvirt.Libvirt
	events <-chan libvirt.DomainEventLifecycleMsg
	guests []libvirt.Domain // those that are well
	stuck  []libvirt.Domain
	stop   func(bool) // has qemu-img stop itself before it copies
	round  int
}

// hung is a call that waits for a hanging part.
type hung struct {
	name string
	do   func() error
	says string // a pattern of what its error names; empty: the silent command
}

// silence is the part of a call's error that says that a stuck guest did not answer.
const silence = `(did not answer|has not answered) \S+ (within|for) \d`

// Promise: W1
func TestWedge(t *testing.T) {
	needs(t, "dnsmasq", "nft", "qemu-img")
	w := &wedge{stop: stoppableTool(t)}
	w.daemon = start(t)
	w.createObjects(t)
	w.work(t) // all is well
	threads := w.count(t, "Threads:")

	pids := w.stopProcesses(t, syscall.SIGSTOP)
	release := w.killMount(t, "dead")
	ends := w.hang(t)
	for range 3 {
		w.work(t)
	}
	w.fill(t)
	w.askDead(t)
	w.work(t)
	if now := w.count(t, "Threads:"); now > threads+deadCalls/2 {
		t.Errorf("the daemon has %d threads, and had %d", now, threads)
	}
	for range cap(ends) {
		select {
		case err := <-ends:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(hungTime):
			t.Fatal("a call that hangs does not end at its deadline")
		}
	}
	w.work(t)

	last := w.stuck[0]
	prompt(t, "destroying a guest whose QEMU is stopped", func() error { return w.l.DomainDestroy(last) })
	prompt(t, "a new daemon", func() error { return w.replace(t) })
	w.work(t)
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGCONT) // one was destroyed
	}
	release()
	w.recover(t)
}

// prompt makes a call that must not wait for any hanging part.
func prompt(t *testing.T, what string, do func() error) {
	t.Helper()
	begun := time.Now()
	if err := do(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if d := time.Since(begun); d > promptTime {
		t.Errorf("%s took %v", what, d)
	}
}

// stoppableTool puts a script in the place of the host's qemu-img. After stop(true) it stops itself before it
// copies. The script is changed in place: it runs in a sandbox that contains no other file of the host.
func stoppableTool(t *testing.T) (stop func(bool)) {
	t.Helper()
	real, err := exec.LookPath("qemu-img")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "qemu-img")
	stop = func(stopped bool) {
		t.Helper()
		first := ":"
		if stopped {
			first = "[ \"$1\" = convert ] && kill -STOP $$"
		}
		if err := os.WriteFile(path, fmt.Appendf(nil, "#!/bin/sh\n%s\nexec %s \"$@\"\n", first, real), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	stop(false)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return stop
}

// createObjects creates guests, networks and pools.
func (w *wedge) createObjects(t *testing.T) {
	t.Helper()
	w.lan(t, "lan", 1)
	w.lan(t, "sick", 2)
	for _, name := range []string{"well", "dead", "full"} {
		dir := filepath.Join(w.dir, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if name == "full" {
			w.output(t, "mount", "-t", "tmpfs", "-o", "size=1m", "full", dir)
		}
		w.virsh(t, "pool-define-as", name, "dir", "--target", dir)
		w.virsh(t, "pool-start", name)
		w.virsh(t, "vol-create-as", name, "disk", "16M", "--allocation", "0")
	}
	w.l = w.connect(t)
	events, err := w.l.LifecycleEvents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.events = events
	for i := range wedgeGuests {
		disk := ""
		if i == wedgeStuck {
			disk = wedgeDisk(w.dir, "full")
		}
		g := w.guest(t, fmt.Sprintf("wedge%d", i), disk)
		flags := libvirt.DomainStartPaused
		if i < wedgeStuck {
			flags = 0
			w.stuck = append(w.stuck, g)
		} else {
			w.guests = append(w.guests, g)
		}
		if _, err := w.l.DomainCreateWithFlags(g, uint32(flags)); err != nil {
			t.Fatal(err)
		}
	}
	w.guest(t, "onDead", wedgeDisk(w.dir, "dead"))
	w.stop(true)
}

func wedgeDisk(dir, pool string) string {
	return fmt.Sprintf(`<disk type='file'><driver name='qemu' type='raw'/><source file='%s/%s/disk'/><target dev='vda' bus='virtio'/></disk>`, dir, pool)
}

func wedgeXML(name, devices string) string {
	return fmt.Sprintf(`<domain type='qemu'><name>%s</name><memory unit='MiB'>16</memory><vcpu>1</vcpu>
		<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/><tcg><tb-cache unit='MiB'>16</tb-cache></tcg></features>
		<devices><memballoon model='virtio'/>%s</devices></domain>`, name, devices)
}

func (w *wedge) guest(t *testing.T, name, devices string) libvirt.Domain {
	t.Helper()
	g, err := w.l.DomainDefineXML(wedgeXML(name, devices))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// stopProcesses stops the QEMUs of the guests that are to be stuck, and a network's dnsmasq.
func (w *wedge) stopProcesses(t *testing.T, with syscall.Signal) (pids []int) {
	t.Helper()
	for _, g := range w.stuck {
		pids = append(pids, w.pids()[g.Name])
	}
	sick, err := w.l.NetworkLookupByName("sick")
	if err != nil {
		t.Fatal(err)
	}
	for pid, words := range w.processes() {
		if strings.Contains(words, "dnsmasq") && strings.Contains(words, uuidText(sick.UUID)) {
			pids = append(pids, pid)
		}
	}
	if len(pids) != wedgeStuck+1 {
		t.Fatalf("%d processes to stop: %v", len(pids), w.processes())
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, with); err != nil {
			t.Fatal(err)
		}
	}
	return pids
}

// deadVariable tells a copy of the test program to mount a file system over a directory. The file system does not
// answer until the program's standard input is closed.
const deadVariable = "LODGE_CONFORMANCE_DEAD"

// killMount mounts such a file system over a directory in the daemon's world.
func (w *wedge) killMount(t *testing.T, name string) (release func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := w.command(context.WithoutCancel(t.Context()), self)
	c.Env = append(os.Environ(), deadVariable+"="+filepath.Join(w.dir, name))
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := begin(t, c)
	release = func() {
		_ = stdin.Close() // it may have been closed
		_ = c.Wait()
	}
	t.Cleanup(release)
	if text, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Skipf("cannot mount a file system here that does not answer: %q %v", text, err)
	}
	return release
}

// runDeadFileSystem is the main function of that copy.
func runDeadFileSystem(dir string) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
		err = unix.Mount("dead", dir, "fuse.dead", unix.MS_NOSUID|unix.MS_NODEV, options)
	}
	if err != nil {
		fmt.Fprint(os.Stdout, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, "mounted")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = unix.Close(fd) // all waiting calls then fail
	_ = unix.Unmount(dir, unix.MNT_DETACH)
	os.Exit(0)
}

// hang starts clients that call hanging parts. Each call must end at its deadline and name the part it waited for. The
// channel delivers an error for each call that does not.
func (w *wedge) hang(t *testing.T) <-chan error {
	t.Helper()
	var calls []hung
	for i := range wedgeHung {
		l, g := w.connect(t), w.stuck[i%wedgeStuck]
		t.Cleanup(func() { _ = l.Disconnect() })
		calls = append(calls, []hung{
			{"suspend", func() error { return l.DomainSuspend(g) }, silence},
			{"reset", func() error { return l.DomainReset(g, 0) }, silence},
			{"shutdown", func() error { return l.DomainShutdownFlags(g, libvirt.DomainShutdownAcpiPowerBtn) }, silence},
			{"set memory", func() error { return l.DomainSetMemoryFlags(g, 8<<10, uint32(libvirt.DomainMemLive)) }, silence},
			{"inject NMI", func() error { return l.DomainInjectNmi(g, 0) }, silence},
		}[i/wedgeStuck%5])
	}
	calls = append(calls,
		hung{"clone", func() error { return w.clone(w.connect(t)) }, `qemu-img was killed: its process \d+ has been stopped by a signal for 30s`},
		hung{"start on a dead disk", func() error {
			l := w.connect(t)
			g, err := l.DomainLookupByName("onDead")
			if err != nil {
				return err
			}
			return l.DomainCreate(g)
		}, w.dir + `/dead \(fuse.dead of dead\) (does not answer|has not answered)`},
		hung{"refresh", func() error { return w.refresh(w.connect(t), "dead") }, `file system did not answer within 30s`},
	)
	ends := make(chan error, len(calls))
	for _, c := range calls {
		go func() { ends <- c.check() }()
	}
	return ends
}

// check makes the call and returns an error unless the call ends as it must.
func (c hung) check() error {
	begun := time.Now()
	err := c.do()
	took := time.Since(begun).Round(time.Millisecond)
	var refused libvirt.Error
	switch {
	case err == nil:
		return fmt.Errorf("%s succeeds after %v", c.name, took)
	case !errors.As(err, &refused) || refused.Code != operationTimeout:
		return fmt.Errorf("%s fails after %v, and not by a timeout: %w", c.name, took, err)
	case !regexp.MustCompile(c.says).MatchString(err.Error()):
		return fmt.Errorf("%s does not say what it waited for: %w", c.name, err)
	}
	return nil
}

// clone copies a volume into another format, with qemu-img.
func (w *wedge) clone(l *libvirt.Libvirt) error {
	well, err := l.StoragePoolLookupByName("well")
	if err != nil {
		return err
	}
	disk, err := l.StorageVolLookupByName(well, "disk")
	if err != nil {
		return err
	}
	copied, err := l.StorageVolCreateXMLFrom(well, `<volume><name>copy</name><target><format type='qcow2'/></target></volume>`, disk, 0)
	if err != nil {
		return err
	}
	return l.StorageVolDelete(copied, 0)
}

func (w *wedge) refresh(l *libvirt.Libvirt, name string) error {
	pool, err := l.StoragePoolLookupByName(name)
	if err != nil {
		return err
	}
	return l.StoragePoolRefresh(pool, 0)
}

// fill fills the disk under a guest, and checks that all guests still work.
func (w *wedge) fill(t *testing.T) {
	t.Helper()
	// QEMU prints the result of the write to its own standard output.
	_, err := w.l.QEMUDomainMonitorCommand(w.guests[0], `qemu-io -d /machine/peripheral/virtio-disk0/virtio-backend "write 0 8M"`, 1)
	if err != nil {
		t.Error(err)
	}
	prompt(t, "refreshing a full pool", func() error { return w.refresh(w.l, "full") })
	prompt(t, "refusing a volume where there is no space", func() error {
		out, err := w.try(t, "vol-create-as", "full", "more", "512k")
		if err == nil || !strings.Contains(out, "it takes 524288 bytes and the pool has ") {
			return fmt.Errorf("%s (%w)", out, err)
		}
		return nil
	})
}

// askDead makes many calls about files on a file system that does not answer.
func (w *wedge) askDead(t *testing.T) {
	t.Helper()
	ends := make(chan error, deadCalls)
	for range deadCalls {
		go func() {
			ends <- hung{"block info", func() error {
				g, err := w.l.DomainLookupByName("onDead")
				if err == nil {
					_, _, _, err = w.l.DomainGetBlockInfo(g, "vda", 0)
				}
				return err
			}, `file system at ` + w.dir + `/dead`}.check()
		}()
	}
	for range deadCalls {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
}

// work makes all calls that must work promptly while other parts hang.
func (w *wedge) work(t *testing.T) {
	t.Helper()
	w.round++
	g := w.guests[w.round%len(w.guests)]
	name := fmt.Sprintf("fresh%d", w.round)
	var fresh libvirt.Domain
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"connecting", func() error { return w.connect(t).Disconnect() }},
		{"listing", func() error { _, _, err := w.l.ConnectListAllDomains(1, 0); return err }},
		{"telling of all", w.readAll},
		{"statistics of all", func() error { _, err := w.l.ConnectGetAllDomainStats(nil, 0, 0); return err }},
		{"resuming", func() error { return w.l.DomainResume(g) }},
		{"suspending", func() error { return w.l.DomainSuspend(g) }},
		{"defining", func() (err error) {
			fresh, err = w.l.DomainDefineXML(wedgeXML(name, `<interface type='network'><source network='lan'/></interface>`))
			return err
		}},
		{"the event of that", func() error { return w.waitForDefinedEvent(name) }},
		{"starting", func() error {
			_, err := w.l.DomainCreateWithFlags(fresh, uint32(libvirt.DomainStartPaused))
			return err
		}},
		{"destroying", func() error { return w.l.DomainDestroy(fresh) }},
		{"undefining", func() error { return w.l.DomainUndefine(fresh) }},
		{"listing networks", func() error { _, _, err := w.l.ConnectListAllNetworks(1, 0); return err }},
		{"refreshing a pool", func() error { return w.refresh(w.l, "well") }},
		{"making a volume", w.makeVolume},
		{"asking by Lodge's own API", func() error { w.status(t); return nil }},
	} {
		prompt(t, step.what, step.do)
	}
}

// readAll makes all queries about every guest that need no answer of its QEMU.
func (w *wedge) readAll() error {
	for _, g := range append(w.guests, w.stuck...) {
		if _, _, _, _, _, err := w.l.DomainGetInfo(g); err != nil {
			return err
		}
		if _, err := w.l.DomainGetXMLDesc(g, 0); err != nil {
			return err
		}
	}
	return nil
}

// waitForDefinedEvent waits for the event that a guest was defined.
func (w *wedge) waitForDefinedEvent(name string) error {
	late := time.After(promptTime)
	for {
		select {
		case e := <-w.events:
			if e.Dom.Name == name && libvirt.DomainEventType(e.Event) == libvirt.DomainEventDefined {
				return nil
			}
		case <-late:
			return errors.New("it does not come")
		}
	}
}

func (w *wedge) makeVolume() error {
	well, err := w.l.StoragePoolLookupByName("well")
	if err != nil {
		return err
	}
	v, err := w.l.StorageVolCreateXML(well, `<volume><name>fresh</name><capacity unit='MiB'>1</capacity></volume>`, 0)
	if err != nil {
		return err
	}
	return w.l.StorageVolDelete(v, 0)
}

// replace kills the daemon while parts hang, and starts another.
func (w *wedge) replace(t *testing.T) error {
	w.signal(t, "KILL")
	w.launch(t)
	w.l = w.connect(t)
	var err error
	w.events, err = w.l.LifecycleEvents(t.Context())
	return err
}

// recover checks that all hanging parts work again.
func (w *wedge) recover(t *testing.T) {
	t.Helper()
	w.stop(false)
	eventually(t, "the pool answers", func() bool {
		if err := w.refresh(w.l, "dead"); err == nil {
			return true
		}
		_, _ = w.try(t, "pool-start", "dead") // the call before it ended with an error
		return false
	})
	eventually(t, "the guest obeys", func() bool { return w.l.DomainSuspend(w.stuck[1]) == nil })
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"cloning", func() error { return w.clone(w.l) }},
		{"resuming what was stuck", func() error { return w.l.DomainResume(w.stuck[1]) }},
		{"starting what was destroyed", func() error { return w.l.DomainCreate(w.stuck[0]) }},
		{"starting on what was dead", func() error { _, err := w.try(t, "start", "onDead"); return err }},
		{"ending the network that was sick", func() error { _, err := w.try(t, "net-destroy", "sick"); return err }},
		{"starting it again", func() error { _, err := w.try(t, "net-start", "sick"); return err }},
	} {
		prompt(t, step.what, step.do)
	}
	w.work(t)
}

// count reads a value from the status file of the daemon's process.
func (d *daemon) count(t *testing.T, field string) (n int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.number(t)))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n"+field)
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatalf("no %s in %s", field, text)
	}
	return n
}

// number is the daemon's process number outside the world.
func (d *daemon) number(t *testing.T) int {
	t.Helper()
	for pid, words := range d.processes() {
		if strings.Contains(words, "lodged --data "+d.data) && !strings.HasPrefix(words, "sh ") && !strings.HasPrefix(words, "nsenter") {
			return pid
		}
	}
	t.Fatal("the daemon does not run")
	return 0
}
