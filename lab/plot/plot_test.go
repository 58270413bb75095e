package plot

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func curves() Lines {
	return Lines{
		ID: "curves", Title: "Time by <guests> & disks", About: "two lines",
		X: Axis{Label: "guests", Scale: Log, Ticks: []float64{1, 4, 16, 64}},
		Y: Axis{Label: "s", Scale: Log},
		Series: []Series{
			{Name: "one", Look: Blue, Points: []Point{{1, 1, 0.9, 1.1}, {4, 1.1, 1, 1.2}, {16, 1.2, 1, 1.3}, {64, 1.2, 1.1, 1.4}}},
			{Name: "two", Look: Orange, Points: []Point{{1, 9, 0, 0}, {4, math.NaN(), 0, 0}, {16, 11, 0, 0}, {64, 1.21, 0, 0}}},
			{Name: "nothing", Look: Gray},
		},
		Marks:  []Mark{{1.15, "the bar"}},
		Events: []Mark{{8, "a <change>"}},
	}
}

func blocks() Bars {
	return Bars{
		ID: "blocks", Title: "Calls", About: "bars", Axis: Axis{Label: "ms", Scale: Log},
		Kinds: []Kind{{"idle", Blue, true}, {"wedged", Blue, false}},
		Groups: []Group{
			{"list", []Bar{{Value: 1, Low: 0.9, High: 1.2}, {Value: 45000, Endless: true, Note: "blocked"}}},
			{"start & stop", []Bar{{None: "not measured"}, {Value: 30, Parts: []float64{10, 20}}}},
		},
		Marks: []Mark{{2, "twice"}},
	}
}

func stacks() Columns {
	return Columns{
		ID: "stacks", Title: "Served", About: "columns", Along: "tiles", Axis: Axis{Label: "1/s"}, Part: "tile",
		Kinds: []Kind{{"before", Blue, false}, {"after", Orange, false}},
		Groups: []Group{
			{"1", []Bar{{Value: 10, Parts: []float64{10}}, {Value: 12, Low: 11, High: 13}}},
			{"2", []Bar{{Value: 30, Parts: []float64{10, 20}, Note: "30"}, {None: "not measured"}}},
		},
		Marks: []Mark{{1, "1 s"}},
	}
}

func field() Matrix {
	return Matrix{
		ID: "field", Title: "Disks", About: "a matrix", Down: "disk", Across: "cache", Columns: []string{"none", "writeback"}, Log: true,
		Rows: []MatrixRow{
			{"raw virtio", []Cell{{Value: 100, Note: "100 MiB/s"}, {Value: 400, Note: "400 MiB/s"}}},
			{"raw ide", []Cell{{Value: 12, Note: "12 MiB/s"}, {None: "has no io_uring"}}},
		},
	}
}

func panels() Multiples {
	return Multiples{
		ID: "panels", Title: "Host", About: "panels", Across: 3, X: Axis{Label: "s"}, Kinds: []Kind{{"before", Blue, false}},
		Panels: []Panel{
			{"busy, cores", Axis{}, [][]Point{{{0, 1, 0, 0}, {10, math.NaN(), 0, 0}, {20, 3, 0, 0}}}},
			{"steal, cores", Axis{}, [][]Point{nil}},
		},
		Events: []Mark{{5, "vcpus 2"}},
	}
}

func contest() Grid {
	return Grid{
		ID: "contest", Title: "Who wins", About: "a grid", Axis: Axis{Label: "of the best", Ticks: []float64{0, 0.5, 1}}, Columns: []string{"read", "write & sync"},
		Rows: []GridRow{
			{"bus", []GridLine{{"virtio", []GridBar{{Bar{Value: 1, Note: "wins"}, true}, {Bar{Value: 1}, false}}}, {"ide", []GridBar{{Bar{Value: 0.4, Low: 0.3, High: 0.5, Note: "40 %"}, false}, {Bar{None: "–"}, false}}}}},
			{"cache", []GridLine{{"none", []GridBar{{Bar{Value: 0.9}, false}, {Bar{Value: 0.7}, false}}}}},
		},
	}
}

