package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/guestimage/guestimagetest"
)

// labPatience bounds one scenario: a tile is eight emulated guests.
const labPatience = 10 * time.Minute

// labImages finds what `make lab-image` has made.
func labImages(t *testing.T) string {
	t.Helper()
	images := guestimagetest.Made(t, "LODGE_LAB_IMAGE", "lab")
	if _, err := os.Stat(filepath.Join(images, "current", "image.json")); err != nil {
		t.Skipf("no guest image of the lab's: run make lab-image (%v)", err)
	}
	return images
}

// labLine is a line of a run's samples or events.
type labLine struct {
	Kind, What, Guest, Text string // of an event

	Metric string // of a sample
	Value  float64
	Window int
	Labels struct{ Load, Op, Tile string }
}

// labRun has the lab run a scenario at the daemon, and gives what it kept.
func (d *daemon) labRun(t *testing.T, scenario, images string, more ...string) (samples, events []labLine) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "run")
	args := append([]string{
		"lab", "run", scenario, "--profile", "smoke", "--target", "lodged=" + d.run + "/libvirt-sock",
		"--images", images, "--files", filepath.Join(d.dir, "guests"), "--directory", out,
	}, more...)
	ctx, cancel := context.WithTimeout(t.Context(), labPatience)
	defer cancel()
	if said, err := d.command(ctx, program(t, "lodge"), args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return labLines(t, out+"/samples.ndjson"), labLines(t, out+"/events.ndjson")
}

func labLines(t *testing.T, path string) (all []labLine) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l labLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			t.Fatalf("%v: %s", err, lines.Bytes())
		}
		all = append(all, l)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestLabScenarios runs a tile, the shop, a slice of the disk matrix and processors
// added under load on guests of the lab's own, in their smallest size, and holds what
// the loads count against what the servers do. How fast it was is no matter.
func TestLabScenarios(t *testing.T) {
	needs(t, "dnsmasq")
	images := labImages(t)
	d := start(t)
	for _, c := range []struct {
		scenario string
		loads    []string // each has done something
		books    []string // counted by a load and by a server
		change   string   // what was done to a guest meanwhile
	}{
		{scenario: "tile", loads: []string{"outside", "inside", "behind", "jobs", "files", "orders"}, books: []string{"outside requests", "inside requests", "behind requests", "orders new-order", "orders payment"}},
		{scenario: "lamp-scale-up", loads: []string{"shop"}, books: []string{"shop requests", "shop purchase"}},
		{scenario: "block-io", loads: []string{"fio"}},
		{scenario: "oltp-hotadd", loads: []string{"orders"}, books: []string{"orders new-order", "orders payment"}, change: "vcpus 2"},
	} {
		t.Run(c.scenario, func(t *testing.T) {
			samples, events := d.labRun(t, c.scenario, images)
			counted := labCounts(samples)
			for _, load := range c.loads {
				if counted.done[load] == 0 {
					t.Errorf("%s has done nothing", load)
				}
			}
			for _, book := range c.books {
				load, _, _ := strings.Cut(book, " ")
				sent, served := counted.sent[book], counted.served[book]
				t.Logf("%s: %v sent, %v served, %v failed", book, sent, served, counted.failed[load])
				// Of what failed the server may have done some.
				if sent == 0 || served < sent || served > sent+counted.failed[load] {
					t.Errorf("%s: the load counts %v and %v that failed, the server %v", book, sent, counted.failed[load], served)
				}
			}
			changed := false
			for _, e := range events {
				changed = changed || e.Kind == "change" && e.Text == c.change
				// An operation that fails on a busy machine is counted, and no fault here.
				if e.Kind == "skipped" || e.Kind == "bad" && e.What == "books" || e.Kind == "failed" && e.What != "load" {
					t.Errorf("%s %s of %s: %s", e.Kind, e.What, e.Guest, e.Text)
				}
			}
			if c.change != "" && !changed {
				t.Errorf("%s is not among the events", c.change)
			}
		})
	}
}

// labCount is what a run's samples add up to, by load or by load and operation.
type labCount struct{ done, failed, sent, served map[string]float64 }

func labCounts(samples []labLine) labCount {
	c := labCount{map[string]float64{}, map[string]float64{}, map[string]float64{}, map[string]float64{}}
	for _, s := range samples {
		book := s.Labels.Load + " " + s.Labels.Op
		switch s.Metric {
		case "done":
			c.done[s.Labels.Load] += s.Value
		case "errors":
			c.failed[s.Labels.Load] += s.Value
		case "sent":
			c.sent[book] += s.Value
		case "served":
			c.served[book] += s.Value
		}
	}
	return c
}

// brokenImage is the lab's guest with nothing that could be mounted for its /usr.
func brokenImage(t *testing.T, images, dir string) {
	t.Helper()
	whole, err := filepath.EvalSymlinks(filepath.Join(images, "current"))
	if err != nil {
		t.Fatal(err)
	}
	facts := map[string]any{}
	text, err := os.ReadFile(filepath.Join(whole, "image.json"))
	if err == nil {
		err = json.Unmarshal(text, &facts)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, "current"), 0o755)
	}
	for _, part := range []string{"kernel", "initrd", "root", "usr"} {
		name, _ := facts[part].(string)
		facts[part] = part
		path := filepath.Join(dir, "current", part)
		switch {
		case err != nil:
		case part == "usr":
			err = os.WriteFile(path, make([]byte, 1<<20), 0o644)
		default:
			err = os.Symlink(filepath.Join(whole, name), path)
		}
	}
	if err == nil {
		text, err = json.Marshal(facts)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "current", "image.json"), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestLabSaysWhyAGuestDoesNotBoot breaks the guests' /usr: the run tells what their
// console said last, leaves out what cannot be measured, and comes to its end with
// nothing counted and nothing left.
func TestLabSaysWhyAGuestDoesNotBoot(t *testing.T) {
	needs(t, "dnsmasq")
	images := labImages(t)
	d := start(t)
	broken := filepath.Join(d.dir, "images")
	brokenImage(t, images, broken)
	samples, events := d.labRun(t, "block-io", broken, "--only", "work=sequential")
	said, skipped := "", 0
	for _, e := range events {
		switch {
		case e.Kind == "failed" && e.What == "boot":
			said += e.Text
		case e.Kind == "skipped" && strings.Contains(e.Text, "its guest disk is not there"):
			skipped++
		}
	}
	if !strings.Contains(said, "its console ends: ") || !strings.Contains(said, "cannot mount") || skipped != 1 {
		t.Errorf("%d loads are left out, and of the boot is said: %s", skipped, said)
	}
	for _, s := range samples {
		if s.Metric == "done" || s.Metric == "rate" {
			t.Errorf("counted: %+v", s)
		}
	}
}
