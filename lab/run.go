package lab

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/machine"
)

// Schema names the form of a Run in a file.
const Schema = "lodge.lab.start/1"

// Run is one measurement of one daemon: what was measured, where, and each
// value by itself.
type Run struct {
	Header
	Samples []Sample
	Skipped []Skipped
	End     Ending
}

// Header is what is known before the first value.
type Header struct {
	Schema    string       `json:"schema"`
	Name      string       `json:"name"` // of the daemon, in tables
	Started   time.Time    `json:"started"`
	Command   string       `json:"command"` // that makes such a run
	Host      machine.Host `json:"host"`
	Server    Server       `json:"server"`
	Arguments []string     `json:"arguments"` // of QEMU, as the daemon gave them to the guest that was started
	Guest     string       `json:"guest"`     // that guest's definition
}

// Server is what a daemon says of itself.
type Server struct {
	Process    string `json:"process"`    // its program's name
	Library    string `json:"library"`    // version of libvirt that it is, or is compatible with
	Hypervisor string `json:"hypervisor"` // version of QEMU
	Domains    int    `json:"domains"`    // that it had before
}

// Metric says what a value is of.
type Metric string

// The metrics. What is measured in seconds is the wait of one caller.
const (
	StartGuest    Metric = "start"    // s, one guest, until it is there, paused
	EndGuest      Metric = "end"      // s, the same, at once and without asking it
	DefineDisks   Metric = "define"   // s, a definition with 16 disks
	UndefineDisks Metric = "undefine" // s, the same
	Resident      Metric = "resident" // bytes of memory that the daemon's process has
	Private       Metric = "private"  // bytes of that which no file backs
	Threads       Metric = "threads"  // of the daemon's process

)

// By says whose work a value measures.
type By string

// The two that are compared.
const (
	ByDaemon By = "daemon" // asked for over its API
	ByBare   By = "bare"   // QEMU with the same arguments, run by the lab
)

// Sample is one value.
type Sample struct {
	Metric Metric  `json:"metric"`
	By     By      `json:"by"`
	Guests int     `json:"guests,omitempty"` // running meanwhile, of the lab's
	Value  float64 `json:"value"`
}

// Skipped is what could not be measured, and why.
type Skipped struct {
	What   string `json:"what"`
	Reason string `json:"reason"`
}

// Ending is what is known after the last value.
type Ending struct {
	Took  float64 `json:"took"`  // s
	Load  float64 `json:"load"`  // of the last minute, as at the beginning
	Steal float64 `json:"steal"` // part of the processors' time that the host above this one took
}

// line is one line of a file: exactly one of its fields is there.
type line struct {
	Run     *Header  `json:"run,omitempty"`
	Sample  *Sample  `json:"sample,omitempty"`
	Skipped *Skipped `json:"skipped,omitempty"`
	End     *Ending  `json:"end,omitempty"`
}

func (r *Run) add(metric Metric, by By, guests int, value float64) {
	r.Samples = append(r.Samples, Sample{metric, by, guests, value})
}

// Values gives the values of a metric, in the order they were taken.
func (r *Run) Values(metric Metric, by By, guests int) []float64 {
	var values []float64
	for _, s := range r.Samples {
		if s.Metric == metric && s.By == by && s.Guests == guests {
			values = append(values, s.Value)
		}
	}
	return values
}

// Write puts the run into lines of JSON.
func (r *Run) Write(w io.Writer) error {
	lines := []line{{Run: &r.Header}}
	for i := range r.Samples {
		lines = append(lines, line{Sample: &r.Samples[i]})
	}
	for i := range r.Skipped {
		lines = append(lines, line{Skipped: &r.Skipped[i]})
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	for _, l := range append(lines, line{End: &r.End}) {
		if err := encoder.Encode(l); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot write the values")
		}
	}
	return nil
}

// Save writes the run to a file.
func (r *Run) Save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot keep the values")
	}
	w := bufio.NewWriter(f)
	return errors.Join(r.Write(w), w.Flush(), f.Close())
}

// Read takes a run back from lines of JSON. One without an end was cut short
// and is refused.
func Read(in io.Reader) (*Run, error) {
	var r Run
	ended := false
	decoder := json.NewDecoder(in)
	decoder.DisallowUnknownFields()
	for {
		var l line
		if err := decoder.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, fault.Host, "these are not the values of a run")
		}
		switch {
		case l.Run != nil:
			r.Header = *l.Run
		case l.Sample != nil:
			r.Samples = append(r.Samples, *l.Sample)
		case l.Skipped != nil:
			r.Skipped = append(r.Skipped, *l.Skipped)
		case l.End != nil:
			r.End, ended = *l.End, true
		}
	}
	if r.Schema != Schema {
		return nil, fault.New(fault.Invalid, fault.Host, "these are values of schema %q, and %s is understood", r.Schema, Schema)
	}
	if !ended {
		return nil, fault.New(fault.Invalid, fault.Host, "the run of %s was cut short", r.Name)
	}
	return &r, nil
}

// Load reads a run from a file.
func Load(path string) (*Run, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read values")
	}
	defer f.Close()
	r, err := Read(bufio.NewReader(f))
	return r, fault.Wrap(err, fault.Of(err), fault.Host, "%s", path)
}
