package pages

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/lab/experiment"
	"github.com/lodge-kvm/lodge/lab/histogram"
	"github.com/lodge-kvm/lodge/lab/machine"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
)

// kindOfRun is a scenario that ships, of which a run is made up; with how many
// pictures its page has at least.
type kindOfRun struct {
	scenario, profile string
	only              map[string][]string
	repetitions       int
	pictures          int
	opened            bool // in a browser, which takes its time: one of each shape
}

var few = map[string][]string{"tiles": {"1", "24", "32"}}

var kindsOfRuns = []kindOfRun{
	{"tile", "paper", few, 2, 20, true},
	{"tile-pinned", "paper", few, 2, 26, false},
	{"tile-host-tuning", "mini", nil, 6, 14, false},
	{"lamp-scale-out", "paper", nil, 2, 6, false},
	{"lamp-scale-up", "paper", nil, 2, 6, true},
	{"lamp-consolidation", "paper", nil, 2, 4, false},
	{"block-io", "paper", map[string][]string{"bus": {"virtio", "ide"}, "io": {"threads", "native"}, "format": {"raw"}, "allocate": {"thin"}, "iothread": {"false"}}, 1, 5, true},
	{"block-mail", "paper", nil, 2, 3, false},
	{"oltp-hotadd", "paper", nil, 3, 3, true},
	{"oltp-backing", "paper", nil, 6, 3, false},
}

// inventor makes up what was measured: loads that fill a host of 24 tiles, guests
// that do more with more processors, disks of which some are slow.
type inventor struct {
	*record.Run
	draws *rand.Rand
	plan  *scenario.Plan
	loud  float64 // noise, part
}

// inventions are those that were made already: several tests look at one.
var inventions = map[string]*facts{}

func invented(t *testing.T, k kindOfRun) *facts {
	t.Helper()
	key := fmt.Sprint(k.scenario, k.repetitions)
	if inventions[key] == nil {
		inventions[key] = invent(t, k)
	}
	return inventions[key]
}

func invent(t *testing.T, k kindOfRun) *facts {
	t.Helper()
	s, err := scenario.Shipped(k.scenario)
	check(t, err)
	plan, err := s.Plan(k.profile)
	check(t, err)
	if k.only != nil {
		check(t, plan.Narrow(k.only))
	}
	plan.Repetitions = k.repetitions
	v := &inventor{Run: &record.Run{}, draws: rand.New(rand.NewPCG(1, 2)), plan: plan, loud: 0.02}
	v.Header = record.Header{
		ID: "lab-x", Started: began, Command: "an invention, and no measurement", Version: "1", Seed: 7, Outcome: record.Complete,
		Scenario: record.NewScenario(k.scenario, s.Title, k.profile, ""), Image: record.Image{Digest: "sha256:1234"},
		Targets: []record.Target{{Name: "here", URI: "test:///", Daemon: "lodged", Library: "9.0.0", Hypervisor: "7.2.22", Accelerator: "kvm"}},
		Host:    record.Host{Host: machine.Host{Processor: "Invented(R) Processor", Processors: 48, Memory: 512 << 30, Kernel: "6.1"}},
		Plan:    experiment.Describe(plan, []string{"here"}, 7),
	}
	for i, turn := range v.Plan.Turns {
		v.turn(t, turn, began.Add(time.Duration(i)*time.Hour))
	}
	f, err := newFacts(v.Run)
	check(t, err)
	return f
}

func (v *inventor) noisy(x float64) float64 { return x * math.Exp(v.loud*v.draws.NormFloat64()) }

func number64(axes map[string]string, axis string) float64 {
	x, err := strconv.ParseFloat(axes[axis], 64)
	if err != nil {
		return 1
	}
	return x
}

func (v *inventor) turn(t *testing.T, turn record.Turn, at time.Time) {
	step := slices.IndexFunc(v.Plan.Steps, func(s record.Step) bool { return s.Name == turn.Step })
	arm := slices.IndexFunc(v.Plan.Arms, func(a record.Arm) bool { return a.Name == turn.Arm })
	setup, axes := v.plan.Setups[arm][step], maps.Clone(v.Plan.Steps[step].Axes)
	maps.Copy(axes, v.Plan.Arms[arm].Set)
	note := func(e record.Event) { e.Turn = turn; v.Events = append(v.Events, e) }
	note(record.Event{Time: at, Kind: record.Window, Window: record.WarmUp})
	if !v.plan.Warmup.Fixed() {
		note(record.Event{Time: at.Add(v.plan.Warmup.Least), Kind: record.Window, Window: 1, What: record.WhatWarmup, Values: map[string]float64{
			record.ValueWarmup: v.plan.Warmup.Least.Seconds(), record.ValueSteady: 1,
		}})
	}
	for _, load := range setup.Loads {
		v.load(t, turn, at, arm, axes, load, setup.Events)
	}
	for _, e := range setup.Events {
		note(record.Event{
			Time: at.Add(v.plan.Warmup.Least + e.At), Kind: record.Change, What: e.Do, Guest: "lab-x-t1-" + e.Guest, Text: strings.TrimSpace(e.Do + " " + e.To),
			Values: map[string]float64{"duration_s": v.noisy(1.2), "orders rate.before": v.noisy(4000), "orders rate.during": v.noisy(3500), "orders rate.after": v.noisy(7000), "orders lost": 600, "orders pause": 0.2},
		})
	}
	length := v.plan.Warmup.Least + time.Duration(v.plan.Windows)*v.plan.Measure
	for since := time.Duration(0); since < length; since += 10 * time.Second {
		busy := v.noisy(min(2*number64(axes, "tiles")*number64(axes, "guests"), 47))
		v.Telemetry = append(v.Telemetry, record.Telemetry{Time: at.Add(since), Turn: turn, Source: "host", Values: map[string]float64{
			"cpu_busy_cores": busy, "cpu_steal_cores": 0, "cpu_iowait_cores": v.noisy(0.2), "pressure_cpu_some_share": busy / 48, "pressure_io_some_share": v.noisy(0.01),
			"memory_available_bytes": 3e11 - 1e9*busy, "ksm_sharing_bytes": 1e9, "disk_read_bytes": v.noisy(1e7), "disk_written_bytes": v.noisy(3e7), "net_out_bytes": v.noisy(5e7), "net_in_bytes": v.noisy(5e7),
		}})
		for _, g := range setup.Guests {
			v.Telemetry = append(v.Telemetry, record.Telemetry{
				Time: at.Add(since), Turn: turn, Source: "guest:lab-x-t1-" + g.Role, Labels: record.Labels{"tile": "1", "guest": g.Role},
				Values: map[string]float64{"cpu_busy_cores": v.noisy(0.7), "cpu_steal_cores": v.noisy(0.01), "memory_available_bytes": v.noisy(5e8), "load": v.noisy(1.1)},
			})
		}
	}
	note(record.Event{Time: at, Kind: record.Done})
}

