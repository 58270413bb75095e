package conformance

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/failpoint/failpointtest"
)

// action is an action of a client, and the way to take it back. The test learns the states before and after it once,
// from a run without a death. A daemon that is killed anywhere in the action must leave one of the two states.
type action struct {
	name string
	do   func(c *crash) error
	// back restores the state before the action; nil: both states are the same.
	back func(c *crash) error
}

// scenario is a list of actions in one world. Each begins in the state after the one before.
type scenario struct {
	name    string
	needs   []string
	prepare func(c *crash)
	actions []action
	// refused brings about the state after an action, by its name, that failed at one of its steps. For other
	// actions this is the state before.
	refused map[string]func(c *crash) error
	// every is a fail point at which the daemon dies each time that it is reached, not only the first and the last
	// time.
	every string
	// act runs steps that are no action of a client; nil: there are none.
	act func(c *crash)
}

// crash is one running scenario.
type crash struct {
	*daemon
	t *testing.T
	l *libvirt.Libvirt // the client that asks; a new one after each death
	// firewall adds the kernel's firewall rules to the state.
	firewall bool
	// anonymous says that UUIDs are random, and differ from run to run.
	anonymous bool
	kept      string          // a definition to go back to
	foreign   map[string]bool // mounts of the host, which come and go
	scenario  string
	tally     *tally
}

// tally counts deaths by point.
type tally struct {
	draw   crashDraw
	points []string // of the whole source
	kinds  []string // of operations; the next daemon also dies while it recovers each of these

	mu     sync.Mutex
	deaths map[string]int
	whole  int // scenarios that came to their end
}

func (s *tally) note(point string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaths[point]++
}

// deathsIn returns the deaths at fail points of a kind of operation.
func (s *tally) deathsIn(kind string) (points []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for point, n := range s.deaths {
		if strings.HasPrefix(point, kind+".") {
			points = append(points, slices.Repeat([]string{point}, n)...)
		}
	}
	return points
}

// kindsOf returns the kinds of operations with steps among the fail points. A point is named KIND.STEP.done.
func kindsOf(points []string) (kinds []string) {
	for _, point := range points {
		if parts := strings.Split(point, "."); len(parts) == 3 && parts[2] == "done" {
			kinds = append(kinds, parts[0])
		}
	}
	return slices.Compact(kinds) // points are in order
}

// TestCrashMatrix kills the daemon at each fail point that each action of each scenario reaches, and starts
// another. The state must be the one before the action or the one after it. It consists of guests with their
// processes, devices and states, networks, pools, volumes, and every file, record, link, control group, mount and
// process. An action that was answered must be done. A run draws one death in ten; `make crash` runs all.
// Promise: F1, F6, F7, F10, F11, F14, H2
func TestCrashMatrix(t *testing.T) {
	needs(t, "dnsmasq", "nft")
	names, err := failpointtest.Names("..")
	if err != nil {
		t.Fatal(err)
	}
	failpointDaemon(t, false)
	total := &tally{draw: drawDeaths(t), points: names, kinds: kindsOf(names), deaths: map[string]int{}}
	all := scenarios()
	t.Run("scenarios", func(t *testing.T) {
		for _, s := range all {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				s.run(t, total)
			})
		}
	})
	n := 0
	for _, deaths := range total.deaths {
		n += deaths
	}
	verdict := "0 violations"
	if t.Failed() {
		verdict = "and VIOLATIONS, see above"
	}
	t.Logf("points: %s", strings.Join(slices.Sorted(maps.Keys(total.deaths)), " "))
	t.Logf("record: %d deaths at %d points in %d scenarios, %s", n, len(total.deaths), len(all), verdict)
	if t.Failed() || !total.draw.all || total.whole < len(all) { // some scenarios lack programs, or were not requested
		return
	}
	for _, kind := range total.kinds {
		if len(total.deathsIn(kind)) > 0 && total.deaths["recovery of "+kind] == 0 {
			t.Errorf("no daemon dies as it settles an operation of kind %s", kind)
		}
	}
	for _, name := range names {
		_, died := total.deaths[name]
		why, excused := excused[name]
		switch {
		case !died && !excused:
			t.Errorf("no scenario reaches the fail point %s: add one, or say in the table excused why there is none", name)
		case died && excused:
			t.Errorf("the fail point %s is reached and still excused: %s", name, why)
		}
	}
	for name := range excused {
		if !slices.Contains(names, name) {
			t.Errorf("there is no fail point %s to be excused", name)
		}
	}
}

