package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// learn puts inputs into a folder as Go's fuzzer does, each a second after the one
// before.
func learn(t *testing.T, folder string, contents ...string) {
	t.Helper()
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for n, content := range contents {
		path := filepath.Join(folder, input{content: []byte(content)}.name())
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(time.Duration(n) * time.Second)
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
}

func contents(t *testing.T, folder string) []string {
	t.Helper()
	inputs, err := readFolder(folder)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, i := range inputs {
		all = append(all, string(i.content))
	}
	return all
}

// An archive that was packed on one machine is unpacked on another, newest input first. Its inputs sort behind
// those that the other machine learns. Without new inputs the archive packs to the same bytes.
func TestCorpus_MovesBetweenMachines(t *testing.T) {
	here, there, archive := t.TempDir(), filepath.Join(t.TempDir(), "new"), filepath.Join(t.TempDir(), "a.tar.gz")
	learn(t, here, "oldest", "middle", "newest", strings.Repeat("large", inputBound))
	if count, err := pack(archive, here, eachBound); err != nil || count != 3 {
		t.Fatalf("%d inputs are packed (%v), want the three small ones", count, err)
	}
	first, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	if err := unpack(archive, there); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(contents(t, there)); got != "[newest middle oldest]" {
		t.Errorf("unpacked: %s", got)
	}
	if _, err := pack(archive, there, eachBound); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(archive); err != nil || !bytes.Equal(first, again) {
		t.Errorf("packed again, the same inputs give other bytes (%v)", err)
	}
	learn(t, there, "learnt there")
	if _, err := pack(archive, there, eachBound); err != nil {
		t.Fatal(err)
	}
	if err := unpack(archive, here); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(contents(t, there)); got != "[learnt there newest middle oldest]" {
		t.Errorf("packed last: %s", got)
	}
}

// TestPack_KeepsBound: when not all fits, the newest stay.
func TestPack_KeepsBound(t *testing.T) {
	folder, archive := t.TempDir(), filepath.Join(t.TempDir(), "a.tar.gz")
	var all []string
	for n := range 300 {
		all = append(all, fmt.Sprintf("%x", input{content: fmt.Append(nil, n)}.name()))
	}
	learn(t, folder, all...)
	count, err := pack(archive, folder, 4<<10)
	if err != nil || count == 0 || count == 300 {
		t.Fatalf("%d of 300 inputs are packed: %v", count, err)
	}
	about, err := os.Stat(archive)
	if err != nil || about.Size() > 4<<10 {
		t.Errorf("the archive has %d bytes (%v)", about.Size(), err)
	}
	there := t.TempDir()
	if err := unpack(archive, there); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, there); len(got) != count || got[0] != all[299] {
		t.Errorf("%d inputs come back, first %q; want %d with %q first", len(got), got[0], count, all[299])
	}
	if bound := archiveBound(1000); bound*1000 > wholeBound {
		t.Errorf("a thousand archives may have %d bytes each", bound)
	}
}

// After a change of a target's parameter types, pack leaves out inputs of the old types.
func TestPack_DropsInputsOfOtherTypes(t *testing.T) {
	folder, archive := t.TempDir(), filepath.Join(t.TempDir(), "a.tar.gz")
	const head = "go test fuzz v1\n"
	learn(t, folder, head+"[]byte(\"a\")\n", head+"byte('a')\nstring(\"(\")\n", head+"byte('b')\nstring(\"x\")\n")
	if count, err := pack(archive, folder, eachBound); err != nil || count != 2 {
		t.Errorf("%d inputs are packed (%v), want the two of the newest's kind", count, err)
	}
}

