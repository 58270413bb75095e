package workload

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Duration is a time.Duration that JSON writes as text: "250ms".
type Duration time.Duration

// MarshalText gives it as time.Duration prints it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	read, err := time.ParseDuration(string(text))
	*d = Duration(read)
	return fault.Wrap(err, fault.Invalid, fault.Config, "cannot read a time")
}

// Pace is the part of a configuration that says when the work is done. Kinds that
// have a pace take its fields beside their own.
type Pace struct {
	Duration Duration `json:"duration"`
	// Interval is how often the load tells what it did: 1s.
	Interval Duration `json:"interval,omitzero"`
	// Mode is "open" or "closed", the latter if nothing is said.
	Mode string `json:"mode,omitempty"`
	// Rate is of open loops: arrivals a second.
	Rate float64 `json:"rate,omitzero"`
	// Arrivals is of open loops: "poisson", which is meant if nothing is said, or "even".
	Arrivals string `json:"arrivals,omitempty"`
	// Users work at once: in closed loops always, in open ones at most. An arrival
	// that finds all of them at work waits, and its latency runs: 1, or 64 if open.
	Users int `json:"users,omitzero"`
	// Think is of closed loops: the mean time between an answer and the next
	// piece of work, drawn evenly from none to twice as much.
	Think Duration `json:"think,omitzero"`
	// Timeout is how long after it was meant to start an operation that is not done
	// is an error: 30s.
	Timeout Duration `json:"timeout,omitzero"`
	// Seed draws what is drawn: the same seed the same load.
	Seed uint64 `json:"seed,omitzero"`
}

// The bounds of a pace.
const (
	maxUsers    = 20_000
	maxRate     = 1e6
	maxDuration = 7 * 24 * time.Hour
	maxTimeout  = 10 * time.Minute
	minInterval = 100 * time.Millisecond
	maxInterval = time.Hour
)

const (
	open    = "open"
	closed  = "closed"
	poisson = "poisson"
	even    = "even"
)

// settle fills in what was not said and refuses what cannot be.
func (p *Pace) settle() error {
	orElse(&p.Interval, Duration(time.Second))
	orElse(&p.Timeout, Duration(30*time.Second))
	orElse(&p.Mode, closed)
	switch {
	case p.Duration <= 0 || time.Duration(p.Duration) > maxDuration:
		return invalid("duration is %v: say how long the load runs, %v at most", time.Duration(p.Duration), maxDuration)
	case time.Duration(p.Interval) < minInterval || time.Duration(p.Interval) > maxInterval:
		return invalid("interval is %v: %v to %v are possible", time.Duration(p.Interval), minInterval, maxInterval)
	case p.Timeout <= 0 || time.Duration(p.Timeout) > maxTimeout:
		return invalid("timeout is %v: more than none and at most %v are possible", time.Duration(p.Timeout), maxTimeout)
	case p.Timeout > MaxLate*p.Interval:
		return invalid("timeout is %v and interval %v: a timeout of at most %d intervals is possible", time.Duration(p.Timeout), time.Duration(p.Interval), MaxLate)
	case p.Users < 0 || p.Users > maxUsers:
		return invalid("users are %d: 1 to %d are possible", p.Users, maxUsers)
	}
	switch p.Mode {
	case open:
		return p.settleOpen()
	case closed:
		return p.settleClosed()
	}
	return invalid("mode is %q: it is %q or %q", p.Mode, open, closed)
}

func (p *Pace) settleOpen() error {
	orElse(&p.Users, 64)
	orElse(&p.Arrivals, poisson)
	switch {
	case !(p.Rate > 0) || p.Rate > maxRate || math.IsNaN(p.Rate):
		return invalid("rate is %v: an open loop needs more than 0 and at most %v arrivals a second", p.Rate, maxRate)
	case p.Arrivals != poisson && p.Arrivals != even:
		return invalid("arrivals is %q: it is %q or %q", p.Arrivals, poisson, even)
	case p.Think != 0:
		return invalid("think is of closed loops: an open one has its rate")
	}
	return nil
}

func (p *Pace) settleClosed() error {
	orElse(&p.Users, 1)
	switch {
	case p.Rate != 0 || p.Arrivals != "":
		return invalid("rate and arrivals are of open loops: a closed one has users and think")
	case p.Think < 0 || time.Duration(p.Think) > maxInterval:
		return invalid("think is %v: none to %v is possible", time.Duration(p.Think), maxInterval)
	}
	return nil
}

func orElse[T comparable](value *T, otherwise T) {
	var none T
	if *value == none {
		*value = otherwise
	}
}

func invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, fault.Config, format, args...)
}

// parse reads a configuration in which every field is known.
func parse(config json.RawMessage, into any) error {
	d := json.NewDecoder(bytes.NewReader(config))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fault.Wrap(err, fault.Invalid, fault.Config, "cannot read the configuration")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return invalid("something follows the configuration")
	}
	return nil
}
