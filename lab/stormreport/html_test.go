package stormreport

import (
	"encoding/base64"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/lodge-kvm/lodge/lab/storm"
)

var (
	references = regexp.MustCompile(`(?i)(href|src|srcset|action|poster|data)="([^"]*)"|url\(([^)]*)\)|@import`)
	ids        = regexp.MustCompile(`\sid="([^"]*)"`)
)

// page is that of the invented storm, made once.
var page struct {
	sync.Once
	html string
}

func invented(t *testing.T) string {
	page.Do(func() { _, page.html, _ = shown(t, kept(t, synthetic(3), "synthetic.ndjson")) })
	return page.html
}

func TestThePageNeedsNothingFromOutside(t *testing.T) {
	html := invented(t)
	written, script, _ := strings.Cut(html, "<script>") // which a browser is asked about, in another test
	for _, m := range references.FindAllStringSubmatch(written, -1) {
		if !strings.HasPrefix(m[2], "data:") && !strings.HasPrefix(m[2], "#") {
			t.Errorf("the page refers to %.80q", m[0])
		}
	}
	rest := strings.ReplaceAll(html, `xmlns="http://www.w3.org/2000/svg"`, "")
	if i := strings.Index(rest, "://"); i >= 0 {
		t.Errorf("an address: %.80q", rest[i:])
	}
	for _, no := range []string{"<iframe", "<link rel=\"stylesheet", "javascript:", " onload="} {
		if strings.Contains(html, no) {
			t.Errorf("the page has %s", no)
		}
	}
	if strings.Contains(script, "<script") || script == "" {
		t.Error("the page has other scripts than its own one")
	}
}

func TestEveryPictureSpeaksToThoseWhoDoNotSeeIt(t *testing.T) {
	html := invented(t)
	if i := strings.Index(html, "%!"); i >= 0 {
		t.Errorf("words are badly put together: %.60q", html[i:])
	}
	pictures := strings.Split(html, "<svg ")[1:]
	if len(pictures) < 15 {
		t.Errorf("%d pictures", len(pictures))
	}
	for i, p := range pictures {
		p, _, _ = strings.Cut(p, "</svg>")
		for _, want := range []string{`role="img"`, `aria-labelledby="`, "<title id=", "<desc id="} {
			if !strings.Contains(p, want) {
				t.Errorf("picture %d has no %s", i+1, want)
			}
		}
	}
	if n := strings.Count(html, "<summary>The same in numbers"); n != len(pictures) {
		t.Errorf("%d tables of numbers for %d pictures", n, len(pictures))
	}
	seen := map[string]bool{}
	for _, m := range ids.FindAllStringSubmatch(html, -1) {
		if seen[m[1]] {
			t.Errorf("two things have the id %s", m[1])
		}
		seen[m[1]] = true
	}
	for m := range strings.SplitSeq(html, `aria-labelledby="`) {
		names, _, _ := strings.Cut(m, `"`)
		if strings.HasPrefix(m, "<!DOCTYPE") {
			continue
		}
		for name := range strings.FieldsSeq(names) {
			if !seen[name] {
				t.Errorf("nothing has the id %s", name)
			}
		}
	}
}

func TestHostileNamesStayWords(t *testing.T) {
	const evil = "<script>alert(1)</script>\"'|\n<!-- end of storm figures -->\n"
	r := synthetic(1)
	for i := range r.Targets {
		r.Targets[i].Name = strings.Replace(r.Targets[i].Name, "good", evil, 1)
		r.Targets[i].Of = strings.Replace(r.Targets[i].Of, "good", evil, 1)
		r.Targets[i].Library = evil
	}
	for i := range r.Samples {
		r.Samples[i].Target = strings.Replace(r.Samples[i].Target, "good", evil, 1)
	}
	for i := range r.Calls {
		r.Calls[i].Target = strings.Replace(r.Calls[i].Target, "good", evil, 1)
	}
	r.Skipped = append(r.Skipped, storm.Skipped{Cell: storm.Cell{Target: evil}, Reason: evil})
	r.Command, r.Documents[0].XML, r.Commands[0].Args[0] = evil, evil, evil
	r.Calls = append(r.Calls, storm.Calls{Cell: storm.Cell{Target: evil, Scenario: storm.Start}, Metric: storm.MetricStart, Outcome: storm.Refused, Text: evil, Took: []int64{1}})
	_, html, page := shown(t, kept(t, r, "evil.ndjson"))
	if n := strings.Count(page, "<!-- end of storm figures -->"); n != 1 || strings.Contains(page, "<script") {
		t.Errorf("a daemon's words became a part of the page of Markdown, which has %d ends", n)
	}
	if strings.Contains(html, "<script>alert") || strings.Contains(html, evil) {
		t.Error("a name of a target became a part of the page")
	}
	if !strings.Contains(html, "&lt;script&gt;alert(1)") {
		t.Error("the name is not there")
	}
}

// What is carried is what was kept, and what is too large is only named.
func TestRawValuesAreCarried(t *testing.T) {
	path := kept(t, synthetic(1), "a.ndjson.gz")
	all, err := attach([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	text, ok := strings.CutPrefix(string(all[0].Link), "data:application/gzip;base64,")
	if !ok {
		t.Fatalf("got %.60s", all[0].Link)
	}
	got, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(path)
	if err != nil || string(got) != string(want) {
		t.Errorf("%d bytes of %d are carried: %v", len(got), len(want), err)
	}
	if err := os.WriteFile(path, make([]byte, carried+1), 0o644); err != nil {
		t.Fatal(err)
	}
	if all, err = attach([]string{path}); err != nil || all[0].Link != "" {
		t.Errorf("%v: what is too large is carried", err)
	}
}
