package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lodge prepares a run of the command line against the daemon. It runs outside the daemon's world, so that it can
// be interrupted as by a user.
func (d *daemon) lodge(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(ctx, program(t, "lodge"), args...)
	c.Env = append(os.Environ(), "LODGE_SOCKET="+filepath.Join(d.run, "lodge.sock"))
	return c
}

// set runs a command of lodge to its end, expects the exit status, and returns the output.
func (d *daemon) set(t *testing.T, status int, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	c := d.lodge(ctx, t, args...)
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if failed, is := errors.AsType[*exec.ExitError](err); err != nil && !is || is && failed.ExitCode() != status || err == nil && status != 0 {
		t.Fatalf("lodge %s: %v, not status %d\n%s%s", strings.Join(args, " "), err, status, out.String(), errs.String())
	}
	return out.String()
}

// step is one line of the output of a command on a set.
type step struct {
	Plan    *struct{ Total, Waves int }
	Result  *struct{ Name, Outcome string }
	Summary *struct{ Done, Unchanged, Failed, Would, Cancelled int }
}

// lines decodes lines of JSON.
func lines[T any](t *testing.T, text string) []T {
	t.Helper()
	var all []T
	for line := range strings.Lines(text) {
		var one T
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, one)
	}
	return all
}

// listed is a guest in the output of lodge ps.
type listed struct {
	Name, State string
	PID         int
	Labels      map[string]string
	Wait        *struct{ What string }
	Sample      *struct{ Age, Stale string }
}

func (d *daemon) ps(t *testing.T, selectors ...string) map[string]listed {
	t.Helper()
	guests := map[string]listed{}
	for _, g := range lines[listed](t, d.set(t, 0, append([]string{"ps", "-o", "json"}, selectors...)...)) {
		guests[g.Name] = g
	}
	return guests
}

const setSize = 8

// defineSet defines guests of the smallest size. Half of them start before the others.
func (d *daemon) defineSet(t *testing.T) {
	t.Helper()
	dir := filepath.Join(d.dir, "set")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range setSize {
		d.file(t, fmt.Sprintf("set/set-%d.xml", i), fmt.Sprintf(`<domain type='qemu'>
  <name>set-%d</name><memory unit='MiB'>16</memory><vcpu>1</vcpu>
  <metadata><lodge:guest xmlns:lodge='https://lodge-kvm.github.io/xmlns/guest/1.0' priority='%d'><lodge:label name='side' value='%d'/></lodge:guest></metadata>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices><controller type='usb' model='none'/><memballoon model='none'/></devices>
</domain>`, i, 10*(i%2), i%2))
	}
	d.set(t, 0, "define", dir)
}

// The commands of lodge take real guests through their life cycle.
// Promise: W8
func TestLodge_SetLifecycle(t *testing.T) {
	needs(t)
	d := start(t)
	d.set(t, 2, "start", "set-*") // no guest matches
	d.defineSet(t)
	if n := len(d.ps(t, "label=side:1")); n != setSize/2 {
		t.Errorf("%d guests are on side 1", n)
	}

	d.set(t, 0, "start", "--dry-run", "all")
	for name, g := range d.ps(t) {
		if g.State != "shut off" {
			t.Errorf("a dry run leaves %s %s", name, g.State)
		}
	}

	events := d.watch(t, "set-*")
	told := lines[step](t, d.set(t, 0, "start", "--paused", "--json", "all"))
	if first, last := told[0].Plan, told[len(told)-1].Summary; first == nil || first.Total != setSize || first.Waves != 2 || last == nil || last.Done != setSize {
		t.Errorf("plan %+v, summary %+v", first, last)
	}
	for i, s := range told[1 : len(told)-1] { // those with the lower number go first
		if side := map[bool]string{true: "0", false: "1"}[i < setSize/2]; s.Result.Outcome != "done" || d.ps(t, s.Result.Name)[s.Result.Name].Labels["side"] != side {
			t.Errorf("result %d is %+v", i, s.Result)
		}
	}
	for name, g := range d.ps(t) {
		if g.State != "paused" || g.PID == 0 {
			t.Errorf("%s is %+v", name, g)
		}
	}
	events(setSize, "started")
	contains(t, "top", d.set(t, 0, "top", "--once", "--every", "200ms"), fmt.Sprintf("%d active guests", setSize), "set-0", "set-7")
	d.samples(t)
	contains(t, "the queue", d.set(t, 0, "queue"), "0 wait")
	if told := lines[step](t, d.set(t, 0, "start", "--json", "set-1")); told[1].Result.Outcome != "unchanged" {
		t.Errorf("the running guests are %+v", told[1].Result)
	}
	d.set(t, 0, "destroy", "all")
	events(setSize, "stopped")
	d.set(t, 0, "undefine", "state=shutoff")
	if left := d.ps(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// samples requests fresh samples as any program can: with JSON over the socket.
func (d *daemon) samples(t *testing.T) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(d.run, "lodge.sock"))
	}}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://lodge/lodge.v1.Lodge/Stats", strings.NewReader(`{"freshWithin":"5s","devices":true}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var answer struct {
		Guests []struct {
			Name   string
			Sample struct {
				Age, Stale, Resident string
				VCPUs                []struct{ Time string }
			}
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || len(answer.Guests) != setSize {
		t.Fatalf("%d samples, %v", len(answer.Guests), err)
	}
	for _, g := range answer.Guests {
		age, err := time.ParseDuration(g.Sample.Age)
		if err != nil || age > 5*time.Second || g.Sample.Stale != "" || g.Sample.Resident == "" || len(g.Sample.VCPUs) != 1 {
			t.Errorf("%s: %+v", g.Name, g.Sample)
		}
	}
}