// rate is what one tile does in a second.
func (v *inventor) rate(arm int, axes map[string]string, kind string) float64 {
	tiles := number64(axes, "tiles") * number64(axes, "guests")
	base := map[string]float64{"web": 50, "oltp": 4000, "shop": 40, "bulk": 3000, "varmail": 900}[kind]
	if base == 0 {
		base = 10
	}
	rate := base * (1 + 0.12*float64(arm)) * math.Pow(number64(axes, "vcpus"), 0.8) / max(1, tiles/24)
	if axes["bus"] == "ide" {
		rate /= 8
	}
	switch axes["cache"] {
	case "writethrough", "directsync":
		rate /= 4
	case "unsafe":
		rate *= 2
	}
	return v.noisy(rate * math.Sqrt(number64(axes, "threads")))
}

func (v *inventor) load(t *testing.T, turn record.Turn, at time.Time, arm int, axes map[string]string, load scenario.Load, events []scenario.Event) {
	ops := map[string][]string{"web": {"page"}, "oltp": {"new-order", "payment", "delivery"}, "shop": {"login", "browse", "purchase", "cycle"}, "bulk": {"read", "write"}, "varmail": {"create", "read", "delete", "append"}}[load.Kind]
	if ops == nil {
		ops = []string{"job"}
	}
	seconds := v.plan.Measure.Seconds()
	tiles := int(number64(axes, "tiles") * number64(axes, "guests"))
	for tile := 1; tile <= tiles; tile++ {
		if load.Config["mode"] == "open" {
			labels := record.Labels{"tile": fmt.Sprint(tile), "guest": load.To, "load": load.Name}
			offered := math.Round(v.noisy(50 * seconds))
			for metric, value := range map[string]float64{record.MetricOffered: offered, record.MetricAnswered: math.Round(offered / max(1, float64(tiles)/24))} {
				v.Samples = append(v.Samples, record.Sample{Time: at, Turn: turn, Window: 1, Metric: metric, Value: value, Unit: "count", Labels: labels})
			}
		}
		for _, op := range ops {
			labels := record.Labels{"tile": fmt.Sprint(tile), "guest": load.To, "load": load.Name, "op": op}
			done := math.Round(v.rate(arm, axes, load.Kind) * seconds / float64(len(ops)))
			add := func(metric string, value float64, unit string) {
				v.Samples = append(v.Samples, record.Sample{Time: at, Turn: turn, Window: 1, Metric: metric, Value: value, Unit: unit, Labels: labels})
			}
			add(record.MetricDone, done, "count")
			add(record.MetricRate, done/seconds, "1/s")
			if load.Kind == "bulk" {
				add("bytes", 8192*done, "bytes")
			}
			v.line(turn, at, labels, done/seconds, events)
		}
	}
	if load.Kind == "bulk" && turn.Repetition > 1 {
		return
	}
	times := histogram.New()
	for range 200 {
		check(t, times.RecordValue(1+int64(v.noisy(20000)*math.Pow(1.15, float64(tiles))*v.draws.ExpFloat64())))
	}
	if mean := times.Mean() * micro; load.Name == "outside" && mean >= 1 {
		v.Events = append(v.Events, record.Event{
			Turn: turn, Kind: record.Bad, What: record.WhatBound, Window: 1,
			Labels: record.Labels{"load": load.Name, "tile": "1", "metric": "latency.mean"}, Values: map[string]float64{record.ValueBound: mean},
		})
	}
	h := record.Histogram{Time: at, Turn: turn, Window: 1, Metric: record.MetricLatency, Unit: "µs", Labels: record.Labels{"tile": "1", "guest": load.To, "load": load.Name, "op": ops[0]}}
	check(t, h.Pack(times))
	v.Histograms = append(v.Histograms, h)
}

// line is the time line: of the first repetition, and of one tile.
func (v *inventor) line(turn record.Turn, at time.Time, labels record.Labels, rate float64, events []scenario.Event) {
	if turn.Repetition > 1 || labels["tile"] != "1" {
		return
	}
	length := v.plan.Warmup.Least + time.Duration(v.plan.Windows)*v.plan.Measure
	for since := time.Duration(0); since < length; since += 5 * time.Second {
		more := 1.0
		for _, e := range events {
			if e.Do == scenario.DoVCPUs && since > v.plan.Warmup.Least+e.At {
				more *= 1.7
			}
		}
		v.Samples = append(v.Samples, record.Sample{Time: at.Add(since), Turn: turn, Window: 1, Metric: record.MetricSecond, Value: v.noisy(rate * more), Unit: "1/s", Labels: labels})
	}
}