// run executes a scenario.
func (s *scenario) run(t *testing.T, total *tally) {
	needs(t, s.needs...)
	c := &crash{daemon: &daemon{world: newWorld(t)}, t: t, scenario: s.name, tally: total}
	c.data, c.run, c.commands = filepath.Join(c.dir, "data"), filepath.Join(c.dir, "run"), filepath.Join(c.dir, "commands")
	if err := os.Mkdir(c.commands, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.logOnFailure(t) })
	c.foreign = c.mounts()
	c.begin()
	t.Cleanup(func() { c.tearDown(t) })
	if s.prepare != nil {
		s.prepare(c)
	}
	for _, d := range s.actions {
		c.killAtEachPoint(d, s)
	}
	if s.act != nil {
		s.act(c)
	}
	c.ask(failpoint.Armed{})
	total.mu.Lock()
	defer total.mu.Unlock()
	total.whole++
}

// begin starts a daemon and returns a client.
func (c *crash) begin() {
	c.launch(c.t, "--prepared", "0")
	c.l = c.connect(c.t)
}

func (c *crash) ask(a failpoint.Armed) {
	if err := failpoint.Arm(c.commands, a); err != nil {
		c.t.Fatal(err)
	}
}

func (c *crash) reached() []string {
	names, err := failpoint.Reached(c.commands)
	if err != nil {
		c.t.Fatal(err)
	}
	return names
}

// killAtEachPoint kills the daemon at every fail point of an action, and then executes the action without a death.
func (c *crash) killAtEachPoint(d action, s *scenario) {
	t := c.t
	before := c.waitForStableState()
	c.reached()
	if err := d.do(c); err != nil {
		t.Fatalf("%s: %v", d.name, err)
	}
	after := c.waitForStableState()
	path := c.reached()
	c.checkUndo(d, before, after)
	left := before
	if refuse := s.refused[d.name]; refuse != nil {
		c.must(refuse(c))
		left = c.waitForStableState()
		c.checkUndo(d, before, left)
	}
	for _, a := range slices.Concat(deathsOnPath(path, s.every), deathsWhileUndoing(path, c.tally.points)) {
		if c.drawn(d.name, a) {
			c.die(d, a, before, after, left)
		}
	}
	if err := d.do(c); err != nil {
		t.Fatalf("%s is refused after the deaths in it: %v", d.name, err)
	}
	if wrong := c.waitForState(after); wrong != "" {
		t.Fatalf("%s, done after the deaths in it: %s", d.name, wrong)
	}
}

// deathsOnPath returns the deaths on a path: at the first and last time of each fail point, and at every time of one
// point.
func deathsOnPath(path []string, every string) (all []failpoint.Armed) {
	count := map[string]int{}
	for _, name := range path {
		count[name]++
	}
	for _, name := range slices.Sorted(maps.Keys(count)) {
		all = append(all, failpoint.Armed{Point: name, Action: failpoint.Kill, Nth: 1})
		for n := 2; n < count[name] && name == every; n++ {
			all = append(all, failpoint.Armed{Point: name, Action: failpoint.Kill, Nth: n})
		}
		if count[name] > 1 {
			all = append(all, failpoint.Armed{Point: name, Action: failpoint.Kill, Nth: count[name]})
		}
	}
	return all
}

// deathsWhileUndoing returns the deaths while an operation is undone: before and after the undo of each step. The step
// itself fails, which starts the undo.
func deathsWhileUndoing(path, points []string) (all []failpoint.Armed) {
	for _, step := range slices.Compact(slices.Sorted(slices.Values(path))) {
		for _, end := range []string{step + ".undo", step + ".undone"} {
			if slices.Contains(points, end) {
				all = append(all, failpoint.Armed{Point: end, Action: failpoint.Kill, Nth: 1, Fails: step})
			}
		}
	}
	return all
}

func (c *crash) checkUndo(d action, before, after string) {
	if d.back == nil {
		if before != after {
			c.t.Fatalf("%s changes something: %s", d.name, difference(before, after))
		}
		return
	}
	if err := d.back(c); err != nil {
		c.t.Fatalf("%s cannot be taken back: %v", d.name, err)
	}
	if wrong := c.waitForState(before); wrong != "" {
		c.t.Fatalf("%s, taken back: %s", d.name, wrong)
	}
}

// recoveryTime limits the life of a daemon that is to die in its recovery.
const recoveryTime = 200 * time.Millisecond

// lateDeath is how long after the answer a fail point may be reached that does not lie on the path of the call.
const lateDeath = 2 * time.Second

