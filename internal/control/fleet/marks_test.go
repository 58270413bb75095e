package fleet

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// metadataOf returns the content of a definition's <metadata>.
func metadataOf(t *testing.T, doc string) string {
	t.Helper()
	root, err := xmltree.Parse(doc)
	ok(t, err)
	return xmltree.FormatInner(root.Child("metadata"))
}

func TestMarks_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z][a-z0-9._/-]{0,20}`)
		text := rapid.StringOfN(rapid.RuneFrom([]rune(`abc <>&'"é雪 {}`)), 1, 30, 200)
		m := &Marks{Labels: Labels{}, Priority: rapid.IntRange(-maxPriority, maxPriority).Draw(t, "priority"), NoRNG: rapid.Bool().Draw(t, "rng")}
		for _, n := range rapid.SliceOfN(name, 0, 5).Draw(t, "labels") {
			if n != tileLabel {
				m.Labels[n] = text.Draw(t, "value")
			}
		}
		for _, n := range rapid.SliceOfN(name, 0, 3).Draw(t, "after") {
			m.After = append(m.After, strings.ReplaceAll(n, "/", "-"))
		}
		for _, n := range rapid.SliceOfN(name, 0, 3).Draw(t, "volumes") {
			m.Volumes = append(m.Volumes, VolumeName{Pool: n, Name: text.Draw(t, "volume")})
		}
		m.Memory = MemoryMarks{
			Shares: rapid.IntRange(0, mostShares).Draw(t, "shares"), Floor: rapid.Uint64Range(0, 1<<40).Draw(t, "floor") << 10,
			Mode: rapid.SampledFrom([]MemoryMode{"", MemoryOff, MemoryAdvise, MemoryAct}).Draw(t, "mode"),
		}
		doc, err := m.document()
		if err != nil {
			t.Fatal(err)
		}
		metadata, err := xmltree.SetMetadataElement(`<other xmlns="urn:other"/>`, Namespace, prefix, doc)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ReadMarks(metadata)
		if err != nil {
			t.Fatalf("%v: %s", err, metadata)
		}
		if got.Priority != m.Priority || got.NoRNG != m.NoRNG || !maps.Equal(got.Labels, m.Labels) || !slices.Equal(got.After, m.After) || !slices.Equal(got.Volumes, m.Volumes) {
			t.Fatalf("got %+v, want %+v from %s", got, m, metadata)
		}
	})
}

func TestReadMarks_ForeignPrefix(t *testing.T) {
	for _, metadata := range []string{
		`<guest xmlns="` + Namespace + `" priority="2"><label name="a" value="b"/></guest>`,
		`<z:other xmlns:z="urn:z"/><x:guest xmlns:x="` + Namespace + `" priority="2"><x:label name="a" value="b"/><!-- c --></x:guest>`,
	} {
		m, err := ReadMarks(metadata)
		if err != nil || m.Priority != 2 || m.Labels["a"] != "b" {
			t.Errorf("%s: %+v, %v", metadata, m, err)
		}
	}
	if m, err := ReadMarks(`<guest priority="2"/>`); err != nil || m != emptyMarks {
		t.Errorf("an element of no namespace: %+v, %v", m, err)
	}
}

func TestReadMarks_Invalid(t *testing.T) {
	in := func(inner string) string { return `<l:guest xmlns:l="` + Namespace + `">` + inner + `</l:guest>` }
	for metadata, says := range map[string]string{
		`<l:guest xmlns:l="` + Namespace + `" priority="1001"/>`:                              "from -1000 to 1000",
		`<l:guest xmlns:l="` + Namespace + `"><l:memory shares="0"/></l:guest>`:               "from 1 to 100000",
		`<l:guest xmlns:l="` + Namespace + `"><l:memory floor="lots"/></l:guest>`:             "no size",
		`<l:guest xmlns:l="` + Namespace + `"><l:memory mode="on"/></l:guest>`:                "off, advise or act",
		`<l:guest xmlns:l="` + Namespace + `" rng="yes"/>`:                                    `known is "no"`,
		`<l:host xmlns:l="` + Namespace + `"/>`:                                               `not "guest"`,
		in(`<l:lable name="a" value="b"/>`):                                                   "known are label, after, volume and memory",
		in(`<l:label name="a b" value="b"/>`):                                                 "letters, digits",
		in(`<l:label value="b"/>`):                                                            "1 to 63",
		in(`<l:label name="tile" value="web"/>`):                                              "SET/NUMBER",
		in(`<l:label name="tile" value="web/01"/>`):                                           "SET/NUMBER",
		in(`<l:label name="tile" value="web/-1"/>`):                                           "SET/NUMBER",
		in(`<l:after guest="a/b"/>`):                                                          "contains '/'",
		in(`<l:label name="a" value="` + strings.Repeat("x", 256) + `"/>`):                    "at most 255",
		in(strings.Repeat(`<l:after guest="a"/>`, 65)):                                        "at most 64",
		in(strings.Repeat(" ", 1<<10) + strings.Repeat(`<l:volume pool="p" name="n"/>`, 257)): "at most 256",
		in(`<l:label name="a" value="` + strings.Repeat("x", maxMarks) + `"/>`):               "at most 65536",
	} {
		m, err := ReadMarks(metadata)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), says) || m != emptyMarks {
			t.Errorf("%.200s: got %v, want one that says %q", metadata, err, says)
		}
	}
}

func FuzzReadMarks(f *testing.F) {
	f.Add(`<l:guest xmlns:l="` + Namespace + `" priority="1"><l:label name="a" value="b"/><l:after guest="c"/><l:volume pool="d" name="e"/></l:guest>`)
	f.Fuzz(func(t *testing.T, metadata string) {
		m, err := ReadMarks(metadata)
		if err != nil {
			return
		}
		doc, err := m.document()
		ok(t, err)
		if doc == "" {
			return
		}
		root, err := xmltree.Parse(doc)
		ok(t, err)
		again, err := parseMarks(root)
		if err != nil || again.Priority != m.Priority || !maps.Equal(again.Labels, m.Labels) {
			t.Errorf("%v: %+v became %+v", err, m, again)
		}
	})
}

// Parts that are each within their bound may together exceed the total.
//
// Promise: H2
func TestMarks_TotalBound(t *testing.T) {
	long := &Marks{Labels: Labels{}}
	for i := range maxVolumes {
		long.Volumes = append(long.Volumes, VolumeName{Pool: "default", Name: strings.Repeat("x", 240) + strconv.Itoa(i)})
	}
	ok(t, long.check())
	if _, err := long.document(); !fault.Is(err, fault.Invalid) {
		t.Errorf("they are written: %v", err)
	}
	metadata, err := addTileMarks("", "set/1", long.Volumes[:100])
	ok(t, err)
	if m, err := ReadMarks(metadata); err != nil || len(m.Volumes) != 100 {
		t.Errorf("of 100 volumes %d are read: %v", len(m.Volumes), err)
	}
}
