package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

const small = `schema: lodge.lab/1
name: small
profiles:
  mini: {memory: 128MiB, counts: [{tiles: 1}, {tiles: 3}], rate: 5, tb: 32MiB}
  full: {memory: 1GiB, counts: [{tiles: 32}], rate: 50, tb: 64MiB}
arms:
  - {name: loose, set: {node: ""}}
  - {name: pinned, set: {node: spread}}
steps: $counts
repetitions: 2
windows: 3
warmup: 1s
measure: 1m30s
guests:
  - {role: web, count: $tiles, memory: $memory, node: $node, tb_cache: $tb, disks: [{name: data, size: 1GiB}]}
  - {role: db, memory: 64MiB, max_memory: 320MiB, vcpus: 2, max_vcpus: 4, disks: [{name: data, size: 10MiB, format: qcow2, cache: writeback, io: native}]}
load:
  - {name: out, kind: web, from: host, to: web, config: {address: "${web.address}:80", rate: $rate, path: "/${rate}k", even: {deeper: [$rate]}}}
events:
  - {at: 30s, do: vcpus, guest: db, to: 4}
  - {at: 40s, do: memory, guest: db, to: 320MiB}
  - {at: 50s, do: migrate, guest: web}
bounds:
  - {metric: errors, below: 1}
`

