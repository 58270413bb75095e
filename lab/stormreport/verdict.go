package stormreport

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
	"github.com/lodge-kvm/lodge/lab/storm"
)

// verdict says in a few sentences what the numbers come to.
func (f *facts) verdict(outcomes []outcome) []string {
	all := append(f.skippedInWords(), f.tally(outcomes))
	for _, one := range []string{f.startsInWords(), f.stuckInWords(), f.noiseInWords(), f.troubleInWords()} {
		if one != "" {
			all = append(all, one)
		}
	}
	return all
}

// mostReasons are said of many; a table has all of them.
const mostReasons = 3

// skippedInWords says what was asked for and is missing, before anything that went well.
func (f *facts) skippedInWords() []string {
	var reasons []string
	cases := 0
	for _, r := range f.runs {
		for _, one := range r.Shortcomings() {
			if cases++; !slices.Contains(reasons, one) {
				reasons = append(reasons, one)
			}
		}
	}
	if cases == 0 {
		return nil
	}
	words := strings.Join(reasons[:min(len(reasons), mostReasons)], "; ")
	if more := len(reasons) - mostReasons; more > 0 {
		words += fmt.Sprintf("; and %d more", more)
	}
	return []string{fmt.Sprintf("Something that was asked for was skipped (exit status %d), in %s: %s.", record.StatusSkipped, plural(cases, "turn", "turns"), words)}
}

func (f *facts) tally(outcomes []outcome) string {
	byStanding := map[standing][]string{}
	elsewise := 0
	for _, o := range outcomes {
		byStanding[o.Standing] = append(byStanding[o.Standing], o.What)
		if o.Elsewise && o.Standing != unmeasured {
			elsewise++
		}
	}
	parts := []string{fmt.Sprintf("%s meets %d of %s", f.subject.Name, len(byStanding[met]), plural(len(outcomes), "promise", "promises"))}
	for _, s := range []standing{unmet, unclear, unmeasured} {
		if names := byStanding[s]; len(names) > 0 {
			parts = append(parts, fmt.Sprintf("%d %s %s (%s)", len(names), isAre(len(names)), s, strings.Join(names, "; ")))
		}
	}
	text := strings.Join(parts, "; ") + "."
	if elsewise > 0 {
		text += fmt.Sprintf(" %d of those measured %s at another size than the promise is of.", elsewise, wasWere(elsewise))
	}
	return text
}

func isAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

func wasWere(n int) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

// startsInWords compares the largest storms of starts with the bare command line.
func (f *facts) startsInWords() string {
	var parts []string
	for _, disks := range []int{0, 16} {
		like := place{scenario: storm.Start, disks: disks, metric: storm.MetricStart}
		sizes := f.sizes(f.subject.Name, like)
		if len(sizes) == 0 {
			continue
		}
		like.guests = sizes[len(sizes)-1]
		var each []string
		for _, t := range f.daemons() {
			if r, ok := f.timesDirect(t.Name, like); ok {
				each = append(each, fmt.Sprintf("%s %s", t.Name, within(r, times)))
			}
		}
		if len(each) > 0 {
			what := plural(like.guests, "guest", "guests")
			if disks > 0 {
				what += fmt.Sprintf(" with %d disks", disks)
			}
			parts = append(parts, fmt.Sprintf("%s: %s", what, strings.Join(each, ", ")))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "Starting all at once, as times of the same command lines run bare: " + strings.Join(parts, "; ") + "."
}

// timesDirect is a daemon's whole time by that of the bare command line.
func (f *facts) timesDirect(daemon string, p place) (stats.Ratio, bool) {
	x, y := pairs(f.samples(daemon, p), f.samples(f.direct(daemon), p))
	return stats.PairedRatio(x, y), len(x) > 0
}

func (f *facts) stuckInWords() string {
	var each []string
	for _, t := range f.daemons() {
		worst, blocked, kinds := f.worst(t.Name)
		switch {
		case kinds == 0:
		case blocked == 1 && kinds == 1:
			each = append(each, fmt.Sprintf("the calls of %s were still blocked after %s", t.Name, waited(worst.blocked)))
		case blocked > 0:
			each = append(each, fmt.Sprintf("%d of %d kinds of calls to %s were still blocked after %s", blocked, kinds, t.Name, waited(worst.blocked)))
		case !math.IsNaN(worst.ratio.Value):
			each = append(each, fmt.Sprintf("the p99 of calls to %s is at most %s that of the same daemon with nothing stopped (%s, %s)",
				t.Name, times(worst.ratio.Value), worst.metric, duration(worst.wedged.Value)))
		}
	}
	if len(each) == 0 {
		return ""
	}
	return "With a tenth of the guests stopped and callers hanging on them, on the other guests: " + strings.Join(each, "; ") + "."
}

// noise is the host's: of the largest storm of bare starts, which are the same
// work each time.
func (f *facts) noise() float64 {
	direct := f.direct(f.subject.Name)
	like := place{scenario: storm.Start, metric: storm.MetricStart}
	sizes := f.sizes(direct, like)
	if len(sizes) == 0 {
		return math.NaN()
	}
	like.guests = sizes[len(sizes)-1]
	return stats.Noise(plain(f.samples(direct, like)))
}

func (f *facts) noiseInWords() string {
	noise := f.noise()
	if math.IsNaN(noise) {
		return "There are too few repetitions of the bare command line to say how noisy the host was."
	}
	text := fmt.Sprintf("Noise: halves of the bare starts, which do the same work, differ by up to %.0f %% by chance alone", 100*noise)
	if noise > stats.Matters {
		return text + "; a difference below that is none."
	}
	return text + "."
}

// loadLasts is for how long what has ended shows in a load average of the last
// minute.
const loadLasts = 5 * time.Minute

// followed reports whether a run began soon after another of these ended, whose
// load it then found.
func (f *facts) followed(r *storm.Run) bool {
	return slices.ContainsFunc(f.runs, func(before *storm.Run) bool {
		return before.Started.Before(r.Started) &&
			r.Started.Before(before.Started.Add(time.Duration(before.End.Took*float64(time.Second))+loadLasts))
	})
}

// troubleInWords names what makes all figures worth less.
func (f *facts) troubleInWords() string {
	var parts []string
	for _, r := range f.runs {
		if r.End.Interrupted != "" {
			parts = append(parts, "the run was interrupted before its plan was done ("+r.End.Interrupted+")")
		}
		if r.Host.Load > float64(r.Host.Processors)/2 && !f.followed(r) {
			parts = append(parts, fmt.Sprintf("other work was going on when it began (load average %.2f on %d processors)", r.Host.Load, r.Host.Processors))
		}
		if r.End.Steal > 0.02 {
			parts = append(parts, fmt.Sprintf("%.0f %% of the processors' time was taken by the host above this one", 100*r.End.Steal))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "Take with care: " + strings.Join(parts, "; ") + "."
}
