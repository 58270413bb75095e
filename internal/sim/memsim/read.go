package memsim

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Bounds of a trace: a small compressed file must not fill the memory of the machine that reads it.
const (
	maxLine  = 4 << 20  // bytes
	maxBytes = 64 << 20 // bytes, after decompression
	maxCells = 2 << 20  // guests times seconds; each takes 33 bytes
	maxMiB   = 1 << 40  // of any size or rate
	maxSteps = 1000     // each is followed to the end of its hold
	// minDuration is the last minute of a run that the time to settle looks at.
	minDuration = 60
)

// ReadFile reads a trace from a file, compressed by gzip or not.
func ReadFile(name string) (*Trace, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fault.Wrap(err, fault.NotFound, fault.Call, "cannot open the trace")
	}
	defer file.Close()
	tr, err := Read(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read trace %q: %w", name, err)
	}
	return tr, nil
}

// Read reads a trace, compressed by gzip or not. An error names the line.
func Read(from io.Reader) (*Trace, error) { return read(from, maxCells) }

func read(from io.Reader, cells int) (*Trace, error) {
	buffered := bufio.NewReader(from)
	var in io.Reader = buffered
	if magic, _ := buffered.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, fault.Call, "not a gzip file")
		}
		in = unzipped
	}
	limited := &io.LimitedReader{R: in, N: maxBytes}
	r := reader{demands: map[string][][3]float64{}, cells: cells}
	lines := bufio.NewScanner(limited)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		r.line++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if err := r.take(lines.Bytes()); err != nil {
			return nil, fault.Wrap(err, fault.Invalid, fault.Call, "line %d", r.line)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, fault.Call, "line %d", r.line+1)
	}
	if limited.N <= 0 {
		return nil, invalid("the trace has more than %d bytes", maxBytes)
	}
	return r.finish()
}

func invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, fault.Call, format, args...)
}

// reader gathers the lines of one trace.
type reader struct {
	line    int
	host    *Host
	guests  []Guest
	demands map[string][][3]float64
	cells   int // at most so many guests times seconds
}

// take reads one line.
func (r *reader) take(line []byte) error {
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(line, &kind); err != nil {
		return err
	}
	switch {
	case (kind.Type == "host") == (r.host != nil):
		return invalid("the first line is of type host, and no other; this one is of type %q", kind.Type)
	case kind.Type == "host":
		r.host = &Host{}
		if err := json.Unmarshal(line, r.host); err != nil {
			return err
		}
		return r.host.check()
	case kind.Type == "guest":
		var g Guest
		if err := json.Unmarshal(line, &g); err != nil {
			return err
		}
		r.guests = append(r.guests, g)
		if len(r.guests)*r.host.Duration > r.cells {
			return invalid("guests times seconds exceed %d", r.cells)
		}
		return g.check()
	case kind.Type == "demand":
		var d demand
		if err := json.Unmarshal(line, &d); err != nil {
			return err
		}
		if r.demands[d.Name] != nil {
			return invalid("guest %q has a demand already", d.Name)
		}
		r.demands[d.Name] = d.Points
		return d.check()
	}
	return nil // a later version's line
}

// finish joins guests and demands.
func (r *reader) finish() (*Trace, error) {
	if r.host == nil || len(r.guests) == 0 {
		return nil, invalid("the trace has no host or no guest")
	}
	cells := r.host.Duration * len(r.guests)
	numbers := make([]float64, 4*cells)
	tr := &Trace{
		Host: *r.host, Guests: r.guests, running: make([]bool, cells),
		work: numbers[:cells], useful: numbers[cells : 2*cells], need: numbers[2*cells : 3*cells], full: numbers[3*cells:],
	}
	for i := range tr.Guests {
		name := tr.Guests[i].Name
		points := r.demands[name]
		if points == nil {
			return nil, invalid("guest %q has no demand, or shares its name with another guest", name)
		}
		delete(r.demands, name)
		tr.expand(i, points)
	}
	tr.findNeeds()
	return tr, nil
}