func parsed(t *testing.T) *Scenario {
	t.Helper()
	s, err := Parse([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAPlanHasEveryValueFilledIn(t *testing.T) {
	p, err := parsed(t).Plan("mini")
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Arms) != 2 || len(p.Steps) != 2 || p.Repetitions != 2 || p.Windows != 3 || p.Warmup != (Warmup{Least: time.Second, Most: time.Second}) || p.Measure != 90*time.Second {
		t.Fatalf("got %+v", p)
	}
	if p.Steps[1].Name != "tiles=3" || p.Steps[1].Axes["tiles"] != "3" || p.Arms[1].Text()["node"] != "spread" {
		t.Errorf("steps %+v, arms %+v", p.Steps, p.Arms)
	}
	u := p.Setups[1][1]
	if u.Guests[0].Count != 3 || u.Guests[0].Node != "spread" || u.Guests[0].Memory != 128*MiB || u.Guests[1].MaxVCPUs != 4 || u.Guests[1].Disks[0].IO != "native" || u.Guests[1].Disks[0].Bus != "virtio" {
		t.Errorf("guests %+v", u.Guests)
	}
	config, err := u.Loads[0].JSON()
	if want := `{"address":"${web.address}:80","even":{"deeper":[5]},"path":"/5k","rate":5}`; err != nil || string(config) != want {
		t.Errorf("load %s, want %s", config, want)
	}
	if p.Setups[0][0].Guests[0].Node != "" {
		t.Error("the other arm is pinned, too")
	}
}

func TestAWarmUpHasALengthOrARule(t *testing.T) {
	for text, want := range map[string]Warmup{
		"20s":                                {Least: 20 * time.Second, Most: 20 * time.Second},
		"0s":                                 {},
		"{least: 30s, most: 5m, steady: 5%}": {Least: 30 * time.Second, Most: 5 * time.Minute, Steady: 0.05, Window: 10 * time.Second},
		"{least: 1m, most: 1m, steady: 2.5%, window: 15s}": {Least: time.Minute, Most: time.Minute, Steady: 0.025, Window: 15 * time.Second},
		"{least: $least, most: 5m, steady: 5%}":            {Least: time.Minute, Most: 5 * time.Minute, Steady: 0.05, Window: 20 * time.Second},
	} {
		s, err := Parse([]byte(strings.NewReplacer("warmup: 1s", "warmup: "+text, "rate: 5,", "rate: 5, least: 1m,", "rate: 50,", "rate: 50, least: 1m,").Replace(small)))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if p, err := s.Plan("mini"); err != nil || p.Warmup != want || p.Warmup.Fixed() != (want.Steady == 0) {
			t.Errorf("%s: %+v, %v", text, p.Warmup, err)
		}
	}
}

func TestNarrowKeepsASlice(t *testing.T) {
	p, err := parsed(t).Plan("mini")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Narrow(map[string][]string{"tiles": {"3", "9"}}); err != nil || len(p.Steps) != 1 || p.Setups[0][0].Guests[0].Count != 3 {
		t.Errorf("%v: %+v", err, p.Steps)
	}
	for _, only := range []map[string][]string{{"tiles": {"7"}}, {"nodes": {"1"}}} {
		if err := p.Narrow(only); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v: %v", only, err)
		}
	}
}

func TestAMatrixIsEveryCombination(t *testing.T) {
	text := strings.Replace(small, "steps: $counts", "matrix: {tiles: [1, 2], bus: [virtio, scsi, ide]}", 1)
	s, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, _ := s.Plan("mini")
	if len(p.Steps) != 6 || p.Steps[5].Name != "bus=ide tiles=2" {
		t.Errorf("got %+v", p.Steps)
	}
}

func TestNeedsAddUp(t *testing.T) {
	p, err := parsed(t).Plan("mini")
	if err != nil {
		t.Fatal(err)
	}
	n := p.Setups[0][1].Needs(true)
	if n.Guests != 4 || n.VCPUs != 7 || n.Memory != 2*3*(128+120+32)*MiB+(320+120+64)*MiB {
		t.Errorf("got %+v", n)
	}
	if text := n.Sums(); !strings.Contains(text, "3 × web") || !strings.Contains(text, "4 guests") {
		t.Errorf("told as %s", text)
	}
	if with, without := n.Memory, p.Setups[0][1].Needs(false).Memory; without >= with {
		t.Error("translated code takes nothing")
	}
}

// A mistake in any profile, arm or step is refused with its line.
func TestMistakesAreRefusedWithTheirLine(t *testing.T) {
	for _, c := range []struct{ old, fresh, want string }{
		{"name: small", "nmae: small", "line 2: \"nmae\" is not known here"},
		{"windows: 3", "windows: three", "line 11"},
		{"windows: 3", "windows: 0", "windows 0"},
		{"warmup: 1s", "warmup: -1s", "warmup -1s"},
		{"warmup: 1s", "warmup: {least: 20s, most: 5m}", "line 12: steady is \"\""},
		{"warmup: 1s", "warmup: {least: 20s, most: 5m, steady: 5}", "line 12: steady is \"5\""},
		{"warmup: 1s", "warmup: {least: 20s, most: 5m, steady: 90%}", "line 12: steady is \"90%\""},
		{"warmup: 1s", "warmup: {least: 20s, most: 10s, steady: 5%}", "line 12: a warm-up of at least 20s"},
		{"warmup: 1s", "warmup: {least: 5s, most: 10s, steady: 5%}", "line 12: windows of 1.6"},
		{"warmup: 1s", "warmup: {least: 20s, most: 1m, steady: 5%, window: 10s}", "line 12: least is 20s, and 3 windows"},
		{"warmup: 1s", "warmup: {floor: 20s}", "line 12: \"floor\" is not known"},
		{"memory: $memory", "memory: $memroy", "line 15: there is no variable $memroy"},
		{"memory: $memory", "memory: 12 parsecs", "line 15: \"12 parsecs\" is no size"},
		{"memory: 128MiB", "memory: 1MiB", "line 15: memory of web"},
		{"max_vcpus: 4", "max_vcpus: 1", "line 16: db has 2 vcpus"},
		{"cache: writeback", "cache: warp", "line 16: cache is \"warp\""},
		{"format: qcow2", "fromat: qcow2", "line 16: \"fromat\""},
		{"from: host, to: web", "from: host, to: wbe", "line 18: load out"},
		{"from: host, to: web", "from: host", "line 18: load out wants to"},
		{"guest: db, to: 4", "guest: dba, to: 4", "line 20: there is no role dba"},
		{"do: vcpus", "do: vcpsu", "line 20: do is \"vcpsu\""},
		{"to: 320MiB", "to: 384MiB", "line 21: memory of db is to grow to 384 MiB"},
		{"to: 320MiB", "to: 100MiB", "line 21: memory of db"},
		{"max_memory: 320MiB", "max_memory: 1MiB", "line 16: memory of db is 64 MiB"},
		{"guest: web}", "guest: web, to: there}", "line 22: migrate wants no to"},
		{"from: host, to: web", "from: web", "line 22: web runs load out"},
		{"{metric: errors, below: 1}", "{metric: errors}", "line 24"},
		{"name: pinned", "name: loose", "line 8"},
		{"${rate}k", "${tb}k${counts}", "line 18: $counts is a list"},
		{"role: db", "role: host", "line 16"},
		{"role: db", "role: web", "line 16: two roles"},
		{"steps: $counts", "steps: &x $counts", "line 9: anchors"},
		{"{tiles: 1}, {tiles: 3}", "{tiles: 1}, {tiles: 1}", "is there twice"},
		{"repetitions: 2", "repetitions: 2\nrepetitions: 3", "line 11"},
		{"schema: lodge.lab/1", "schema: lodge.lab/9", "lodge.lab/9"},
		{"bounds:", "storm: {scenarios: [all], guests: [1], disks: [0], clients: 1, repeats: 1, patience: 1s, window: 1s}\nbounds:", "a storm makes its own guests"},
		{small, "", "nothing in it"},
		{small, "# only words\n", "nothing in it"},
		{small, "- a\n- b\n", "line 1"},
		{small, small + "---\n" + small, "more than one document"},
		{small, "a: [", "line 1"},
	} {
		text := strings.Replace(small, c.old, c.fresh, 1)
		if text == small {
			t.Errorf("%q is not in the text", c.old)
			continue
		}
		if _, err := Parse([]byte(text)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s -> %s: got %v, want something with %q", c.old, c.fresh, err, c.want)
		}
	}
}

func TestShippedScenariosArePlans(t *testing.T) {
	for _, name := range Names() {
		s, err := Open(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if s.Name != name || s.Title == "" || s.About == "" {
			t.Errorf("%s: name %q, title %q, about %q", name, s.Name, s.Title, s.About)
		}
		if err := s.check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if profiles := s.Profiles(); !slices.Contains(profiles, "mini") || !slices.Contains(profiles, "paper") {
			t.Errorf("%s has profiles %v", name, profiles)
		}
	}
	if _, err := Open("nothing"); !fault.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "tile") {
		t.Errorf("a name that does not ship: %v", err)
	}
}

func TestOpenReadsFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "own.yaml")
	if err := os.WriteFile(path, []byte(small), 0o644); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(path); err != nil || s.Name != "small" {
		t.Errorf("%v", err)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]Size{"512MiB": 512 * MiB, "1.5GiB": 3 * GiB / 2, "512B": 512, "4 KiB": 4 * KiB} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "5", "GiB", "-1GiB", "9e99TiB", "NaNB"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(small))
	for _, name := range []string{"tile", "storm"} { // the large matrix takes seconds under the race detector
		text, _ := shipped.ReadFile("shipped/" + name + ".yaml")
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := Parse(text); err == nil && len(s.Profiles()) == 0 {
			t.Error("read, and without a profile")
		}
	})
}

