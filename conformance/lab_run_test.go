package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/testguest/guestimagetest"
)

// labPatience limits one scenario: a tile is eight emulated guests.
const labPatience = 10 * time.Minute

// labImages finds the images of `make lab-image`.
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
	Arm                     string
	Kind, What, Guest, Text string // of an event

	Metric string // of a sample
	Value  float64
	Window int
	Labels struct{ Load, Op, Tile string }
}

// labKept holds the record of a lab run, and how the run ended.
type labKept struct {
	samples, events []labLine
	status          int
	said            string
	dir             string
}

// Exit statuses of a completed run.
const (
	labAllDone     = 0
	labSomeSkipped = 4
	labSomeFailed  = 5
)

// labRun runs a scenario at the daemon, and returns its record.
func (d *daemon) labRun(t *testing.T, scenario, images string, more ...string) labKept {
	t.Helper()
	return d.labBegin(t, scenario, images, more...)()
}

// labBegin starts a scenario. The returned function waits for its end.
func (d *daemon) labBegin(t *testing.T, scenario, images string, more ...string) (ended func() labKept) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "run")
	args := append([]string{
		"lab", "run", scenario, "--profile", "smoke", "--target", "lodged=" + d.run + "/libvirt-sock",
		"--images", images, "--files", filepath.Join(d.dir, "guests"), "--directory", out,
	}, more...)
	ctx, cancel := context.WithTimeout(t.Context(), labPatience)
	lab := d.command(ctx, program(t, "lodge"), args...)
	var said bytes.Buffer
	lab.Stdout, lab.Stderr = &said, &said
	if err := lab.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	wait := sync.OnceValue(lab.Wait)
	t.Cleanup(func() { cancel(); _ = wait() })
	return func() labKept {
		t.Helper()
		err := wait()
		kept := labKept{status: lab.ProcessState.ExitCode(), said: said.String(), dir: out}
		if err != nil && kept.status != labSomeSkipped && kept.status != labSomeFailed {
			t.Fatalf("%v\n%s", err, kept.said)
		}
		kept.samples, kept.events = labLines(t, out+"/samples.ndjson"), labLines(t, out+"/events.ndjson")
		return kept
	}
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

// The test runs a tile, the shop, a part of the disk matrix and processors added under load, in their smallest
// size. It compares the counts of the loads with those of the servers. The shop runs also outside of a guest, for
// its efficiency. Speed does not matter here.
// Promise: L20, L46
func TestLab_Scenarios(t *testing.T) {
	needs(t, "dnsmasq")
	images := labImages(t)
	d := start(t)
	for _, c := range []struct {
		scenario string
		loads    []string // each has done something
		books    []string // counted by a load and by a server
		change   string   // the change of a guest during the run
		outside  bool     // it is also run outside of a guest
		clients  bool     // `make clients` runs it
	}{
		{scenario: "tile", loads: []string{"outside", "inside", "behind", "jobs", "files", "orders"}, books: []string{"outside requests", "inside requests", "behind requests", "orders new-order", "orders payment"}},
		{scenario: "lamp-scale-up", loads: []string{"shop"}, books: []string{"shop requests", "shop purchase"}, outside: true, clients: true},
		{scenario: "block-io", loads: []string{"fio"}, clients: true},
		{scenario: "oltp-hotadd", loads: []string{"orders"}, books: []string{"orders new-order", "orders payment"}, change: "vcpus 2", clients: true},
	} {
		t.Run(c.scenario, func(t *testing.T) {
			if c.clients {
				onlyInClients(t)
			}
			kept := d.labRun(t, c.scenario, images)
			arms := map[string]bool{}
			for _, s := range kept.samples {
				arms[s.Arm] = true
			}
			cannot := ""
			changed, failed := false, false
			for _, e := range kept.events {
				changed = changed || e.Kind == "change" && e.Text == c.change
				failed = failed || e.Kind == "failed" || e.Kind == "bad" && e.What != "bound"
				if e.Kind == "skipped" && e.What == "outside" {
					cannot = e.Text
					continue
				}
				// An operation that fails on a busy machine is counted. It is not an error of the test.
				if e.Kind == "skipped" || e.Kind == "bad" && e.What == "books" || e.Kind == "failed" && e.What != "load" {
					t.Errorf("%s %s of %s: %s", e.Kind, e.What, e.Guest, e.Text)
				}
			}
			want := labAllDone
			switch {
			case failed:
				want = labSomeFailed
			case cannot != "":
				want = labSomeSkipped
			}
			if kept.status != want {
				t.Errorf("its exit status is %d, and not %d: %s", kept.status, want, kept.said)
			}
			for arm := range arms {
				labBooks(t, arm, kept.samples, c.loads, c.books)
			}
			if c.change != "" && !changed {
				t.Errorf("%s is not among the events", c.change)
			}
			if c.outside {
				d.labEfficiency(t, kept.dir, cannot, arms)
			}
		})
	}
}

