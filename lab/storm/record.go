package storm

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/machine"
)

// Schema names the form of a Run in a file.
const Schema = "lodge.lab.storm/1"

// Run is one measurement of one or more targets: all that is known of it, and
// nothing that was made from it.
type Run struct {
	Header
	Samples  []Sample
	Calls    []Calls
	Blocked  []Blocked
	Skipped  []Skipped
	Commands []Command
	End      Ending
}

// Header is what is known before the first value.
type Header struct {
	Schema    string       `json:"schema"`
	Started   time.Time    `json:"started"`
	Command   string       `json:"command"` // that makes such a run
	Version   string       `json:"version"` // of the lab
	Seed      uint64       `json:"seed"`    // of every random choice, the order of targets among them
	Host      machine.Host `json:"host"`
	Targets   []Target     `json:"targets"` // as they were named
	Plan      []Step       `json:"plan"`
	Repeats   int          `json:"repeats"`
	Clients   int          `json:"clients"`
	Patience  float64      `json:"patience"`  // s, after which what has not ended counts as blocked
	Documents []Document   `json:"documents"` // definitions of the guests
}

// Kind says what a target is.
type Kind string

// The kinds of targets.
const (
	Daemon Kind = "daemon" // asked for over libvirt's protocol
	Direct Kind = "direct" // QEMU run by the lab with the arguments that a daemon gave it
)

// Target is whose work is measured.
type Target struct {
	Name       string `json:"name"`
	Kind       Kind   `json:"kind"`
	Of         string `json:"of,omitempty"` // of Direct: the daemon whose arguments it has, and so the one to be compared with it
	Address    string `json:"address,omitempty"`
	Start      string `json:"start,omitempty"` // command that the lab started it with
	Process    string `json:"process,omitempty"`
	Library    string `json:"library,omitempty"`    // version of libvirt that it is, or is compatible with
	Hypervisor string `json:"hypervisor,omitempty"` // version of QEMU
	Domains    int    `json:"domains"`              // that it had before
}

// Step is one line of the plan. In each repetition it is done on each target.
type Step struct {
	Scenario Scenario `json:"scenario"`
	Guests   int      `json:"guests"`
	Disks    int      `json:"disks"`
}

// Document is a definition as it was sent, but for the guest's own name.
type Document struct {
	Disks  int    `json:"disks"`
	Memory int    `json:"memory"` // MiB
	XML    string `json:"xml"`
}

// Command is what a target runs for a guest.
type Command struct {
	Target string   `json:"target"`
	Disks  int      `json:"disks"`
	Memory int      `json:"memory"` // MiB
	Binary string   `json:"binary"`
	Args   []string `json:"args"` // without the binary's name
}

// Scenario names what is done.
type Scenario string

// The scenarios. What each does is told where it is done.
const (
	Start    Scenario = "start"    // define, start, destroy, undefine of all guests; memory of the daemon
	Define   Scenario = "define"   // define and undefine of all guests
	Stats    Scenario = "stats"    // statistics of all guests
	Wedge    Scenario = "wedge"    // calls while some guests are stopped and callers hang on them
	Adopt    Scenario = "adopt"    // the daemon killed and started again
	Save     Scenario = "save"     // managed save and start from it
	Connect  Scenario = "connect"  // connections made and dropped
	Same     Scenario = "same"     // many clients on one guest
	Thousand Scenario = "thousand" // cost of one more guest
)

// Cell is where a value belongs: same cells but for the target and the
// repetition are compared.
type Cell struct {
	Scenario Scenario `json:"scenario"`
	Target   string   `json:"target"`
	Repeat   int      `json:"repeat"` // from 1
	Turn     int      `json:"turn"`   // number among all turns of the run: the order in which things were done
	Guests   int      `json:"guests"`
	Disks    int      `json:"disks"`
	Clients  int      `json:"clients"`
	Case     Case     `json:"case,omitempty"`
}

// Case tells apart what is measured in several circumstances in one turn.
type Case string