// watch follows the events of guests. The returned function waits for that many such events.
func (d *daemon) watch(t *testing.T, selector string) (wait func(n int, what string)) {
	t.Helper()
	c := d.lodge(t.Context(), t, "events", "--json", selector)
	out := begin(t, c)
	told := make(chan string, 1024)
	begun := make(chan struct{})
	go func() {
		defer close(told)
		for all := bufio.NewScanner(out); all.Scan(); {
			var m struct {
				Begin *struct{ Life string }
				Event *struct{ What string }
			}
			switch err := json.Unmarshal(all.Bytes(), &m); {
			case err != nil:
			case m.Begin != nil:
				close(begun)
			case m.Event != nil:
				told <- m.Event.What
			}
		}
		_ = c.Wait()
	}()
	late := time.After(patience)
	select {
	case <-begun:
	case <-late:
		t.Fatal("lodge events does not begin")
	}
	return func(n int, what string) {
		t.Helper()
		for n > 0 {
			select {
			case said, more := <-told:
				if !more {
					t.Fatalf("lodge events ends before %d more have %s", n, what)
				}
				if said == what {
					n--
				}
			case <-late:
				t.Fatalf("%d guests have not %s", n, what)
			}
		}
	}
}

// lodge is interrupted during a shutdown of eight guests, when two are in progress. Their firmware ignores the
// request.
// Promise: W8
func TestLodge_InterruptCancelsPending(t *testing.T) {
	onlyInClients(t)
	needs(t)
	d := start(t)
	d.defineSet(t)
	d.set(t, 0, "start", "all") // not paused: such guests are destroyed without a grace
	for _, twice := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		// The interrupt comes once after the first guests are done, and once before any is.
		grace, begun := "3s", `"result"`
		if twice {
			grace, begun = "10m", `"plan"`
		}
		c := d.lodge(ctx, t, "shutdown", "--json", "--parallel", "2", "--grace", grace, "all")
		var out bytes.Buffer
		pipe, err := c.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		c.Stdout = &interruptAt{to: &out, text: begun, do: func() { _ = c.Process.Signal(syscall.SIGINT) }}
		left := len(d.ps(t, "state=running"))
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		for said := bufio.NewScanner(pipe); said.Scan(); {
			if twice && strings.Contains(said.Text(), "cancelling") {
				_ = c.Process.Signal(syscall.SIGINT)
			}
		}
		_ = c.Wait()
		if code := c.ProcessState.ExitCode(); code != 3 {
			t.Errorf("status %d\n%s", code, out.String())
		}
		if twice {
			if ctx.Err() != nil {
				t.Error("the second interrupt does not make it leave at once")
			}
			cancel()
			continue
		}
		told := lines[step](t, out.String())
		cancel()
		s := told[len(told)-1].Summary
		if s == nil || s.Cancelled == 0 || s.Done == 0 || s.Done+s.Cancelled != left {
			t.Fatalf("the summary is %+v", s)
		}
		if n := len(d.ps(t, "state=running")); n != s.Cancelled {
			t.Errorf("%d guests are left alone, %d were said to be", n, s.Cancelled)
		}
	}
	d.set(t, 0, "destroy", "all")
}