// A winner's bar is full, the others are pale, and all go by one axis.
func TestOnlyWinnersAreFull(t *testing.T) {
	svg := string(contest().SVG())
	if full, pale := strings.Count(svg, `class="fill"`), strings.Count(svg, `class="pale"`); full != 1 || pale != 4 {
		t.Errorf("%d full and %d pale bars", full, pale)
	}
}

// Words below a note are broken where there are blanks, and a row is as high as they
// want.
func TestWordsInCellsAreWrapped(t *testing.T) {
	if got := wrapped("bus=virtio cache=none io=native", 22*letter); !slices.Equal(got, []string{"bus=virtio cache=none", "io=native"}) {
		t.Errorf("%q", got)
	}
	if got := wrapped("averylongwordthatfitsnowhere", letter); len(got) != 1 || len(wrapped("", 100)) != 0 {
		t.Errorf("%q", got)
	}
	low, high := field(), field()
	high.Rows[0].Cells[0].Words = strings.Repeat("cache=writeback ", 9)
	_, words := parsed(t, string(high.SVG()))
	if !slices.Contains(words, "cache=writeback cache=writeback") && !slices.Contains(words, "cache=writeback") {
		t.Errorf("%q", words)
	}
	if len(high.SVG()) <= len(low.SVG()) {
		t.Error("words take no room")
	}
}

// The larger of two values has more of the colour, and equal ones as much.
func TestAMatrixIsStrongerWhereItsValuesAreLarger(t *testing.T) {
	strength := field().strength()
	if !(strength(12) < strength(100) && strength(100) < strength(400)) {
		t.Errorf("%v, %v, %v", strength(12), strength(100), strength(400))
	}
	even := Matrix{Rows: []MatrixRow{{"a", []Cell{{Value: 5}, {Value: 5}}}}}
	if s := even.strength()(5); !(s > 0 && s < 1) {
		t.Errorf("all are the same: %v", s)
	}
}

// A column's parts lie on each other, and the topmost ends where the value is.
func TestPartsAreStacked(t *testing.T) {
	svg := string(stacks().SVG())
	_, second, _ := strings.Cut(svg, "2, before: 30, tile 1")
	if n := strings.Count(svg, "<rect x="); n != 4+2 { // with the legend's two
		t.Errorf("%d boxes", n)
	}
	if !strings.Contains(second, "tile 2: 20") {
		t.Error("the second tile is not there")
	}
}

// A picture that stands alone has its style in it and knows no variables: few
// programs but browsers do.
// Promise: L15
func TestAPictureStandsAlone(t *testing.T) {
	for name, svg := range map[string]string{"lines": Alone(curves().SVG()), "bars": Alone(blocks().SVG()), "columns": Alone(stacks().SVG()), "matrix": Alone(field().SVG()), "multiples": Alone(panels().SVG()), "grid": Alone(contest().SVG())} {
		elements, _ := parsed(t, svg)
		if elements["style"] != 1 || elements["svg"] != 1 || strings.Contains(svg, "var(") {
			t.Errorf("%s: %v", name, elements)
		}
		if !strings.HasPrefix(svg, "<svg xmlns=") || !strings.Contains(svg, ` width="720"`) {
			t.Errorf("%s begins %.80s", name, svg)
		}
	}
	if !strings.Contains(Alone(blocks().SVG()), ".plot .look1 .fill{fill:"+palette[Blue].light+"}") {
		t.Error("bars have no colour")
	}
}

// parsed walks through a picture as a reader of XML does, and gives its elements
// and its words.
func parsed(t *testing.T, svg string) (elements map[string]int, words []string) {
	elements = map[string]int{}
	decoder := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return elements, words
		}
		if err != nil {
			t.Fatalf("this is not XML: %v\n%s", err, svg)
		}
		switch token := token.(type) {
		case xml.StartElement:
			elements[token.Name.Local]++
			for _, a := range token.Attr {
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Errorf("%s has %s=%q", token.Name.Local, a.Name.Local, a.Value)
				}
			}
		case xml.CharData:
			if s := strings.TrimSpace(string(token)); s != "" {
				words = append(words, s)
			}
		}
	}
}