// limit is a number of a trace with its bounds.
type limit struct {
	name               string
	value, least, most float64
}

func checkLimits(limits []limit) error {
	for _, l := range limits {
		if !(l.value >= l.least && l.value <= l.most) { // also refuses NaN
			return invalid("%s is %v, and must be between %v and %v", l.name, l.value, l.least, l.most)
		}
	}
	return nil
}

func (h *Host) check() error {
	if h.Version != 1 {
		return invalid("version %d of the format is not known; version 1 is", h.Version)
	}
	limits := []limit{
		{"duration", float64(h.Duration), minDuration, maxCells},
		{"ram", h.RAM, 1, maxMiB},
		{"reserved", h.Reserved, 0, h.RAM},
		{"swap", h.Swap, 0, maxMiB},
		{"swap_mibs", h.SwapRate, 1e-3, maxMiB},
	}
	if h.KSM != nil {
		limits = append(limits, limit{"ksm.share", h.KSM.Share, 0, 1}, limit{"ksm.tau", h.KSM.Tau, 1, maxMiB})
	}
	limits = append(limits, limit{"number of steps", float64(len(h.Steps)), 0, maxSteps})
	earliest := 0
	for _, phase := range h.Steady {
		limits = append(limits, limit{"start of a steady phase", float64(phase[0]), float64(earliest), float64(h.Duration)},
			limit{"end of a steady phase", float64(phase[1]), float64(max(phase[0], minDuration)), float64(h.Duration)})
		earliest = phase[1]
	}
	for _, step := range h.Steps {
		limits = append(limits, limit{"step", float64(step), 0, float64(h.Duration - 1)})
	}
	return checkLimits(limits)
}

func (g *Guest) check() error {
	if g.Coop != cooperates && g.Coop != stuck && g.Coop != driverless {
		return invalid("coop is %q, and must be full, deaf or none", g.Coop)
	}
	oldest := float64(ringSize - 2) // of a sample that a policy still sees, in seconds
	return checkLimits([]limit{
		{"max", g.Max, 1, maxMiB},
		{"floor", g.Floor, 0, g.Max},
		{"current", g.Current, 0, g.Max},
		{"shares", g.Shares, 0, maxMiB},
		{"starts_at", float64(g.StartsAt), 0, math.MaxInt32},
		{"ends_at", float64(g.EndsAt), 0, math.MaxInt32},
		{"inflate", g.Inflate, 0, maxMiB},
		{"deflate", g.Deflate, 0, maxMiB},
		{"stat_period", float64(g.StatPeriod), 1, oldest},
		{"stat_delay", float64(g.StatDelay), 0, oldest - float64(g.StatPeriod)},
		{"alpha", g.Alpha, 1e-3, 1e3},
		{"beta", g.Beta, .5, 1e2},
		{"gamma", g.Gamma, 1e-3, 1e3},
		{"delta", g.Delta, .5, 1e2},
		{"gswap", g.Swap, 0, maxMiB},
		{"gswap_mibs", g.SwapRate, 0, maxMiB},
		{"fill", g.Fill, 0, maxMiB},
		{"touch", g.Touch, 0, 1},
		{"jitter", g.Jitter, 0, 1},
	})
}

func (d *demand) check() error {
	if len(d.Points) == 0 {
		return invalid("demand of guest %q has no points", d.Name)
	}
	for k, p := range d.Points {
		if k > 0 && p[0] < d.Points[k-1][0] {
			return invalid("points of guest %q are not in order: second %v comes after %v", d.Name, p[0], d.Points[k-1][0])
		}
		err := checkLimits([]limit{{"second", p[0], -maxMiB, maxMiB}, {"working set", p[1], 0, maxMiB}, {"cache", p[2], 0, maxMiB}})
		if err != nil {
			return err
		}
	}
	return nil
}
