package record

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/lodge-kvm/lodge/lab/machine"
)

// Schema names the form of a run's directory. In the older form operations were counted
// in the window in which they ended, what was offered was not kept, and seconds without
// an operation had no value. Such runs are read, and not compared with newer ones.
const (
	Schema      = "lodge.lab/2"
	olderSchema = "lodge.lab/1"
)

// Older tells whether a run has the older form.
func (h *Header) Older() bool { return h.Schema == olderSchema }

// Header is what run.json holds. It is whole before the first value, but for
// the last two fields.
type Header struct {
	Schema   string    `json:"schema"`
	ID       string    `json:"id"` // the run's own name; that of every guest begins with it
	Started  time.Time `json:"started"`
	Command  string    `json:"command"` // that makes such a run
	Version  string    `json:"version"` // of the lab
	Seed     uint64    `json:"seed"`    // of every random choice, the order of arms among them
	Scenario Scenario  `json:"scenario"`
	Image    Image     `json:"image"`
	Targets  []Target  `json:"targets"`
	To       *Target   `json:"to,omitempty"` // that guests are migrated to
	Host     Host      `json:"host"`         // on which the lab runs
	Plan     Plan      `json:"plan"`
	// Deviations are what this run does otherwise than its scenario says, in words.
	Deviations []string `json:"deviations,omitempty"`

	Ended   *time.Time `json:"ended,omitempty"`
	Outcome Outcome    `json:"outcome,omitempty"`
}

// Outcome is how a run ended.
type Outcome string

// The outcomes. A run without one was killed, or still runs.
const (
	Complete    Outcome = "complete"    // every turn has ended; which does not say that all went well
	Interrupted Outcome = "interrupted" // told to stop; can be resumed
)

// Scenario is the exact text that the run was made from.
type Scenario struct {
	Name    string `json:"name"`
	Title   string `json:"title,omitempty"`
	Profile string `json:"profile"`
	Text    string `json:"text"`
	SHA256  string `json:"sha256"` // of the text
}

// NewScenario keeps a text with its sum.
func NewScenario(name, title, profile, text string) Scenario {
	sum := sha256.Sum256([]byte(text))
	return Scenario{name, title, profile, text, hex.EncodeToString(sum[:])}
}

// Image is what the guests ran. Where it lay is nobody's business.
type Image struct {
	Digest   string            `json:"digest"`
	Packages map[string]string `json:"packages,omitempty"` // name to version
}

// Target is a daemon whose guests are measured.
type Target struct {
	Name        string `json:"name"`
	URI         string `json:"uri"`
	Daemon      string `json:"daemon"`      // its process, as the kernel names it, where that is known
	Library     string `json:"library"`     // version of libvirt that it is, or is compatible with
	Hypervisor  string `json:"hypervisor"`  // version of QEMU
	Accelerator string `json:"accelerator"` // kvm or tcg
	Host        string `json:"host"`        // its own name for it
}

// Host is the machine with its settings, as they were found.
type Host struct {
	machine.Host
	Nodes    int               `json:"nodes"` // of NUMA
	Settings map[string]string `json:"settings,omitempty"`
}

// Plan is the order of the whole.
type Plan struct {
	Arms        []Arm         `json:"arms"`
	Steps       []Step        `json:"steps"`
	Repetitions int           `json:"repetitions"`
	Windows     int           `json:"windows"` // measured ones in a turn
	Warmup      float64       `json:"warmup"`  // s; the least, where it goes on until loads are steady
	Steady      *Steady       `json:"steady,omitempty"`
	Measure     float64       `json:"measure"` // s, each window
	Turns       []Turn        `json:"turns"`   // in the order in which they are done
	Loads       []PlannedLoad `json:"loads,omitempty"`
	Bounds      []Bound       `json:"bounds,omitempty"`
}

// PlannedLoad is one that every tile has.
type PlannedLoad struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	About string `json:"about,omitempty"` // what it does, for people
	From  string `json:"from"`            // who asks: a guest's role, or host
	To    string `json:"to"`              // the role that serves
	Open  bool   `json:"open,omitempty"`  // its operations come by a schedule
}

// Steady is when a warm-up ends that has no length beforehand: once three windows in a
// row of every load differ by less than a part. What came of it is an event of each
// turn, with WhatWarmup.
type Steady struct {
	Most   float64 `json:"most"`   // s, after which it ends anyway
	Within float64 `json:"within"` // that part
	Window float64 `json:"window"` // s
}

// Arm is one of the things compared: a setting, or a target.
type Arm struct {
	Name   string            `json:"name"`
	Target string            `json:"target"`        // whose guests it is of; none of an arm that is native
	Set    map[string]string `json:"set,omitempty"` // what this arm alone has
	// Native has its roles run outside of a guest on the host of the lab: there is no
	// daemon, no QEMU and no accelerator.
	Native bool `json:"native,omitempty"`
}

// InGuests are the arms whose roles run in guests of a daemon.
func (p *Plan) InGuests() []Arm { return p.arms(false) }

// Outside are the arms whose roles run outside of a guest.
func (p *Plan) Outside() []Arm { return p.arms(true) }

func (p *Plan) arms(native bool) (all []Arm) {
	for _, a := range p.Arms {
		if a.Native == native {
			all = append(all, a)
		}
	}
	return all
}

// Step is a place on the axes: 4 tiles, or 8 threads with cache none.
type Step struct {
	Name string            `json:"name"`
	Axes map[string]string `json:"axes"` // axis to value
}

// Bound is what a metric must keep for a step to count as good.
type Bound struct {
	Metric string            `json:"metric"`
	Labels map[string]string `json:"labels,omitempty"`
	Below  *float64          `json:"below,omitempty"`
	Above  *float64          `json:"above,omitempty"`
	Unit   string            `json:"unit,omitempty"`
}

// Keeps tells whether a value is within the bound.
func (b Bound) Keeps(value float64) bool {
	return (b.Below == nil || value < *b.Below) && (b.Above == nil || value > *b.Above)
}

// BrokenBy tells whether an event is of a window in which this bound was broken.
func (b Bound) BrokenBy(e Event) bool {
	value, told := e.Values[ValueBound]
	return told && e.Kind == Bad && e.What == WhatBound && e.Labels["metric"] == b.Metric && b.Concerns(e.Labels["load"]) && !b.Keeps(value)
}

// Concerns tells whether the bound is of a load.
func (b Bound) Concerns(load string) bool { return b.Labels["load"] == "" || b.Labels["load"] == load }

// Turn is one arm's one step in one repetition.
type Turn struct {
	Arm        string `json:"arm"`
	Repetition int    `json:"repetition"` // from 1
	Step       string `json:"step"`
}