// The cases.
const (
	Idle          Case = "idle"           // nothing is stopped
	Wedged        Case = "wedged"         // a tenth of the guests is stopped, and callers hang on them
	NoWait        Case = "nowait"         // statistics with the flag NOWAIT
	Stopped       Case = "stopped"        // a tenth of the guests is stopped
	StoppedNoWait Case = "stopped-nowait" // both
)

// Metric says what a value is of. The same name in Calls is of one call, in a
// Sample of the whole storm of such calls.
type Metric string

// The metrics. A time of a call is the wait of its caller.
const (
	MetricDefine    Metric = "define"
	MetricUndefine  Metric = "undefine"
	MetricStart     Metric = "start"     // until the guest is there, paused
	MetricDestroy   Metric = "destroy"   // at once and without asking it
	MetricStats     Metric = "stats"     // statistics of all guests in one call
	MetricList      Metric = "list"      // all guests in one call
	MetricInfo      Metric = "info"      // one guest
	MetricSuspend   Metric = "suspend"   // one guest
	MetricResume    Metric = "resume"    // one guest
	MetricEvent     Metric = "event"     // from before the call that causes it until the event is there
	MetricHang      Metric = "hang"      // of callers that ask something of a stopped guest
	MetricRelease   Metric = "release"   // destroy of a stopped guest
	MetricReady     Metric = "ready"     // from the end of the old process until the new one answers
	MetricAnswer    Metric = "answer"    // from the same until it has told of all guests that they are there
	MetricAdopt     Metric = "adopt"     // from the same until all guests also obey
	MetricSave      Metric = "save"      // managed save
	MetricRestore   Metric = "restore"   // start from it
	MetricConnect   Metric = "connect"   // until the connection is open
	MetricSane      Metric = "sane"      // a start and a destroy after the storm
	MetricResident  Metric = "resident"  // bytes of memory of the daemon's process
	MetricPrivate   Metric = "private"   // bytes of that which no file backs
	MetricThreads   Metric = "threads"   // of the daemon's process
	MetricFiles     Metric = "files"     // open descriptors of the daemon's process
	MetricProcessor Metric = "processor" // processor time the daemon took over the storm, or while it had nothing to do its share of one core
	MetricEach      Metric = "each"      // with a prefix "start." and so on: the whole storm's time by its guests
)

// Unit of a Sample's value.
type Unit string

// The units.
const (
	Seconds Unit = "s"
	Bytes   Unit = "bytes"
	Count   Unit = "count"
	Share   Unit = "share" // 1 is a whole core
	Rate    Unit = "1/s"
)

// Sample is one value.
type Sample struct {
	Cell
	Metric Metric  `json:"metric"`
	Unit   Unit    `json:"unit"`
	Value  float64 `json:"value"`
}

// Outcome says how calls ended.
type Outcome string

// The outcomes. A refusal is a conflict when it is the right answer to what
// other clients did meanwhile.
const (
	Done     Outcome = "done"
	Conflict Outcome = "conflict" // refused, and rightly so
	TimedOut Outcome = "timeout"  // refused by the daemon's own deadline
	Refused  Outcome = "refused"  // any other error
	Cut      Outcome = "cut"      // not ended when the lab's patience was; the times are at least that long
)

// Calls are the times of single calls that ended alike.
type Calls struct {
	Cell
	Metric    Metric  `json:"metric"`
	Outcome   Outcome `json:"outcome"`
	Code      int32   `json:"code,omitempty"`      // libvirt's, of an error
	Text      string  `json:"text,omitempty"`      // of the first such error
	Took      []int64 `json:"took,omitempty"`      // µs, in the order they ended
	Histogram string  `json:"histogram,omitempty"` // instead of Took where there are very many: an HdrHistogram of µs, version 2, compressed, base64
}

// Blocked is what had not ended when the lab's patience was: still blocked after
// so many seconds.
type Blocked struct {
	Cell
	Metric Metric  `json:"metric"`
	After  float64 `json:"after"` // s
	Text   string  `json:"text"`
}