// interruptAt calls a function once, when a text is written.
type interruptAt struct {
	to   *bytes.Buffer
	text string
	do   func()
}

func (w *interruptAt) Write(p []byte) (int, error) {
	if w.do != nil && bytes.Contains(p, []byte(w.text)) {
		w.do()
		w.do = nil
	}
	return w.to.Write(p)
}

// The test stops one QEMU. Lists and tables show that at once, and all other guests are served.
func TestLodge_StuckGuestBlocksNoOther(t *testing.T) {
	onlyInClients(t)
	needs(t)
	d := start(t)
	d.defineSet(t)
	d.set(t, 0, "start", "--paused", "all")
	before := d.ownUsage(t)
	pid := d.ps(t)["set-3"].PID
	d.output(t, "kill", "-STOP", strconv.Itoa(pid)) // by its number inside
	told := lines[step](t, d.set(t, 1, "resume", "--json", "--timeout", "2s", "all"))
	if s := told[len(told)-1].Summary; s.Done != setSize-1 || s.Failed != 1 {
		t.Errorf("the summary is %+v", s)
	}
	if g := d.ps(t)["set-3"]; g.Wait == nil || g.Wait.What == "" {
		t.Errorf("the stuck guest waits for nothing: %+v", g)
	}
	contains(t, "top", d.set(t, 0, "top", "--once", "--every", "200ms"), fmt.Sprintf("%d active guests", setSize), "stale")
	d.set(t, 0, "destroy", "all")
	d.set(t, 0, "undefine", "all")
	eventually(t, "the daemon gives back what guests took", func() bool {
		now := d.ownUsage(t)
		return now.Goroutines <= before.Goroutines-setSize && now.Descriptors < before.Descriptors && now.Active == 0
	})
}

// TestTiles creates two tiles of a server and its client, with a disk that the daemon creates. It runs them and
// removes everything.
// Promise: W8
func TestTiles(t *testing.T) {
	needs(t)
	d := start(t)
	dir := filepath.Join(d.dir, "disks")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d.virsh(t, "pool-create-as", "disks", "dir", "--target", dir)
	small := "<memory unit='MiB'>16</memory><os><type arch='x86_64' machine='q35'>hvm</type></os>"
	template := d.file(t, "tile.xml", `<tile>
  <volume pool='disks'><name>{name}-{tile}.qcow2</name><capacity unit='MiB'>8</capacity><target><format type='qcow2'/></target></volume>
  <domain type='qemu'><name>{name}-{tile}-server</name>`+small+`
    <devices><disk type='volume' device='disk'><driver name='qemu' type='qcow2'/><source pool='disks' volume='{name}-{tile}.qcow2'/><target dev='vda' bus='virtio'/></disk></devices>
  </domain>
  <domain type='qemu'><name>{name}-{tile}-client</name>`+small+`</domain>
</tile>`)
	d.set(t, 0, "tile", "create", "shop", "--template", template, "--count", "2", "--dry-run")
	if n := len(d.ps(t)); n > 0 {
		t.Errorf("a dry run makes %d guests", n)
	}
	d.set(t, 0, "tile", "create", "shop", "--template", template, "--count", "2")
	d.set(t, 0, "start", "--paused", "tile=shop/2")
	contains(t, "the tiles", d.set(t, 0, "tile", "ls"), "shop/1       2        0  disks/shop-1.qcow2", "shop/2       2        2  disks/shop-2.qcow2")
	d.set(t, 0, "tile", "stop", "shop", "--grace", "1s")
	if n := len(d.ps(t, "tile=shop,state=shutoff")); n != 4 {
		t.Errorf("%d guests of tiles are off", n)
	}
	d.set(t, 0, "tile", "remove", "shop")
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 || len(d.ps(t)) > 0 {
		t.Errorf("left: %q, %v", left, d.ps(t))
	}
	d.set(t, 2, "tile", "remove", "shop")
}

// used is the daemon's report about its own resources.
type used struct{ Goroutines, Descriptors, Active int }

func (d *daemon) ownUsage(t *testing.T) used {
	t.Helper()
	return lines[used](t, d.set(t, 0, "status", "--json"))[0]
}