// labBooks compares the counts of both sides of an arm.
func labBooks(t *testing.T, arm string, samples []labLine, loads, books []string) {
	t.Helper()
	counted := labCounts(slices.DeleteFunc(slices.Clone(samples), func(s labLine) bool { return s.Arm != arm }))
	for _, load := range loads {
		if counted.done[load] == 0 {
			t.Errorf("%s, %s has done nothing", arm, load)
		}
	}
	for _, book := range books {
		load, _, _ := strings.Cut(book, " ")
		sent, served := counted.sent[book], counted.served[book]
		t.Logf("%s, %s: %v sent, %v served, %v failed", arm, book, sent, served, counted.failed[load])
		// The server may have completed some of the failed requests.
		if sent == 0 || served < sent || served > sent+counted.failed[load] {
			t.Errorf("%s, %s: the load counts %v and %v that failed, the server %v", arm, book, sent, counted.failed[load], served)
		}
	}
}

// labEfficiency expects one arm in guests and one outside of them, and the efficiency in the report. Nothing of
// the run outside of guests may be left.
func (d *daemon) labEfficiency(t *testing.T, run, cannot string, arms map[string]bool) {
	t.Helper()
	said := d.output(t, program(t, "lodge"), "lab", "report", run)
	if cannot != "" {
		if !strings.Contains(said, "Efficiency was not measured: "+cannot) {
			t.Errorf("the report does not say why there is no efficiency:\n%s", said)
		}
		t.Skipf("nothing is run outside of a guest here: %s", cannot)
	}
	if len(arms) != 2 || !arms["guest"] || !arms["native"] {
		t.Errorf("measured are %v", arms)
	}
	for _, want := range []string{"of what the same stack does outside of a guest", "Efficiency: in guests, by the same stack outside of a guest", "no daemon, no QEMU, no accelerator"} {
		if !strings.Contains(said, want) {
			t.Errorf("the report does not say %q:\n%s", want, said)
		}
	}
	var header struct{ ID string }
	text, err := os.ReadFile(filepath.Join(run, "run.json"))
	if err == nil {
		err = json.Unmarshal(text, &header)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, tree := range []string{"", "memory/", "cpuacct/"} {
		if left, _ := filepath.Glob("/sys/fs/cgroup/" + tree + "lodge-lab-" + header.ID + "*"); len(left) > 0 {
			t.Errorf("left are %v", left)
		}
	}
	if links := d.output(t, "ip", "-br", "link"); strings.Contains(links, "lab") {
		t.Errorf("links are left:\n%s", links)
	}
}

// labCount is the sum of a run's samples, by load or by load and operation.
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

// brokenImage is the lab's guest with an unmountable /usr.
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
	delete(facts, "generic") // an image needs no other kernel, and this one's guests boot the first
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

// The guests' /usr is broken. The run must show the last lines of their console, skip measurements that are not
// possible, and end with nothing counted and nothing left behind.
// Promise: L21, L34
func TestLab_GuestDoesNotBoot(t *testing.T) {
	onlyInClients(t)
	needs(t, "dnsmasq")
	images := labImages(t)
	d := start(t)
	broken := filepath.Join(d.dir, "images")
	brokenImage(t, images, broken)
	kept := d.labRun(t, "block-io", broken, "--only", "work=sequential")
	if kept.status != labSomeFailed || !strings.Contains(kept.said, "cannot mount") {
		t.Errorf("its exit status is %d: %s", kept.status, kept.said)
	}
	said, skipped := "", 0
	for _, e := range kept.events {
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
	for _, s := range kept.samples {
		if s.Metric == "done" || s.Metric == "rate" {
			t.Errorf("counted: %+v", s)
		}
	}
}

// dying is a scenario with a web server and a database, each with clients on the host.
const dying = `schema: lodge.lab/1
name: dying
profiles: {smoke: {users: 2}}
warmup: 2s
measure: 30s
guests:
  - {role: web, memory: 256MiB, tb_cache: 32MiB, services: [{kind: files}, {kind: nginx}]}
  - {role: db, memory: 256MiB, tb_cache: 32MiB, services: [{kind: mariadb, config: {buffer: 16}}]}
load:
  - {name: pages, kind: web, from: host, to: web, counted: requests, config: {mode: open, rate: 5, address: "${web.address}:80", requests: [{op: page, path: /10k, bytes: 10240}]}}
  - name: orders
    kind: oltp
    from: host
    to: db
    prepare: [{kind: oltp-prepare, config: {database: {address: "127.0.0.1:3306", user: lab, password: lab, database: orders}, size: {warehouses: 1, customers: 30, items: 100}}}]
    config: {users: $users, think: 100ms, database: {address: "${db.address}:3306", user: lab, password: lab, database: orders}, size: {warehouses: 1, customers: 30, items: 100}}
`

var labAddress = regexp.MustCompile(`lab\.net=[0-9a-f:]+@([0-9.]+)/`)

// The database ends while its clients work. The report names the dead service and the errors of its clients. None
// of these counts as throughput, and the web server beside it is measured to the end.
// Promise: L35
func TestLab_ServiceDies(t *testing.T) {
	onlyInClients(t)
	needs(t, "dnsmasq", "mariadb")
	images := labImages(t)
	d := start(t)
	scenario := filepath.Join(t.TempDir(), "dying.yaml")
	if err := os.WriteFile(scenario, []byte(dying), 0o644); err != nil {
		t.Fatal(err)
	}
	ended := d.labBegin(t, scenario, images)
	d.endDatabase(t)
	kept := ended()
	var service, clients string
	for _, e := range kept.events {
		switch {
		case e.Kind == "failed" && e.What == "service" && strings.HasSuffix(e.Guest, "-db"):
			service = e.Text
		case e.Kind == "failed" && e.What == "load" && strings.HasSuffix(e.Guest, "-db"):
			clients = e.Text
		case strings.HasSuffix(e.Guest, "-web"):
			t.Errorf("of the web server is told: %+v", e)
		}
	}
	if !strings.Contains(service, "mariadb") || !strings.Contains(clients, "orders of tile 1") || kept.status != labSomeFailed {
		t.Errorf("exit status %d; of the service is told %q, of its clients %q", kept.status, service, clients)
	}
	counted := labCounts(kept.samples)
	pages := "pages requests"
	if counted.failed["orders"] == 0 || counted.done["pages"] == 0 || counted.failed["pages"] > 0 || counted.sent[pages] != counted.served[pages] || counted.sent[pages] < 100 {
		t.Errorf("done %v, failed %v, sent %v, served %v", counted.done, counted.failed, counted.sent, counted.served)
	}
}

// endDatabase waits until clients on the host use the database in one of the lab's guests, and then stops it.
func (d *daemon) endDatabase(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labPatience)
	defer cancel()
	address := ""
	ask := func(statement string) string {
		out, _ := d.command(ctx, "mariadb", "--no-defaults", "--connect-timeout=5", "-h", address, "-u", "lab", "-plab", "-BN", "-e", statement).Output()
		return strings.TrimSpace(string(out))
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		for name := range strings.FieldsSeq(d.virsh(t, "list", "--name")) {
			document, _ := d.try(t, "dumpxml", name)
			if found := labAddress.FindStringSubmatch(document); strings.HasSuffix(name, "-db") && found != nil {
				address = found[1]
			}
		}
		// The connection of the initial fill came from inside the guest; one more is this query.
		if address != "" && ask("SELECT COUNT(*) > 1 FROM information_schema.processlist WHERE user = 'lab' AND host LIKE '10.%'") == "1" {
			ask("SHUTDOWN")
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("no client has come to the database")
		}
	}
}