// die kills the daemon at one fail point of an action, starts another daemon, and checks the state.
func (c *crash) die(d action, a failpoint.Armed, before, after, left string) {
	t, what := c.t, fmt.Sprintf("%s, killed at %s (time %d)", d.name, a.Point, a.Nth)
	pids := c.pids()
	c.ask(a)
	err := c.attempt(d)
	var refused libvirt.Error
	patience := patience
	if err == nil || errors.As(err, &refused) {
		patience = lateDeath
	}
	select {
	case <-c.ended:
	case <-time.After(patience):
		// The action took another path this time.
		c.ask(failpoint.Armed{})
		if err != nil {
			t.Fatalf("%s: the daemon is alive; the call returned %v", what, err)
		}
		if wrong := c.waitForState(after); wrong != "" {
			t.Fatalf("%s: the daemon is alive: %s", what, wrong)
		}
		c.checkUndo(d, before, after)
		return
	}
	c.tally.note(a.Point)
	c.dieInRecovery(a)
	c.begin()
	may := []string{before, after}
	if err == nil {
		may = may[1:] // it was answered
	} else if a.Fails != "" {
		may = append(may, left)
	}
	if wrong := c.waitForState(may...); wrong != "" {
		t.Fatalf("%s: %s", what, wrong)
	}
	for name, pid := range c.pids() {
		if was := pids[name]; was != 0 && was != pid {
			t.Fatalf("%s: guest %s had process %d and has %d", what, name, was, pid)
		}
	}
	if now, err := c.state(); err != nil || now != before {
		c.checkUndo(d, before, after)
	}
}

// dieInRecovery kills the next daemon, too, while it recovers an interrupted operation. It dies at the first,
// second or third point of the recovery, in turn.
func (c *crash) dieInRecovery(a failpoint.Armed) {
	kind, _, _ := strings.Cut(a.Point, ".")
	if !slices.Contains(c.tally.kinds, kind) {
		c.ask(failpoint.Armed{})
		return
	}
	second := failpoint.Armed{Point: kind + ".*", Action: failpoint.Kill, Nth: 1 + len(c.tally.deathsIn(kind))%3}
	c.ask(second)
	if c.tryLaunch(c.t, "--prepared", "0") {
		select {
		case <-c.ended:
		case <-time.After(recoveryTime): // there was less to do
			_ = c.command(c.t.Context(), "kill", "-KILL", c.pid).Run() // it may just have died
			<-c.ended
		}
	}
	c.tally.note("recovery of " + kind)
	c.ask(failpoint.Armed{})
}

// attempt executes an action during which the daemon may die. Not every client notices the death.
func (c *crash) attempt(d action) error {
	answer := make(chan error, 1)
	go func() { answer <- d.do(c) }()
	select {
	case err := <-answer:
		return err
	case <-c.ended:
	case <-time.After(patience):
		return errors.New("no answer")
	}
	select {
	case err := <-answer:
		return err
	case <-time.After(time.Second):
		return errors.New("cut off")
	}
}

// Waits for a state: how often the test reads it, and how long it must not change.
const (
	lookAgain = 20 * time.Millisecond
	calmFor   = 150 * time.Millisecond
	stateWait = 30 * time.Second
)

// waitForStableState waits until the state no longer changes, and returns it.
func (c *crash) waitForStableState() string {
	last, since := "", time.Now()
	for end := time.Now().Add(patience); time.Now().Before(end); pauseFor(c.t, lookAgain) {
		now, err := c.state()
		if err != nil {
			c.t.Fatal(err)
		}
		if now != last {
			last, since = now, time.Now()
		} else if time.Since(since) > calmFor {
			return last
		}
	}
	c.t.Fatalf("it does not come to rest:\n%s", last)
	return ""
}

// waitForState waits until the state is one of these. If it never is, it returns the difference.
func (c *crash) waitForState(may ...string) string {
	var now string
	for end := time.Now().Add(stateWait); time.Now().Before(end); pauseFor(c.t, lookAgain) {
		var err error
		if now, err = c.state(); err != nil {
			now = err.Error()
			continue
		}
		if slices.Contains(may, now) {
			return ""
		}
	}
	var wrong strings.Builder
	for _, m := range may {
		fmt.Fprintf(&wrong, "it differs from what may be so:\n%s", difference(m, now))
	}
	return wrong.String()
}

// difference lists the lines that only one of two texts has.
func difference(a, b string) string {
	var out strings.Builder
	first, second := strings.Split(a, "\n"), strings.Split(b, "\n")
	for _, line := range first {
		if !slices.Contains(second, line) {
			fmt.Fprintf(&out, "\t- %s\n", line)
		}
	}
	for _, line := range second {
		if !slices.Contains(first, line) {
			fmt.Fprintf(&out, "\t+ %s\n", line)
		}
	}
	return out.String()
}

func (d *daemon) logOnFailure(t *testing.T) {
	if t.Failed() {
		d.mu.Lock()
		defer d.mu.Unlock()
		t.Logf("the daemon's log:\n%s", strings.Join(d.log[max(0, len(d.log)-40):], "\n"))
	}
}