func TestPicturesSayWhatTheyShow(t *testing.T) {
	for name, c := range map[string]struct {
		svg  string
		want []string
	}{
		"lines":     {string(curves().SVG()), []string{"Time by <guests> & disks", "two lines", "one", "two", "the bar", "guests", "one, 4: 1.1 (1 to 1.2)", "64"}},
		"columns":   {string(stacks().SVG()), []string{"Served", "columns", "1", "2", "tiles", "2, before: 30, tile 2: 20", "30", "1 s", "not measured"}},
		"matrix":    {string(field().SVG()), []string{"Disks", "a matrix", "none", "raw ide", "raw ide: 12 MiB/s", "has no io_uring"}},
		"multiples": {string(panels().SVG()), []string{"Host", "panels", "busy, cores", "from 1 to 3", "vcpus 2", "0", "20", "before"}},
		"grid":      {string(contest().SVG()), []string{"Who wins", "a grid", "read", "write & sync", "bus", "cache", "virtio", "wins", "bus=ide, read: 40 %", "–"}},
		"bars":      {string(blocks().SVG()), []string{"Calls", "bars", "idle", "wedged", "blocked", "not measured", "start & stop", "list, wedged: blocked", "twice", "ms"}},
	} {
		elements, words := parsed(t, c.svg)
		for _, want := range c.want {
			if !slices.Contains(words, want) {
				t.Errorf("%s: %q is not said in %q", name, want, words)
			}
		}
		if elements["title"] == 0 || elements["desc"] != 1 || elements["script"] != 0 {
			t.Errorf("%s: %v", name, elements)
		}
	}
	if elements, _ := parsed(t, string(curves().SVG())); elements["polygon"] != 1 {
		t.Errorf("one line has intervals, and there are %d bands", elements["polygon"])
	}
}

func TestAPictureOfNothing(t *testing.T) {
	for _, scale := range []Scale{Linear, Log, Nines} {
		parsed(t, string(Lines{ID: "a", X: Axis{Scale: scale}, Y: Axis{Scale: scale}}.SVG()))
		parsed(t, string(Bars{ID: "a", Axis: Axis{Scale: scale}}.SVG()))
		parsed(t, string(Columns{ID: "a", Axis: Axis{Scale: scale}}.SVG()))
		parsed(t, string(Grid{ID: "a", Axis: Axis{Scale: scale}, Columns: []string{"b"}, Rows: []GridRow{{Name: "c", Lines: []GridLine{{"d", []GridBar{{}}}}}}}.SVG()))
		parsed(t, string(Multiples{ID: "a", X: Axis{Scale: scale}, Panels: []Panel{{Y: Axis{Scale: scale}}}}.SVG()))
	}
}

// Whatever the values, a picture is well-formed and an axis is in order: values
// lie within it, as they lie to each other.
func TestAnyValuesCanBeDrawn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOf(rapid.OneOf(rapid.Float64Range(-10, 1e9), rapid.Float64Range(0, 1e-6), rapid.Just(math.NaN()), rapid.Just(math.Inf(1)))).Draw(t, "values")
		scale := Scale(rapid.IntRange(0, 2).Draw(t, "scale"))
		s := Axis{Scale: scale}.fit(values)
		if !(s.from < s.to) {
			t.Fatalf("from %v to %v", s.from, s.to)
		}
		if len(s.ticks) < 2 || len(s.ticks) > 60 || !slices.IsSorted(s.ticks) {
			t.Fatalf("ticks %v from %v to %v", s.ticks, s.from, s.to)
		}
		values = slices.DeleteFunc(slices.Sorted(slices.Values(values)), func(v float64) bool { return !s.shows(v) })
		last := 0.0
		for _, v := range values {
			at := s.at(v)
			if at < last || at > 1 {
				t.Fatalf("%v is at %v, after %v", v, at, last)
			}
			last = at
		}
	})
}

func TestTicksKnown(t *testing.T) {
	for _, c := range []struct {
		scale  Scale
		values []float64
		want   []float64
	}{
		{Linear, []float64{3, 97}, []float64{0, 20, 40, 60, 80, 100}},
		{Linear, []float64{0.4}, []float64{0, 0.1, 0.2, 0.3, 0.4}},
		{Log, []float64{1.1, 9}, []float64{1, 1.5, 2, 3, 5, 7, 10}},
		{Log, []float64{0.9, 110}, []float64{0.5, 1, 2, 5, 10, 20, 50, 100, 200}},
		{Log, []float64{0.0004, 45}, []float64{0.001, 0.01, 0.1, 1, 10}},
		{Nines, []float64{0.2, 0.999}, []float64{0, 0.5, 0.9, 0.99, 0.999}},
	} {
		got := Axis{Scale: c.scale}.fit(c.values).ticks
		if !slices.EqualFunc(got, c.want, func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*b }) {
			t.Errorf("%v: got %v, want %v", c.values, got, c.want)
		}
	}
}

