package memoryreport

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const first = `{"memory":{"command":"make bench-memory","commit":"abc","date":"2026-11-27","took":9,"processors":2}}` + "\n"

// carries has what the policies carry on three traces, as shares of their bounds.
var carries = []struct {
	trace  string
	bound  float64
	shares map[string]float64
}{
	{"d1", 2, map[string]float64{"lodge": .8, "oracle": .8, "static": .4, "static+fpr": .5, "mom": .2, "pvestatd": .4}},
	{"d2", 1, map[string]float64{"lodge": .6, "oracle": .8, "static": .4, "static+fpr": .4, "mom": .5, "pvestatd": 0}},
	{"x1", 4, map[string]float64{"lodge": .6, "oracle": .8, "static": .3, "static+fpr": .4, "mom": .6, "pvestatd": .4}},
}

// rows writes the fixture as lodge-sim does: for each policy an evaluation at two loads and a run at 0.8 of the oracle's.
func rows() string {
	var out strings.Builder
	out.WriteString(first)
	for _, c := range carries {
		for _, policy := range []string{"lodge", "oracle", "static", "static+fpr", "mom", "pvestatd"} {
			carried := c.bound * c.shares[policy]
			fmt.Fprintf(&out, `{"trace":%q,"kind":"web","policy":%q,"bound":%v,"f":[%v,%v],"carried":%v,"p99":[0.04,2],"worst":[0.3,3],`+
				`"oom_guest":[0,1],"oom_host":[0,0],"floor":[0,0],"settle":null,"rev_steady":null}`+"\n", c.trace, policy, c.bound, carried, 2*c.bound, carried)
			settle, p99 := "null", .01
			if c.trace == "d2" {
				settle, p99 = "[12]", .06
			}
			fmt.Fprintf(&out, `{"trace":%q,"kind":"web","policy":%q,"bound":%v,"f":[%v],"carried":0,"p99":[%v],"worst":[0.2],`+
				`"oom_guest":[1],"oom_host":[0],"floor":[0],"settle":%s,"rev_steady":null}`+"\n", c.trace, policy, c.bound, .8*.8*c.bound, p99, settle)
		}
	}
	return out.String()
}

