package experiment

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
)

// change is an event that was done to a guest.
type change struct {
	scenario.Event
	guest        *standing
	began, ended time.Time
	figures      map[string]float64 // the site's own
}

// tell writes down what was done to guests, with what each event meant for every
// load of its guest.
func (t *turn) tell(streams []*stream) {
	slices.SortFunc(t.done, func(a, b change) int { return a.began.Compare(b.began) })
	for i, c := range t.done {
		took := c.ended.Sub(c.began).Seconds()
		values := map[string]float64{"duration_s": took}
		maps.Copy(values, c.figures)
		where := labels(c.guest.spec, record.Labels{"event": c.Do})
		t.sample(record.Sample{Time: c.began, Metric: record.MetricDuration, Value: took, Unit: "s", Labels: where})
		from, to := t.around(i)
		for _, s := range streams {
			if s.to == c.guest {
				t.course(s, c, from, to, with(where, "load", s.load.Name), values)
			}
		}
		t.note(record.Event{Time: c.began, Kind: record.Change, What: c.Do, Guest: c.guest.spec.Name, Text: strings.TrimSpace(c.Do + " " + c.To), Values: values})
	}
}

// around is the time in which nothing else was done to the guest of an event.
func (t *turn) around(event int) (from, to time.Time) {
	to = time.Now()
	for i, other := range t.done {
		switch {
		case other.guest != t.done[event].guest:
		case i < event:
			from = other.ended
		case i > event && other.began.Before(to):
			to = other.began
		}
	}
	return from, to
}

// course compares a load's time line before, while and after an event. A load that
// was not measured before tells of no loss.
func (t *turn) course(s *stream, c change, from, to time.Time, where record.Labels, values map[string]float64) {
	add := func(metric string, value float64, unit string) {
		t.sample(record.Sample{Time: c.began, Window: 1, Metric: metric, Value: value, Unit: unit, Labels: where})
		values[s.load.Name+" "+metric] = value
	}
	before, after := s.tally.within(from, c.began), s.tally.within(c.ended, to)
	during := s.tally.touching(c.began, c.ended)
	add(record.MetricPause, s.tally.wait(c.began, c.ended).Seconds(), "s")
	if during.length > 0 {
		add(record.MetricDuring, during.rate(), "1/s")
	}
	if after.length > 0 {
		add(record.MetricAfter, after.rate(), "1/s")
	}
	if before.length == 0 {
		return
	}
	add(record.MetricBefore, before.rate(), "1/s")
	if during.length > 0 {
		add(record.MetricLost, before.rate()*during.length.Seconds()-float64(during.done), "count")
	}
}

// span is a part of a load's time line.
type span struct {
	done   int64
	length time.Duration
}

func (s span) rate() float64 { return float64(s.done) / s.length.Seconds() }

func (s *second) end() time.Time { return s.at.Add(s.length) }

// within adds up the measured intervals that lie in a stretch of time as a whole.
func (t *tally) within(from, to time.Time) (all span) {
	for i := range t.seconds {
		if s := &t.seconds[i]; s.window != record.WarmUp && !s.at.Before(from) && !s.end().After(to) {
			all.done, all.length = all.done+s.done, all.length+s.length
		}
	}
	return all
}

// touching adds up the intervals that have any part in it.
func (t *tally) touching(from, to time.Time) (all span) {
	for i := range t.seconds {
		if s := &t.seconds[i]; s.end().After(from) && s.at.Before(to) {
			all.done, all.length = all.done+s.done, all.length+s.length
		}
	}
	return all
}

// wait is the longest that the load was held up in a stretch of time: by one
// operation, which may have ended in the interval after it, or by many intervals
// without any.
func (t *tally) wait(from, to time.Time) (longest time.Duration) {
	idle := time.Duration(0)
	for i := range t.seconds {
		s := &t.seconds[i]
		before := i > 0 && t.seconds[i-1].at.Before(to) && t.seconds[i-1].end().After(from)
		if !before && (!s.end().After(from) || !s.at.Before(to)) {
			idle = 0
			continue
		}
		if idle += s.length; s.done > 0 {
			idle = 0
		}
		longest = max(longest, idle, s.worst)
	}
	return longest
}