// Skipped is what could not be measured, and why.
type Skipped struct {
	Cell
	Reason string `json:"reason"`
	// Unasked tells that nobody asked for it by name: it is told, and is no shortcoming
	// of the run.
	Unasked bool `json:"unasked,omitempty"`
}

// Shortcomings are the reasons for which something that was asked for was not measured.
func (r *Run) Shortcomings() (reasons []string) {
	for _, s := range r.Skipped {
		if !s.Unasked {
			reasons = append(reasons, s.Reason)
		}
	}
	return reasons
}

// Ending is what is known after the last value.
type Ending struct {
	Took        float64 `json:"took"`                  // s
	Load        float64 `json:"load"`                  // of the last minute
	Steal       float64 `json:"steal"`                 // part of the processors' time that the host above this one took
	Interrupted string  `json:"interrupted,omitempty"` // why the run ended before its plan did
}

// line is one line of a file: exactly one of its fields is there.
type line struct {
	Storm   *Header  `json:"storm,omitempty"`
	Sample  *Sample  `json:"sample,omitempty"`
	Calls   *Calls   `json:"calls,omitempty"`
	Blocked *Blocked `json:"blocked,omitempty"`
	Skipped *Skipped `json:"skipped,omitempty"`
	Command *Command `json:"command,omitempty"`
	End     *Ending  `json:"end,omitempty"`
}

// Write puts the run into lines of JSON.
func (r *Run) Write(w io.Writer) error {
	lines := []line{{Storm: &r.Header}}
	for i := range r.Commands {
		lines = append(lines, line{Command: &r.Commands[i]})
	}
	for i := range r.Samples {
		lines = append(lines, line{Sample: &r.Samples[i]})
	}
	for i := range r.Calls {
		lines = append(lines, line{Calls: &r.Calls[i]})
	}
	for i := range r.Blocked {
		lines = append(lines, line{Blocked: &r.Blocked[i]})
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

// Save writes the run to a file, packed if its name ends in .gz.
func (r *Run) Save(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot keep the values")
	}
	w := bufio.NewWriter(f)
	if strings.HasSuffix(path, ".gz") {
		packed := gzip.NewWriter(w)
		err = errors.Join(r.Write(packed), packed.Close())
	} else {
		err = r.Write(w)
	}
	return errors.Join(err, w.Flush(), f.Close())
}

// Read takes a run back from lines of JSON. One without an end was cut short
// and is refused; one that was interrupted has an end that says so.
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
			return nil, fault.Wrap(err, fault.Invalid, fault.Host, "these are not the values of a storm")
		}
		switch {
		case l.Storm != nil:
			r.Header = *l.Storm
		case l.Sample != nil:
			r.Samples = append(r.Samples, *l.Sample)
		case l.Calls != nil:
			r.Calls = append(r.Calls, *l.Calls)
		case l.Blocked != nil:
			r.Blocked = append(r.Blocked, *l.Blocked)
		case l.Skipped != nil:
			r.Skipped = append(r.Skipped, *l.Skipped)
		case l.Command != nil:
			r.Commands = append(r.Commands, *l.Command)
		case l.End != nil:
			r.End, ended = *l.End, true
		}
	}
	if r.Schema != Schema {
		return nil, fault.New(fault.Invalid, fault.Host, "these are values of schema %q, and %s is understood", r.Schema, Schema)
	}
	if !ended {
		return nil, fault.New(fault.Invalid, fault.Host, "the values of this storm were cut short")
	}
	return &r, nil
}

// Load reads a run from a file, packed or not.
func Load(path string) (*Run, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read values")
	}
	defer f.Close()
	var in io.Reader
	buffered := bufio.NewReader(f)
	in = buffered
	if magic, _ := buffered.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		if in, err = gzip.NewReader(buffered); err != nil {
			return nil, fault.Wrap(err, fault.Invalid, fault.Host, "%s", path)
		}
	}
	r, err := Read(in)
	return r, fault.Wrap(err, fault.Of(err), fault.Host, "%s", path)
}
