package stormreport

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/lodge-kvm/lodge/lab/machine"
	"github.com/lodge-kvm/lodge/lab/storm"
)

// invention makes up a storm that nobody measured: a good daemon, a slow one that
// blocks, and the bare command line of each. Its figures are chosen so that
// every kind of thing that a report says occurs.
type invention struct {
	*storm.Run
	draws  *rand.Rand
	cell   storm.Cell
	spread float64
}

func (v *invention) noisy(x float64) float64 { return x * math.Exp(v.spread*v.draws.NormFloat64()) }

func (v *invention) sample(m storm.Metric, u storm.Unit, x float64) {
	v.Samples = append(v.Samples, storm.Sample{Cell: v.cell, Metric: m, Unit: u, Value: x})
}

// calls invents n calls around s seconds, with a tail.
func (v *invention) calls(m storm.Metric, n int, s float64) {
	c := storm.Calls{Cell: v.cell, Metric: m, Outcome: storm.Done}
	for range n {
		x := s * math.Exp(0.3*v.draws.NormFloat64())
		if v.draws.IntN(50) == 0 {
			x *= 3
		}
		c.Took = append(c.Took, int64(1e6*x)+1)
	}
	v.Calls = append(v.Calls, c)
}

func (v *invention) block(m storm.Metric) {
	v.Calls = append(v.Calls, storm.Calls{Cell: v.cell, Metric: m, Outcome: storm.Cut, Took: []int64{45_000_000}})
	v.Blocked = append(v.Blocked, storm.Blocked{Cell: v.cell, Metric: m, After: 45, Text: "one call, about a guest that is well"})
}

// character is how a target is.
type character struct {
	name           string
	start, destroy float64 // s for each guest
	define, each   float64
	stats          float64 // s for 256 guests
	memory, more   float64 // MiB, and KiB for each guest
	threads, grow  float64
	slope, adopt   float64
	blocks         bool
}

func synthetic(repeats int) *storm.Run {
	v := &invention{Run: &storm.Run{}, draws: rand.New(rand.NewPCG(1, 1)), spread: 0.02}
	v.Header = storm.Header{
		Schema: storm.Schema, Started: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), Command: "an invention, and no measurement", Version: "synthetic",
		Seed: 1, Repeats: repeats, Clients: 64, Patience: 45,
		Host: machine.Host{Processor: "Invented(R) Processor", Processors: 2, Memory: 24 << 30, Kernel: "6.0", Virtual: true, Accelerator: "tcg", Load: 0.1},
		Targets: []storm.Target{
			{Name: "good", Kind: storm.Daemon, Address: "/run/good", Process: "good", Library: "11.3.0", Hypervisor: "7.2.22"},
			{Name: "good-direct", Kind: storm.Direct, Of: "good", Hypervisor: "7.2.22"},
			{Name: "slow", Kind: storm.Daemon, Address: "/run/slow", Process: "slow", Library: "9.0.0", Hypervisor: "7.2.22", Domains: 1},
			{Name: "slow-direct", Kind: storm.Direct, Of: "slow", Hypervisor: "7.2.22"},
		},
		Documents: []storm.Document{{Disks: 0, Memory: 100, XML: "<domain type='qemu'>\n  <name>NAME</name>\n</domain>\n"}},
	}
	v.Commands = []storm.Command{{Target: "good", Binary: "/usr/bin/qemu-system-x86_64", Args: []string{"-name", "guest=a b", "-S", "-m", "100"}}}
	all := []character{
		{"good", 0.0215, 0.0016, 0.0006, 0.021, 0.0011, 21, 50, 12, 0, 0.02, 0.11, false},
		{"good-direct", 0.02, 0.0012, 0, 0.0195, 0, 0, 0, 0, 0, 0, 0, false},
		{"slow", 0.19, 0.012, 0.0028, 0.18, 0.6, 32, 380, 18, 0.94, 0.16, 0.82, true},
		{"slow-direct", 0.0202, 0.0012, 0, 0.0196, 0, 0, 0, 0, 0, 0, 0, false},
	}
	for repeat := 1; repeat <= repeats; repeat++ {
		for _, c := range all {
			v.cell = storm.Cell{Target: c.name, Repeat: repeat, Clients: 64}
			v.starts(c)
			if c.stats > 0 {
				v.asks(c)
				v.stuck(c)
				v.adopts(c)
			}
			v.thousands(c)
		}
	}
	v.Skipped = append(v.Skipped, storm.Skipped{Cell: storm.Cell{Scenario: storm.Save, Target: "slow", Repeat: 1, Guests: 64}, Reason: "the host has too little memory: 3 GiB are free"})
	v.End = storm.Ending{Took: 1234, Load: 2.1, Steal: 0.001}
	return v.Run
}

