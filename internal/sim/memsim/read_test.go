package memsim

import (
	"bytes"
	"compress/gzip"
	"os"
	"strings"
	"testing"
)

const (
	goodHost   = `{"type":"host","version":1,"name":"x","duration":100,"ram":1000,"swap":100,"swap_mibs":10}`
	goodGuest  = `{"type":"guest","name":"g","max":500,"floor":100,"current":500,"shares":1000,"ends_at":100,"coop":"full","inflate":50,"deflate":50,"stat_period":1,"honest":true,"alpha":10,"beta":1.5,"gamma":0.3,"delta":2}`
	goodDemand = `{"type":"demand","name":"g","points":[[0,100,10],[100,200,20]]}`
)

// replaced gives a line with a part of it replaced.
func replaced(line, old, with string) string {
	if !strings.Contains(line, old) {
		panic(old)
	}
	return strings.Replace(line, old, with, 1)
}

func TestRead_HostileTraces(t *testing.T) {
	tooLong := `{"type":"demand","name":"g","points":[` + strings.Repeat("[0,0,0],", maxLine/8) + `[0,0,0]]}`
	for name, c := range map[string]struct {
		lines []string
		want  string
	}{
		"empty":               {nil, "no host"},
		"no guest":            {[]string{goodHost}, "no guest"},
		"guest first":         {[]string{goodGuest}, "line 1: the first line is of type host"},
		"two hosts":           {[]string{goodHost, goodHost}, "line 2: the first line"},
		"no JSON":             {[]string{goodHost, "", "what"}, "line 3: invalid character"},
		"no object":           {[]string{goodHost, "[]"}, "line 2: "},
		"other version":       {[]string{replaced(goodHost, `"version":1`, `"version":2`)}, "line 1: version 2"},
		"no swap speed":       {[]string{replaced(goodHost, `"swap_mibs":10`, `"swap_mibs":0`)}, "line 1: swap_mibs is 0"},
		"long duration":       {[]string{replaced(goodHost, `100`, `1e9`)}, "line 1: json: "},
		"huge duration":       {[]string{replaced(goodHost, `100`, `1000000000`)}, "line 1: duration is"},
		"steady ends early":   {[]string{replaced(goodHost, `"ram"`, `"steady":[[90,80]],"ram"`)}, "line 1: end of a steady phase"},
		"steady phases cross": {[]string{replaced(goodHost, `"ram"`, `"steady":[[10,70],[60,80]],"ram"`)}, "line 1: start of a steady phase is 60"},
		"many steps":          {[]string{replaced(goodHost, `"ram"`, `"steps":[1`+strings.Repeat(",1", 1000)+`],"ram"`)}, "line 1: number of steps is 1001"},
		"step behind the end": {[]string{replaced(goodHost, `"ram"`, `"steps":[100],"ram"`)}, "line 1: step is 100"},
		"overflow":            {[]string{goodHost, replaced(goodGuest, `"max":500`, `"max":1e999`)}, "line 2: json: "},
		"floor above max":     {[]string{goodHost, replaced(goodGuest, `"floor":100`, `"floor":501`)}, "line 2: floor is 501"},
		"old samples":         {[]string{goodHost, replaced(goodGuest, `"stat_period":1`, `"stat_period":10,"stat_delay":60`)}, "line 2: stat_delay is 60"},
		"no period":           {[]string{goodHost, replaced(goodGuest, `"stat_period":1`, `"stat_period":0`)}, "line 2: stat_period is 0"},
		"odd coop":            {[]string{goodHost, replaced(goodGuest, `"full"`, `"half"`)}, "line 2: coop is"},
		"no demand":           {[]string{goodHost, goodGuest}, `guest "g" has no demand`},
		"same name":           {[]string{goodHost, goodGuest, goodGuest, goodDemand}, "shares its name"},
		"two demands":         {[]string{goodHost, goodGuest, goodDemand, goodDemand}, "line 4: guest \"g\" has a demand already"},
		"no points":           {[]string{goodHost, goodGuest, `{"type":"demand","name":"g"}`}, "line 3: demand of guest \"g\" has no points"},
		"disorder":            {[]string{goodHost, goodGuest, replaced(goodDemand, `[0,`, `[101,`)}, "line 3: points of guest \"g\" are not in order"},
		"negative":            {[]string{goodHost, goodGuest, replaced(goodDemand, `100,10]`, `-1,10]`)}, "line 3: working set is -1"},
		"long line":           {[]string{goodHost, goodGuest, tooLong}, "line 3: bufio.Scanner: token too long"},
		"many guests":         {append([]string{replaced(goodHost, `100`, `1000000`)}, goodGuest, goodGuest, goodGuest), "line 4: guests times seconds exceed"},
	} {
		_, err := Read(strings.NewReader(strings.Join(c.lines, "\n")))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A small file that unpacks to a huge one is refused, and memory is not filled.
func TestRead_CompressedBomb(t *testing.T) {
	var file bytes.Buffer
	packed := gzip.NewWriter(&file)
	line := append([]byte(goodHost), '\n')
	_, err := packed.Write(line)
	blank := bytes.Repeat([]byte("\n"), 1<<20)
	for range maxBytes>>20 + 1 {
		if err == nil {
			_, err = packed.Write(blank)
		}
	}
	if err == nil {
		err = packed.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Read(&file); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("%v", err)
	}
}

func TestRead_DemandBetweenPoints(t *testing.T) {
	guest := replaced(goodGuest, `"ends_at":100`, `"starts_at":10,"ends_at":90`)
	points := `{"type":"demand","name":"g","points":[[20,100,10],[30,200,10],[30,300,10],[40,400,0]]}`
	tr, err := Read(strings.NewReader(goodHost + "\n" + guest + "\n" + points))
	if err != nil {
		t.Fatal(err)
	}
	for second, want := range map[int]float64{0: 0, 9: 0, 10: 100, 20: 100, 25: 150, 30: 300, 35: 350, 40: 400, 89: 400, 90: 0} {
		if got := tr.work[second]; got != want {
			t.Errorf("second %d: working set %v, want %v", second, got, want)
		}
	}
}

// What generate writes can be read, compressed; the same seed gives the same traces, and another one others.
func TestGenerate_ReadBack(t *testing.T) {
	folder := t.TempDir()
	files, err := Generate(folder, "x")
	if err != nil || len(files) != 12 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, name := range files {
		tr, err := ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if bound := tr.Bound(); bound < .5 || bound > 10 {
			t.Errorf("%s: bound %v", name, bound)
		}
	}
	other, err := Generate(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		a, errA := os.ReadFile(files[i])
		b, errB := os.ReadFile(other[i])
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s and %s differ: %v, %v", files[i], other[i], errA, errB)
		}
	}
	third, err := Generate(t.TempDir(), "y")
	if err != nil {
		t.Fatal(err)
	}
	a, errA := os.ReadFile(files[0])
	b, errB := os.ReadFile(third[0])
	if errA != nil || errB != nil || bytes.Equal(a, b) {
		t.Errorf("seeds x and y give the same trace: %v, %v", errA, errB)
	}
	if _, err := Generate(folder, "../x"); err == nil {
		t.Error("a seed names another folder")
	}
}

// Any trace that is read can be run, and gives finite numbers.
func FuzzRead(f *testing.F) {
	f.Add([]byte(goodHost + "\n" + goodGuest + "\n" + goodDemand))
	for _, name := range []string{"burst", "step", "hogs"} {
		text, err := os.ReadFile("testdata/" + name + ".jsonl")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	setup, err := ParseSetup("next")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		tr, err := read(bytes.NewReader(text), 1<<13)
		if err != nil {
			return
		}
		m, err := Run(tr, tr.Bound(), setup)
		if err != nil {
			t.Fatal(err)
		}
		finite(t, m)
	})
}