// Promise: L45
func TestWhatADiskLiesOn(t *testing.T) {
	guest := func(count int, disk string) string {
		return fmt.Sprintf("schema: lodge.lab/1\nname: x\nprofiles: {mini: {a: 1}}\nmeasure: 1s\nguests:\n  - {role: disk, count: %d, memory: 128MiB, disks: [{name: data, size: 1GiB, %s}]}\n", count, disk)
	}
	for disk, want := range map[string]string{
		"store: tape":                  "block device below /dev",
		"store: /etc/passwd":           "block device below /dev",
		"store: /dev/../etc/passwd":    "block device below /dev",
		"store: device, format: qcow2": "is raw",
		"partition: upside-down":       "aligned, misaligned",
		"scheduler: fastest":           "mq-deadline",
	} {
		if _, err := Parse([]byte(guest(1, disk))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", disk, err)
		}
	}
	if _, err := Parse([]byte(guest(2, "store: /dev/sdx"))); err == nil || !strings.Contains(err.Error(), "a device is one guest's") {
		t.Errorf("two tiles with one device: %v", err)
	}
	s, err := Parse([]byte(guest(1, "store: /dev/sdx, partition: misaligned, scheduler: bfq")))
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Plan("mini")
	if err != nil {
		t.Fatal(err)
	}
	if needs := p.Setups[0][0].Needs(false); needs.Disk >= GiB {
		t.Errorf("a device of the host's takes %s of its file systems", needs.Disk)
	}
}

