package memoryreport

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/lab"
)

// findings are the report's first lines.
func (s *study) findings() []string {
	kvm := s.over(s.traces, kvmAnchors...)
	all := []string{fmt.Sprintf("On %d traces %s carries %s times the load of the KVM policy that is best on each trace (%s). That is the geometric mean; the least is %s, on %s.",
		len(s.traces), subject, number(kvm.mean), strings.Join(kvmAnchors, ", "), number(kvm.least), s.called(kvm.leastAt))}
	ideal := s.over(s.traces, oracle)
	all = append(all, fmt.Sprintf("It carries %s of the load of the oracle, which knows the future. The least is %s, on %s.",
		number(ideal.mean), number(ideal.least), s.called(ideal.leastAt)))
	if o := s.outcome(subject); o.traces > 0 {
		all = append(all, fmt.Sprintf("At %.2g of the oracle's load it has %.0f OOM kills and %.0f guest-seconds below a floor on %d traces; the highest p99 of slowdown is %s, and that of a single guest %s.",
			s.share(), o.guestKills+o.hostKills, o.floor, o.traces, percent(o.p99), percent(o.worst)))
	}
	return all
}

func (s *study) tables() []lab.Table {
	all := []lab.Table{s.quotients(), s.shares()}
	if !math.IsNaN(s.share()) {
		all = append(all, s.outcomes())
	}
	return append(all, s.each())
}

// quotients compares the subject with each other policy.
func (s *study) quotients() lab.Table {
	t := lab.Table{Title: fmt.Sprintf("Carried load of %s, divided by that of another policy", subject)}
	t.Head = []string{"", "geometric mean", "least", "on trace", "most", "traces"}
	seeds := s.seeds()
	if len(seeds) < 2 {
		seeds = nil
	}
	for _, seed := range seeds {
		t.Head = append(t.Head, "mean, traces "+seed)
	}
	add := func(name string, others ...string) {
		q := s.over(s.traces, others...)
		line := []string{name, number(q.mean), number(q.least), s.called(q.leastAt), number(q.most), fmt.Sprint(len(s.traces) - q.left)}
		for _, seed := range seeds {
			line = append(line, number(s.over(s.tracesOf(seed), others...).mean))
		}
		t.Rows = append(t.Rows, line)
	}
	add("best of "+strings.Join(kvmAnchors, ", "), kvmAnchors...)
	for _, policy := range s.policies {
		if policy != subject {
			add(policy, policy)
		}
	}
	return t
}

// shares has what each policy carries on each trace.
func (s *study) shares() lab.Table {
	t := lab.Table{Title: "Carried load, as a share of the trace's bound", Head: append([]string{"trace"}, s.policies...)}
	t.Head = append(t.Head, "best on KVM")
	for _, trace := range s.traces {
		line := []string{s.called(trace)}
		for _, policy := range s.policies {
			line = append(line, share(s.carried(trace, policy)))
		}
		best, _ := s.best(trace, kvmAnchors)
		t.Rows = append(t.Rows, append(line, best))
	}
	mean, least := []string{"mean"}, []string{"least"}
	for _, policy := range s.policies {
		all := s.spread(policy)
		mean, least = append(mean, number(all.mean)), append(least, share(all.least))
	}
	t.Rows = append(t.Rows, append(mean, ""), append(least, ""))
	return t
}

// outcomes has what happened to each policy at the common load.
func (s *study) outcomes() lab.Table {
	t := lab.Table{
		Title: fmt.Sprintf("At %.2g of the load that the oracle carries, over all traces", s.share()),
		Head: []string{
			"", "traces over 5 %", "OOM kills in guests", "by the host", "guest-seconds below the floor",
			"highest p99", "highest p99 of a guest", "longest settling, s", "most steady reversals, 1/h",
		},
	}
	for _, policy := range s.policies {
		o := s.outcome(policy)
		t.Rows = append(t.Rows, []string{
			policy, fmt.Sprintf("%d of %d", o.slow, o.traces), fmt.Sprintf("%.0f", o.guestKills), fmt.Sprintf("%.0f", o.hostKills),
			fmt.Sprintf("%.0f", o.floor), percent(o.p99), percent(o.worst), whole(o.settle), number(o.reversals),
		})
	}
	return t
}

// each has the subject on each trace, at the load that it carries and at the common one.
func (s *study) each() lab.Table {
	t := lab.Table{
		Title: fmt.Sprintf("%s on each trace: at the load that it carries, and at the common load", subject),
		Head: []string{
			"trace", "carried / bound", "p99", "worst guest's p99", "common / bound", "p99", "worst guest's p99",
			"OOM kills", "below the floor, s", "settling, s", "steady reversals, 1/h",
		},
	}
	for _, trace := range s.traces {
		grid, common := s.grids[key{trace, subject}], s.common[key{trace, subject}]
		line := []string{s.called(trace), share(s.carried(trace, subject))}
		if at := grid.atCarried(); at >= 0 {
			line = append(line, percent(grid.P99[at]), percent(grid.Worst[at]))
		} else {
			line = append(line, none, none)
		}
		if common == nil {
			line = append(line, slices.Repeat([]string{none}, 7)...)
		} else {
			line = append(line, number(common.Factors[0]/common.Bound), percent(common.P99[0]), percent(common.Worst[0]),
				fmt.Sprintf("%.0f", common.GuestKills[0]+common.HostKills[0]), fmt.Sprintf("%.0f", common.Floor[0]),
				whole(larger(math.NaN(), common.Settle)), number(larger(math.NaN(), common.Reversals)))
		}
		t.Rows = append(t.Rows, line)
	}
	return t
}

// none stands for a value that does not exist.
const none = "–"

// number writes three digits behind the point.
func number(v float64) string {
	if math.IsNaN(v) {
		return none
	}
	return fmt.Sprintf("%.3f", v)
}

// share writes two digits: the grid of loads is not finer.
func share(v float64) string { return fmt.Sprintf("%.2f", v) }

func whole(v float64) string {
	if math.IsNaN(v) {
		return none
	}
	return fmt.Sprintf("%.0f", v)
}

func percent(v float64) string {
	if v >= .1 {
		return fmt.Sprintf("%.0f %%", 100*v)
	}
	return fmt.Sprintf("%.1f %%", 100*v)
}