// The content of an archive chooses neither the names nor the size of the unpacked files.
func TestUnpack_HostileArchive(t *testing.T) {
	folder := t.TempDir()
	for name, packed := range map[string][]byte{
		"no archive":       []byte("hello"),
		"cut off":          writeArchive([]input{{content: []byte("a")}})[:40],
		"a large input":    writeArchive([]input{{content: make([]byte, inputBound+1)}}),
		"no tar inside it": zipped(t, "hello"),
	} {
		archive := filepath.Join(t.TempDir(), "a.tar.gz")
		if err := os.WriteFile(archive, packed, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := unpack(archive, folder); err == nil {
			t.Errorf("%s is unpacked", name)
		}
	}
	if left := contents(t, folder); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func zipped(t *testing.T, text string) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// The page adds up runs and keeps its text. Each target has its line, and each source of inputs has the sum of its
// targets.
func TestLedger_Sums(t *testing.T) {
	t.Chdir(t.TempDir())
	page, a, b := "docs/fuzzing.md", target{"markup", "FuzzParse"}, target{"lab/wire", "FuzzReader"}
	broke := filepath.Join("lab/wire/testdata/fuzz/FuzzReader", "0011223344556677")
	for _, folder := range []string{"docs", filepath.Dir(broke)} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{
		page: "Words.\n\n| from | what | minutes | targets |\n|---|---|--:|---|\n| clients | any XML | 0 | `markup.FuzzParse` `markup.FuzzOther` |\n\n" + heading + "\n" + rule + "\n| markup.FuzzParse | 110 | 1000 | 7 | 5 | 2026-01-02 | 0 | a bomb: `TestBomb` |\n| all | 1 | 1 | 1 | 1 |  | 0 |  |\n\nMore.\n", broke: "x",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	day := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for range 2 {
		if err := record(page, []target{b, a}, a, measured{began: day, seconds: 7, tried: 30, fresh: 3, kept: 4}); err != nil {
			t.Fatal(err)
		}
	}
	want := "Words.\n\n| from | what | minutes | targets |\n|---|---|--:|---|\n| clients | any XML | 2 | `markup.FuzzParse` `markup.FuzzOther` |\n\n" + heading + "\n" + rule + `
| lab/wire.FuzzReader | 0 | 0 | 0 | 0 |  | 0 | [0011223344556677](../lab/wire/testdata/fuzz/FuzzReader/0011223344556677) |
| markup.FuzzParse | 124 | 1060 | 8 | 4 | 2026-03-04 | 100000 | a bomb: ` + "`TestBomb`" + ` |
| all | 124 | 1060 | 8 | 4 |  | 0 |  |

More.
`
	if got, err := os.ReadFile(page); err != nil || string(got) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

// TestTargets_Found in this tree, with what the fuzzer says of one.
func TestTargets_Found(t *testing.T) {
	targets, err := findTargets("../..")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, one := range targets {
		if found[one.String()] {
			t.Errorf("%s is found twice", one)
		}
		found[one.String()] = true
	}
	for _, want := range []string{"xmltree.FuzzParse", "lab/wire.FuzzReader", "xdr.FuzzCall", "xdr.FuzzEvent"} {
		if !found[want] {
			t.Errorf("%s is not found", want)
		}
	}
	said := "fuzz: elapsed: 0s, gathering baseline coverage: 0/9 completed\nfuzz: elapsed: 3s, execs: 325 (108/sec), new interesting: 1 (total: 20)\n" +
		"fuzz: elapsed: 6s, execs: 5017 (1564/sec), new interesting: 11 (total: 202)\n--- FAIL: FuzzParse (6.00s)\n"
	if tried, fresh := counts([]byte(said)); tried != 5017 || fresh != 11 {
		t.Errorf("%d inputs tried, %d of them new, want 5017 and 11", tried, fresh)
	}
	if late := "--- FAIL: FuzzAnswer (9.09s)\n    context deadline exceeded\nFAIL\n"; !onlyLate([]byte(late)) || onlyLate([]byte(said)) || onlyLate([]byte("Failing input written\n"+late)) {
		t.Error("a run that was late is not told from one that broke")
	}
	if got := shown([]byte(said)); got != "--- FAIL: FuzzParse (6.00s)\n" {
		t.Errorf("shown: %q", got)
	}
}