// What does not vary is in no name: the matrix of disks has a dozen axes.
func TestStepsAreNamedByWhatVaries(t *testing.T) {
	s, err := Parse([]byte("schema: lodge.lab/1\nname: x\nprofiles: {mini: {a: 1}}\nmeasure: 1s\nmatrix: {bus: [virtio], threads: [1, 8]}\nguests:\n  - {role: disk, memory: 128MiB}\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Plan("mini")
	if err != nil || len(p.Steps) != 2 || p.Steps[1].Name != "threads=8" || p.Steps[1].Axes["bus"] != "virtio" {
		t.Errorf("%+v, %v", p.Steps, err)
	}
}

// An arm outside of a guest has what is there without one, and a mistake in it is told
// with its line before anything is made.
func TestAnArmOutsideOfAGuest(t *testing.T) {
	text := func(arms, guest, more string) string {
		return fmt.Sprintf("schema: lodge.lab/1\nname: x\nprofiles: {mini: {a: 1}}\nmeasure: 1s\narms: [%s]\nguests:\n  - {role: db, memory: 128MiB, %s}\n  - {role: web, memory: 128MiB}\n%s", arms, guest, more)
	}
	const both = "{name: guest}, {name: native, native: true}"
	for what, c := range map[string]struct{ arms, guest, more, want string }{
		"alone":  {arms: "{name: native, native: true}", want: "line 5: arm native is native, and there is none of guests"},
		"event":  {arms: both, guest: "max_vcpus: 2", more: "events: [{at: 1s, do: vcpus, guest: db, to: 2}]\n", want: "line 9: vcpus is done to guests"},
		"roles":  {arms: both, more: "load:\n  - {name: a, kind: web, from: web, to: db}\n", want: "line 10: load a is from web to db"},
		"node":   {arms: both, guest: "node: spread", want: "line 7: db is bound to a node"},
		"swap":   {arms: both, guest: "disks: [{name: swap, size: 1GiB, use: swap}]", want: "line 7: disk swap is swap"},
		"bare":   {arms: both, guest: "disks: [{name: data, size: 1GiB}]", want: "line 7: disk data has no file system"},
		"parted": {arms: both, guest: "disks: [{name: data, size: 1GiB, use: /data, partition: aligned}]", want: "line 7: disk data has a partition"},
	} {
		if _, err := Parse([]byte(text(c.arms, c.guest, c.more))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	guest := "disks: [{name: data, size: 1GiB, format: qcow2, cache: unsafe, bus: scsi, use: /var/lib/mysql}], pages: 2MiB"
	s, err := Parse([]byte(text(both, guest, "load:\n  - {name: a, kind: web, from: host, to: web}\n  - {name: b, kind: mix-cpu, from: db}\n")))
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Plan("mini")
	if err != nil || !p.Outside() || p.Arms[0].Native || !p.Arms[1].Native {
		t.Errorf("%+v, %v", p, err)
	}
	for _, name := range []string{"lamp-scale-up", "lamp-scale-out", "lamp-consolidation"} {
		s, err := Shipped(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, profile := range s.Profiles() {
			if p, err := s.Plan(profile); err != nil || !p.Outside() {
				t.Errorf("%s, %s: nothing is outside of a guest, %v", name, profile, err)
			}
		}
	}
}

// An arm may have its own of what steps say: one instance that has as many processors,
// memory and users as all guests of a step together, as the paper's on bare metal.
// Promise: L46
func TestAnArmHasItsOwnAtEveryStep(t *testing.T) {
	s, err := Shipped("lamp-consolidation")
	if err != nil {
		t.Fatal(err)
	}
	for _, profile := range s.Profiles() {
		p, err := s.Plan(profile)
		if err != nil {
			t.Fatal(err)
		}
		for i, step := range p.Steps {
			guests, one := p.Setups[0][i], p.Setups[1][i]
			g, o := guests.Guests[0], one.Guests[0]
			if o.Count != 1 || o.VCPUs != g.Count*g.VCPUs || o.Memory != Size(g.Count)*g.Memory {
				t.Errorf("%s, %s: one instance with %d processors and %s beside %d with %d and %s", profile, step.Name, o.VCPUs, o.Memory, g.Count, g.VCPUs, g.Memory)
			}
			if users := guests.Loads[0].Config["users"]; fmt.Sprint(one.Loads[0].Config["users"]) != fmt.Sprint(g.Count*users.(int)) {
				t.Errorf("%s, %s: %v users of one instance, and %v of each guest", profile, step.Name, one.Loads[0].Config["users"], users)
			}
		}
	}
}
