package pages

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/lab/plot"
	"github.com/lodge-kvm/lodge/lab/record"
)

var references = regexp.MustCompile(`(?i)(href|src|srcset|action|poster|data)="([^"]*)"|url\(([^)]*)\)|@import`)

func paged(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "page.html")
	check(t, Report(dir, &strings.Builder{}, Output{HTML: path}))
	text, err := os.ReadFile(path)
	check(t, err)
	return string(text)
}

// lively is a run in which something was done to a guest.
func lively(t *testing.T) string {
	s := newSynthetic(2)
	s.more = func(w *record.Writer, turn record.Turn) {
		for i, known := range w.Header.Plan.Turns {
			if known == turn {
				at := began.Add(time.Duration(i)*time.Minute + 2*time.Second)
				check(t, w.Event(record.Event{Time: at, Turn: turn, Kind: record.Change, What: "vcpus", Guest: "lab-x-t1-web", Text: "vcpus 2"}))
			}
		}
	}
	return s.keep(t)
}

// Promise: L13
func TestThePageNeedsNothingFromOutside(t *testing.T) {
	html := paged(t, lively(t))
	written, script, _ := strings.Cut(html, "<script>") // which a browser is asked about, in another test
	for _, m := range references.FindAllStringSubmatch(written, -1) {
		if !strings.HasPrefix(m[2], "data:") && !strings.HasPrefix(m[2], "#") {
			t.Errorf("the page refers to %.80q", m[0])
		}
	}
	for _, no := range []string{"<iframe", "javascript:", "%!", "ZgotmplZ", "NaN"} {
		if strings.Contains(html, no) {
			t.Errorf("the page has %s", no)
		}
	}
	if strings.Contains(script, "<script") || script == "" {
		t.Error("the page has other scripts than its own one")
	}
	for _, want := range []string{"prefers-color-scheme:dark", "@media print", ">vcpus 2</text>", ">1 s</text>", ", tile 2: 90<", "Jain&#39;s index"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page has no %s", want)
		}
	}
}

// What all arms did about the same time is named once, and else with those that did it.
func TestMarks_NameArmsOnlyWhereSomeDidIt(t *testing.T) {
	all := gathered([]done{{10, "vcpus 2", "a"}, {31, "memory", "b"}, {11, "vcpus 2", "b"}, {10.5, "vcpus 2", "c"}, {30, "memory", "a"}, {50, "memory", "c"}}, 3)
	want := []plot.Mark{{At: 10, Name: "vcpus 2"}, {At: 30, Name: "memory, a, b"}, {At: 50, Name: "memory, c"}}
	if !slices.Equal(all, want) {
		t.Errorf("%+v", all)
	}
}

func TestPicturesShowWhatIsKnown(t *testing.T) {
	f, err := load(lively(t))
	check(t, err)
	var titles []string
	for _, s := range f.sections() {
		for _, p := range s.Figures {
			titles = append(titles, p.Title)
		}
	}
	want := []string{
		"Throughput of web", "Mean response of web by tiles", "95th percentile of the response of web by tiles", "Throughput of web: times of before",
		"Course of web at tiles=1", "Course of web at tiles=2", "Linear: many tiles beside one",
	}
	if !slices.Equal(titles, want) {
		t.Errorf("%q", titles)
	}
	w := f.find("tiles=2", "after", "web", all)
	bar := f.bar(w, f.measure("web"))
	if bar.Value != 270 || len(bar.Parts) != 2 || bar.Parts[0] != 120 || bar.Parts[1] != 150 {
		t.Errorf("%+v", bar)
	}
	points, at := f.perSecond(record.Turn{Arm: "before", Repetition: 1, Step: "tiles=2"}, "web")
	if len(points) != 25 || points[3].X != 3 || points[3].Y != 150 || !at.Equal(began.Add(2*time.Minute)) {
		t.Errorf("%+v from %v", points, at)
	}
}

// Promise: L13
func TestHostileNamesStayWords(t *testing.T) {
	const evil = `<script>alert(1)</script>"'&</title></style><img src=x onerror=alert(1)>`
	s := newSynthetic(1)
	s.arms[1] = evil
	s.target.Name, s.target.Daemon, s.target.URI, s.profile = evil, evil, "javascript:"+evil, evil
	s.more = func(w *record.Writer, turn record.Turn) {
		for _, kind := range []record.Kind{record.Failed, record.Skipped, record.Bad, record.Change} {
			check(t, w.Event(record.Event{Time: began, Turn: turn, Kind: kind, What: evil, Guest: evil, Text: evil}))
		}
	}
	html := paged(t, s.keep(t))
	for _, no := range []string{"<script>alert", "<img", `"'&<`} {
		if strings.Contains(html, no) {
			t.Errorf("the page obeys %s", no)
		}
	}
	if !strings.Contains(html, "&lt;script&gt;") {
		t.Error("the names are not in the page")
	}
}

// Each scenario that ships has the pictures that it is about.
// Promise: L15
func TestEveryKindOfRunHasItsPictures(t *testing.T) {
	for scenario, want := range map[string][]string{
		"tile":               {"Throughput of outside", "Response of outside by tiles", "The host at tiles=32", "The guests at tiles=32"},
		"tile-pinned":        {"Throughput of outside", "Mean response of outside by tiles", "Throughput of outside: times of loose"},
		"tile-host-tuning":   {"Throughput of outside", "Throughput of orders"},
		"lamp-scale-out":     {"Throughput of shop", "Mean response of shop by guests", "Linear: many tiles beside one", "Efficiency of shop"},
		"lamp-scale-up":      {"Throughput of shop", "Response of shop by vcpus", "Efficiency of shop", "Throughput of shop, in guests and outside"},
		"lamp-consolidation": {"Throughput of shop", "Efficiency of shop", "Throughput of shop, in guests and outside"},
		"block-io":           {"Throughput of fio, work=create", "Throughput of fio, work=random-write"},
		"block-mail":         {"Throughput of mail", "Mean response of mail by users"},
		"oltp-hotadd":        {"Throughput of orders", "Course of orders", "The host", "The guests"},
		"oltp-backing":       {"Throughput of orders"},
	} {
		k := kindsOfRuns[slices.IndexFunc(kindsOfRuns, func(k kindOfRun) bool { return k.scenario == scenario })]
		titles := map[string]bool{}
		for _, s := range invented(t, k).sections() {
			for _, p := range s.Figures {
				titles[p.Title] = true
			}
		}
		if len(titles) < k.pictures {
			t.Errorf("%s has %d pictures, and %d are wanted", scenario, len(titles), k.pictures)
		}
		for _, title := range want {
			if !titles[title] {
				t.Errorf("%s has no picture %q", scenario, title)
			}
		}
	}
}

// Promise: L15
func TestPicturesAreKeptAsFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pictures")
	check(t, Report(lively(t), &strings.Builder{}, Output{SVG: dir}))
	files, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	check(t, err)
	if len(files) != 7 || filepath.Base(files[0]) != "01-throughput-of-web.svg" {
		t.Errorf("%q", files)
	}
	text, err := os.ReadFile(files[0])
	check(t, err)
	if !strings.HasPrefix(string(text), "<svg xmlns=") || !strings.Contains(string(text), "<style>") || strings.Contains(string(text), "var(") {
		t.Errorf("it does not stand alone: %.300s", text)
	}
}