func fixture(t *testing.T) *study {
	t.Helper()
	s, err := read(strings.NewReader(rows()))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func near(got, want float64) bool { return math.Abs(got-want) < 1e-9 }

func TestBest_KVMPolicyOfEachTrace(t *testing.T) {
	s := fixture(t)
	for trace, want := range map[string]string{"d1": "static+fpr", "d2": "mom", "x1": "mom"} {
		if got, carried := s.best(trace, kvmAnchors); got != want || !near(carried, s.carried(trace, want)) {
			t.Errorf("trace %s: %s carries %v, want %s", trace, got, carried, want)
		}
	}
}

func TestOver_GeometricMean(t *testing.T) {
	s := fixture(t)
	for _, c := range []struct {
		name   string
		traces []string
		others []string
		want   quotient
	}{
		// .8/.5, .6/.5 and .6/.6
		{"best", s.traces, kvmAnchors, quotient{math.Cbrt(1.6 * 1.2), 1, 1.6, "x1", 0}},
		{"best of one seed", s.tracesOf("d"), kvmAnchors, quotient{math.Sqrt(1.6 * 1.2), 1.2, 1.6, "d2", 0}},
		{"mom", s.traces, []string{"mom"}, quotient{math.Cbrt(4 * 1.2), 1, 4, "x1", 0}},
		{"oracle", s.traces, []string{"oracle"}, quotient{math.Cbrt(.75 * .75), .75, 1, "d2", 0}},
		{"one that carries nothing on a trace", s.traces, []string{"pvestatd"}, quotient{math.Sqrt(2 * 1.5), 1.5, 2, "x1", 1}},
	} {
		got := s.over(c.traces, c.others...)
		if !near(got.mean, c.want.mean) || !near(got.least, c.want.least) || !near(got.most, c.want.most) || got.leastAt != c.want.leastAt || got.left != c.want.left {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestOver_SubjectCarriesNothing(t *testing.T) {
	s := fixture(t)
	s.grids[key{"d1", subject}].Carried = 0
	if q := s.over(s.traces, oracle); q.mean != 0 || q.least != 0 || q.leastAt != "d1" {
		t.Errorf("%+v", q)
	}
	if at := s.grids[key{"d1", subject}].atCarried(); at != -1 {
		t.Errorf("place %d", at)
	}
	if out := s.text(); !strings.Contains(out, none) {
		t.Error(out)
	}
}

func TestOutcome_CommonLoad(t *testing.T) {
	s := fixture(t)
	if got := s.share(); !near(got, .8) {
		t.Errorf("common load %v of the oracle's", got)
	}
	o := s.outcome(subject)
	if o.traces != 3 || o.slow != 1 || o.guestKills != 3 || o.p99 != .06 || o.worst != .2 || o.settle != 12 || !math.IsNaN(o.reversals) {
		t.Errorf("%+v", o)
	}
}

func TestSpread_ShareOfBound(t *testing.T) {
	if got := fixture(t).spread("lodge"); !near(got.mean, 2.0/3) || !near(got.least, .6) || !near(got.most, .8) {
		t.Errorf("%+v", got)
	}
}

func TestShow_PageAndPictures(t *testing.T) {
	dir := t.TempDir()
	file, page := filepath.Join(dir, "rows.jsonl"), filepath.Join(dir, "page.md")
	if err := os.WriteFile(file, []byte(rows()), 0o600); err != nil {
		t.Fatal(err)
	}
	if !Holds(file) {
		t.Error("the file is not known")
	}
	var text strings.Builder
	if err := Show(file, &text, Output{Markdown: page, SVG: filepath.Join(dir, "pictures")}); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"On 3 traces lodge carries 1.243 times the load of the KVM policy", "the least is 1.000, on x1 web",
		"| pvestatd | 1.732 | 1.500 | x1 web | 2.000 | 2 | 2.000 | 1.500 |",
		"| d2 web | 0.60 | 0.80 | 0.40 | 0.40 | 0.50 | 0.00 | mom |",
		"### At 0.8 of the load that the oracle carries", "by `make bench-memory` on 2 processors, at commit abc.",
	} {
		if !strings.Contains(string(written), want) {
			t.Errorf("no %q in:\n%s", want, written)
		}
	}
	pictures, err := filepath.Glob(filepath.Join(dir, "pictures", "*.svg"))
	if err != nil || len(pictures) != 2 {
		t.Errorf("%v %v", pictures, err)
	}
	if !strings.HasPrefix(text.String(), "On 3 traces") {
		t.Error(text.String())
	}
}

func TestRead_Refused(t *testing.T) {
	all := strings.SplitAfter(rows(), "\n")
	for name, file := range map[string]string{
		"nothing":         "",
		"no head":         strings.Join(all[1:], ""),
		"no rows":         first,
		"a row twice":     rows() + all[1],
		"a row is gone":   first + strings.Join(all[2:], ""),
		"lists too short": strings.Replace(rows(), `"worst":[0.3,3]`, `"worst":[0.3]`, 1),
		"no bound":        strings.Replace(rows(), `"bound":2`, `"bound":0`, 1),
		"no JSON":         rows() + "more",
	} {
		if s, err := read(strings.NewReader(file)); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestHolds_OtherFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "storm")
	if err := os.WriteFile(file, []byte(`{"storm":{}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if Holds(file) || Holds(file+"-nowhere") {
		t.Error("a file of something else is taken")
	}
}

// The page in docs says what its rows say.
func TestFigures_PageShowsItsRows(t *testing.T) {
	s, err := load("../../docs/figures-memory.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/figures-memory.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), s.markdown()) {
		t.Error("docs/figures-memory.md has other figures: lodge lab report docs/figures-memory.jsonl --markdown docs/figures-memory.md --svg docs/figures/memory")
	}
}