func (v *invention) starts(c character) {
	for _, disks := range []int{0, 16} {
		for _, n := range []int{1, 4, 16, 64, 256} {
			if disks > 0 && n > 64 {
				continue
			}
			v.cell.Scenario, v.cell.Guests, v.cell.Disks, v.cell.Case = storm.Start, n, disks, ""
			more := 1 + float64(disks)/24
			fixed := 0.004
			v.sample(storm.MetricStart, storm.Seconds, v.noisy(fixed+float64(n)*c.start*more))
			v.calls(storm.MetricStart, n, c.start*more*float64(min(n, 64)))
			v.sample(storm.MetricDestroy, storm.Seconds, v.noisy(fixed/4+float64(n)*c.destroy*more))
			v.calls(storm.MetricDestroy, n, c.destroy*more*float64(min(n, 64)))
			if c.define > 0 {
				v.sample(storm.MetricResident, storm.Bytes, (c.memory+c.more*float64(n)/1024)*(1<<20))
				v.sample(storm.MetricThreads, storm.Count, math.Round(c.threads+c.grow*float64(n)))
				v.cell.Scenario = storm.Define
				v.sample(storm.MetricDefine, storm.Seconds, v.noisy(float64(n)*c.define*more))
			}
		}
	}
	v.cell.Disks = 0
}

func (v *invention) asks(c character) {
	v.cell.Scenario, v.cell.Guests = storm.Stats, 256
	for _, kind := range []storm.Case{storm.Idle, storm.NoWait, storm.StoppedNoWait, storm.Stopped} {
		v.cell.Case = kind
		if c.blocks && (kind == storm.Stopped || kind == storm.StoppedNoWait) {
			v.block(storm.MetricStats)
			continue
		}
		v.calls(storm.MetricStats, 20, c.stats)
	}
	v.cell.Case = ""
}

func (v *invention) stuck(c character) {
	v.cell.Scenario, v.cell.Guests = storm.Wedge, 64
	times := map[storm.Metric]float64{
		storm.MetricList: 0.0004, storm.MetricInfo: 0.0002, storm.MetricStats: c.stats / 4, storm.MetricStart: c.start * 1.5,
		storm.MetricDestroy: c.destroy * 1.5, storm.MetricDefine: 0.002, storm.MetricUndefine: 0.001,
		storm.MetricSuspend: 0.001, storm.MetricResume: 0.0011, storm.MetricEvent: 0.0014,
	}
	for _, m := range []storm.Metric{
		storm.MetricList, storm.MetricInfo, storm.MetricStats, storm.MetricResume, storm.MetricSuspend, storm.MetricStart,
		storm.MetricDestroy, storm.MetricDefine, storm.MetricUndefine, storm.MetricEvent,
	} {
		v.cell.Case = storm.Idle
		v.calls(m, 100, times[m])
		v.cell.Case = storm.Wedged
		switch {
		case c.blocks && (m == storm.MetricStats || m == storm.MetricList):
			v.block(m)
		case c.blocks:
			v.calls(m, 10, 4000*times[m])
		default:
			v.calls(m, 100, 1.2*times[m])
		}
	}
	v.Calls = append(v.Calls, storm.Calls{Cell: v.cell, Metric: storm.MetricHang, Outcome: storm.TimedOut, Code: 68, Text: "waiting for the monitor", Took: []int64{5_000_000}})
	v.cell.Case = ""
}

func (v *invention) adopts(c character) {
	v.cell.Scenario, v.cell.Guests = storm.Adopt, 128
	v.sample(storm.MetricReady, storm.Seconds, v.noisy(c.adopt/3))
	v.sample(storm.MetricAdopt, storm.Seconds, v.noisy(c.adopt))
}

func (v *invention) thousands(c character) {
	v.cell.Scenario = storm.Thousand
	for n := 100; n <= 1000; n += 100 {
		if c.blocks && n > 600 {
			v.Skipped = append(v.Skipped, storm.Skipped{Cell: v.cell, Reason: fmt.Sprintf("start of %d guests: too many open files", n)})
			return
		}
		v.cell.Guests = n
		each := v.noisy(c.each * math.Pow(float64(n)/100, c.slope))
		v.sample(storm.MetricStart, storm.Seconds, 100*each)
		v.sample(storm.MetricStart+"."+storm.MetricEach, storm.Seconds, each)
		if c.define > 0 {
			v.sample(storm.MetricResident, storm.Bytes, (c.memory+c.more*float64(n)/1024)*(1<<20))
			v.sample(storm.MetricThreads, storm.Count, math.Round(c.threads+c.grow*float64(n)))
			v.cell.Case = storm.Idle
			v.sample(storm.MetricProcessor, storm.Share, v.noisy(0.003))
			v.cell.Case = ""
		}
	}
}
