package conformance

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
)

// daemon is one lodged in a world of its own (see world).
type daemon struct {
	*world
	data, run string
	// commands is the directory through which the test controls fail points; empty: the daemon is built without
	// them.
	commands string
	// racing builds a daemon with fail points that also detects data races.
	racing bool

	process *exec.Cmd
	pid     string // inside the world
	ended   chan struct{}

	mu  sync.Mutex
	log []string // the last maxLog lines of its standard error
}

const maxLog = 2000

// start creates a world and a daemon in it. When the test ends, it stops the daemon and searches the world for
// leftovers.
func start(t *testing.T, flags ...string) *daemon {
	t.Helper()
	d := &daemon{world: newWorld(t)}
	d.data, d.run = filepath.Join(d.dir, "data"), filepath.Join(d.dir, "run")
	t.Cleanup(func() {
		if t.Failed() {
			d.mu.Lock()
			defer d.mu.Unlock()
			t.Logf("the daemon's log:\n%s", strings.Join(d.log, "\n"))
		}
	})
	d.launch(t, flags...)
	t.Cleanup(func() { d.tearDown(t) })
	return d
}

// launch starts the daemon and waits until it accepts clients.
func (d *daemon) launch(t *testing.T, flags ...string) {
	t.Helper()
	if !d.tryLaunch(t, flags...) {
		t.Fatal("the daemon ended instead of taking clients")
	}
}

// tryLaunch is launch for a daemon that may end before it accepts clients.
func (d *daemon) tryLaunch(t *testing.T, flags ...string) (ready bool) {
	t.Helper()
	pidFile := filepath.Join(d.dir, "pid")
	lodged, env := program(t, "lodged"), os.Environ()
	if d.commands != "" {
		lodged, env = failpointDaemon(t, d.racing), append(env, failpoint.Variable+"="+d.commands)
	}
	args := append([]string{"-c", `echo $$ >"$1"; shift; exec "$@"`, "sh", pidFile, lodged, "--data", d.data, "--run", d.run}, flags...)
	d.process = d.command(context.WithoutCancel(t.Context()), "sh", args...)
	d.process.Env = env
	stderr, err := d.process.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.process.Start(); err != nil {
		t.Fatal(err)
	}
	isReady := make(chan struct{})
	d.ended = make(chan struct{})
	go d.follow(bufio.NewScanner(stderr), isReady)
	select {
	case <-isReady:
	case <-d.ended:
		select {
		case <-isReady: // it died soon after
		default:
			return false
		}
	case <-time.After(patience):
		t.Fatal("the daemon does not say that it is ready")
	}
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	d.pid = strings.TrimSpace(string(pid))
	return true
}

// follow keeps the lines that the daemon logs. It notices when the daemon is ready and when it has ended.
func (d *daemon) follow(lines *bufio.Scanner, ready chan<- struct{}) {
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if lines.Text() == "ready" {
			close(ready)
			continue
		}
		d.mu.Lock()
		d.log = append(d.log, lines.Text())
		if len(d.log) > maxLog {
			d.log = slices.Clone(d.log[maxLog/2:])
		}
		d.mu.Unlock()
	}
	_ = d.process.Wait()
	close(d.ended)
}

// signal sends a signal to the daemon's process alone and waits for its end.
func (d *daemon) signal(t *testing.T, name string) {
	t.Helper()
	d.output(t, "kill", "-"+name, d.pid)
	select {
	case <-d.ended:
	case <-time.After(patience):
		t.Fatalf("the daemon does not end after SIG%s", name)
	}
}

// uri is the connection URI for clients.
func (d *daemon) uri() string { return "qemu:///system?socket=" + d.run + "/libvirt-sock" }

// virsh runs one virsh command and returns its output.
func (d *daemon) virsh(t *testing.T, args ...string) string {
	t.Helper()
	out, err := d.try(t, args...)
	if err != nil {
		t.Fatalf("virsh %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// mustFail runs a virsh command that must fail, and returns its error text.
func (d *daemon) mustFail(t *testing.T, args ...string) string {
	t.Helper()
	out, err := d.try(t, args...)
	if err == nil {
		t.Fatalf("virsh %s succeeds:\n%s", strings.Join(args, " "), out)
	}
	return out
}

func (d *daemon) try(t *testing.T, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := d.command(ctx, "virsh", append([]string{"-q", "-c", d.uri()}, args...)...).CombinedOutput()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v", patience)
	}
	return strings.TrimSpace(string(out)), err
}

// tearDown ends through the API all that the test left running, and then checks that nothing is left behind.
func (d *daemon) tearDown(t *testing.T) {
	// The test's own context has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	sweep := `
		v="virsh -q -c $1"
		for g in $($v list --all --name); do $v destroy $g; $v undefine $g --managed-save --nvram; done
		for n in $($v net-list --all --name); do $v net-destroy $n; $v net-undefine $n; done
		for p in $($v pool-list --all --name); do $v pool-destroy $p; $v pool-undefine $p; done`
	_ = d.command(ctx, "sh", "-c", sweep, "sh", d.uri()).Run() // objects that do not run fail to be destroyed
	select {
	case <-d.ended: // the test has stopped it
	default:
		_ = d.command(ctx, "kill", "-TERM", d.pid).Run()
		select {
		case <-d.ended:
		case <-ctx.Done():
			t.Error("the daemon does not stop when it is told to")
		}
	}
	d.reportLeftovers(t)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, text := range d.log {
		if strings.Contains(text, "DATA RACE") || strings.HasPrefix(text, "panic:") || strings.HasPrefix(text, "fatal error:") {
			t.Errorf("the daemon says: %s", text)
		}
	}
}

// reportLeftovers reports processes, links, control groups and files that the daemon should have removed with the
// objects that used them.
func (d *daemon) reportLeftovers(t *testing.T) {
	for pid, words := range d.processes() {
		t.Errorf("process %d is left: %s", pid, words)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	links, err := d.command(ctx, "ls", "/sys/class/net").Output()
	if err != nil || strings.TrimSpace(string(links)) != "lo" {
		t.Errorf("links are left: %s %v", links, err)
	}
	for _, group := range d.controlGroups("") {
		t.Errorf("a control group is left: %s", group)
	}
	for _, path := range d.runFiles() {
		t.Errorf("a file is left: %s", path)
	}
}

// runFiles lists the files in the run directory. It leaves out the sockets and the mark that this boot's networks
// were started.
func (d *daemon) runFiles() []string {
	var found []string
	_ = filepath.WalkDir(d.run, func(path string, entry fs.DirEntry, err error) error {
		name := filepath.Base(path)
		if err == nil && !entry.IsDir() && !strings.HasPrefix(name, "libvirt-sock") && name != "lodge.sock" && name != "autostarted" {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// guestGroups lists the control groups of this daemon's guests.
func (d *daemon) guestGroups() []string { return d.controlGroups("/guest-*") }

// controlGroups lists the groups with the name of the instance, which is derived from the run directory.
func (d *daemon) controlGroups(below string) []string {
	sum := sha256.Sum256([]byte(d.run))
	name := "lodge-" + hex.EncodeToString(sum[:3])
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		groups, _ := filepath.Glob(pattern + name + below)
		found = append(found, groups...)
	}
	return found
}