// The names at the ends of lines that end at one value do not lie on each other.
func TestLabelsKeepApart(t *testing.T) {
	l := Lines{ID: "a", X: Axis{}, Y: Axis{}}
	for i := range 6 {
		l.Series = append(l.Series, Series{Name: "line " + strconv.Itoa(i), Look: Look(i), Points: []Point{{0, 1, 0, 0}, {1, 1, 0, 0}}})
	}
	var at []float64
	for part := range strings.SplitSeq(string(l.SVG()), "<text ") {
		if !strings.Contains(part, `class="label"`) {
			continue
		}
		_, y, _ := strings.Cut(part, `y="`)
		y, _, _ = strings.Cut(y, `"`)
		v, err := strconv.ParseFloat(y, 64)
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, v)
	}
	slices.Sort(at)
	if len(at) != 6 {
		t.Fatalf("%d labels", len(at))
	}
	for i := range at[1:] {
		if at[i+1]-at[i] < 13 {
			t.Errorf("labels at %v", at)
		}
	}
}

// The names of what happened stand above the lines, and not on each other, however many
// arms did it at once.
// Promise: L60
func TestEvents_NamesStandAboveTheLines(t *testing.T) {
	l := Lines{ID: "a", Series: []Series{{Name: "an arm with a name that is too long for its room at the end", Look: Blue, Points: []Point{{0, 1, 0, 0}, {50, 9, 0, 0}}}}}
	for _, at := range []float64{10, 25, 25.2, 25.4, 48, 49} {
		l.Events = append(l.Events, Mark{At: at, Name: fmt.Sprintf("vcpus 2, an arm at %v", at)})
	}
	svg := string(l.SVG())
	type box struct{ left, right, y float64 }
	var all []box
	highest := math.Inf(1)
	for part := range strings.SplitSeq(svg, "<text ") {
		words, _, _ := strings.Cut(part, "</text>")
		head, words, _ := strings.Cut(words, ">")
		words, _, _ = strings.Cut(words, "<title>") // told to a pointer
		var x, y float64
		if _, err := fmt.Sscanf(head, `x="%f" y="%f"`, &x, &y); err != nil {
			continue
		}
		b := box{x, x + wideAs(words), y}
		if strings.Contains(head, `"end"`) {
			b = box{x - wideAs(words), x, y}
		}
		switch {
		case strings.HasPrefix(words, "vcpus"):
			all = append(all, b)
		case strings.Contains(head, `class="label"`):
			if !strings.HasSuffix(words, "…") || b.right > width {
				t.Errorf("a line is named %q up to %v", words, b.right)
			}
		}
	}
	for _, found := range regexp.MustCompile(`y1="([0-9.]+)"[^>]*class="grid"`).FindAllStringSubmatch(svg, -1) {
		y, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		highest = min(highest, y)
	}
	if len(all) != len(l.Events) {
		t.Fatalf("%d names of %d events", len(all), len(l.Events))
	}
	for i, one := range all {
		if one.y > highest || one.left < 0 || one.right > width {
			t.Errorf("a name lies at %+v, and the lines begin at %v", one, highest)
		}
		for _, other := range all[:i] {
			if one.y == other.y && one.left < other.right && other.left < one.right {
				t.Errorf("names lie on each other: %+v and %+v", one, other)
			}
		}
	}
}

func TestEventsAndPartsAreDrawn(t *testing.T) {
	if svg := string(curves().SVG()); !strings.Contains(svg, ">a &lt;change&gt;</text>") {
		t.Error("the event has no name")
	}
	if n := strings.Count(string(blocks().SVG()), `class="cut"`); n != 1 {
		t.Errorf("a bar of two parts is cut %d times", n)
	}
}
