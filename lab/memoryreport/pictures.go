package memoryreport

import (
	"fmt"
	"slices"

	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/plot"
	"github.com/lodge-kvm/lodge/lab/sheet"
)

func (s *study) figures() []sheet.Figure {
	bars, lines := s.bars(), s.lines()
	return []sheet.Figure{
		{ID: bars.ID, Title: bars.Title, About: bars.About, SVG: bars.SVG(), Table: s.shares()},
		{ID: lines.ID, Title: lines.Title, About: lines.About, SVG: lines.SVG(), Table: lab.Table{}},
	}
}

// bars shows what each policy carries over all traces.
func (s *study) bars() plot.Bars {
	b := plot.Bars{
		ID: "carried", Title: "Carried load by policy",
		About: fmt.Sprintf("Mean over %d traces; the whiskers reach from the least trace to the best one.", len(s.traces)),
		Axis:  plot.Axis{Label: "carried load, as a share of the bound: mean, least and most of all traces"},
		Kinds: []plot.Kind{{Look: plot.Blue}},
	}
	for _, policy := range s.policies {
		all := s.spread(policy)
		b.Groups = append(b.Groups, plot.Group{Name: policy, Bars: []plot.Bar{{
			Value: all.mean, Low: all.least, High: all.most, Note: fmt.Sprintf("%.2f (%.2f–%.2f)", all.mean, all.least, all.most),
		}}})
	}
	return b
}

// leastDrawn is the least slowdown that has a place on the logarithmic axis.
const leastDrawn = 0.001

// looks has one look for each policy, in the rows' order.
var looks = []plot.Look{plot.Blue, plot.Gray, plot.Teal, plot.Orange, plot.Brown, plot.Purple, plot.Pink, plot.Green, plot.Red}

// lines shows how slow guests are at each load of one trace.
func (s *study) lines() plot.Lines {
	trace := s.pictured()
	l := plot.Lines{
		ID: "slowdown", Title: "Slowdown by load",
		About: fmt.Sprintf("The 99th percentile of slowdown over all guest-seconds of trace %s. A load counts as carried up to 5 %%. Values below 0.1 %% are drawn at 0.1 %%.", s.called(trace)),
		X: plot.Axis{
			Label: fmt.Sprintf("load, as a share of the bound (trace %s)", s.called(trace)), Scale: plot.Log,
			Ticks: []float64{.3, .4, .5, .6, .7, .8, .9, 1}, Format: share,
		},
		Y:     plot.Axis{Label: "p99 of slowdown", Scale: plot.Log, Ticks: []float64{.001, .01, .1, 1, 10}, Format: percentTick},
		Marks: []plot.Mark{{At: slow, Name: "5 %"}},
	}
	for i, policy := range s.policies {
		r := s.grids[key{trace, policy}]
		series := plot.Series{Name: policy, Look: looks[i%len(looks)]}
		for j, factor := range r.Factors {
			series.Points = append(series.Points, plot.Point{X: factor / r.Bound, Y: max(r.P99[j], leastDrawn)})
		}
		l.Series = append(l.Series, series)
	}
	// The subject is drawn last, above the others.
	slices.SortStableFunc(l.Series, func(a, b plot.Series) int { return drawn(a) - drawn(b) })
	return l
}

func drawn(s plot.Series) int {
	if s.Name == subject {
		return 1
	}
	return 0
}

// pictured is the trace of the lines: the first with a mixture of guests, or else the first one.
func (s *study) pictured() string {
	for _, trace := range s.traces {
		if s.kinds[trace] == "mixed" {
			return trace
		}
	}
	return s.traces[0]
}

func percentTick(v float64) string { return fmt.Sprintf("%.4g %%", 100*v) }
