package pages

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/lab/record"
)

var references = regexp.MustCompile(`(?i)(href|src|srcset|action|poster|data)="([^"]*)"|url\(([^)]*)\)|@import`)

func paged(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "page.html")
	check(t, Report(dir, &strings.Builder{}, path, ""))
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

func TestThePageNeedsNothingFromOutside(t *testing.T) {
	html := paged(t, lively(t))
	for _, m := range references.FindAllStringSubmatch(html, -1) {
		if !strings.HasPrefix(m[2], "data:") && !strings.HasPrefix(m[2], "#") {
			t.Errorf("the page refers to %.80q", m[0])
		}
	}
	for _, no := range []string{"<script", "<iframe", "javascript:", "%!", "ZgotmplZ", "NaN"} {
		if strings.Contains(html, no) {
			t.Errorf("the page has %s", no)
		}
	}
	for _, want := range []string{"prefers-color-scheme:dark", "@media print", "vcpus 2, before", ">1 s</text>", `class="cut"`, "Jain&#39;s index"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page has no %s", want)
		}
	}
}

func TestPicturesShowWhatIsKnown(t *testing.T) {
	f, err := load(lively(t))
	check(t, err)
	var titles []string
	for _, p := range f.pictures() {
		titles = append(titles, p.Title)
	}
	if got := strings.Join(titles, "; "); got != "Throughput of web; Response of web by tiles; Course of web at tiles=1; Course of web at tiles=2" {
		t.Error(got)
	}
	bar := f.bar(f.find("tiles=2", "after", "web", all))
	if bar.Value != 270 || len(bar.Parts) != 2 || bar.Parts[0] != 120 || bar.Parts[1] != 150 {
		t.Errorf("%+v", bar)
	}
	points, at := f.seconds(record.Turn{Arm: "before", Repetition: 1, Step: "tiles=2"}, "web")
	if len(points) != 4 || points[3].X != 3 || points[3].Y != 150 || !at.Equal(began.Add(2*time.Minute)) {
		t.Errorf("%+v from %v", points, at)
	}
}

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
	for _, no := range []string{"<script", "<img", `"'&<`} {
		if strings.Contains(html, no) {
			t.Errorf("the page obeys %s", no)
		}
	}
	if !strings.Contains(html, "&lt;script&gt;") {
		t.Error("the names are not in the page")
	}
}
