package topology

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

func TestParseCPUSet(t *testing.T) {
	for list, want := range map[string]string{
		"":              "",
		"0":             "0",
		"0-3":           "0-3",
		"0-3,^2,8":      "0-1,3,8",
		"^2,0-3":        "0-3", // the exclusion applies to the list before it
		" 1 , 3 - 4\n":  "1,3-4",
		"5,4,3,3":       "3-5",
		"0-1,1-2":       "0-2",
		"0,^0":          "",
		"63-64,127-128": "63-64,127-128",
		"16383":         "16383",
		"60-130":        "60-130",
		"0-63,128-191":  "0-63,128-191",
		"1-16383,^64":   "1-63,65-16383",
	} {
		set, err := ParseCPUSet(list)
		if err != nil {
			t.Errorf("%q: %v", list, err)
			continue
		}
		if got := set.String(); got != want {
			t.Errorf("%q prints as %q, want %q", list, got, want)
		}
	}
}

func TestParseCPUSet_Refusals(t *testing.T) {
	for _, list := range []string{
		",", "0,", "a", "-1", "3-1", "^1-2", "^", "0-", "1.5", "+1", "0x3", "16384", "0-99999999999999999999", "0 1",
	} {
		if set, err := ParseCPUSet(list); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q gives %q and error %v, want an invalid fault", list, set, err)
		}
	}
}

// The slow obvious twin of CPUSet is a map.
func TestCPUSet_Algebra(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	draw := func() (CPUSet, map[int]bool) {
		var s CPUSet
		m := map[int]bool{}
		for range rnd.IntN(40) {
			n := rnd.IntN(200)
			s.Add(n)
			m[n] = true
		}
		return s, m
	}
	for range 300 {
		a, am := draw()
		b, bm := draw()
		for op, got := range map[string]CPUSet{"union": a.Union(b), "intersect": a.Intersect(b), "minus": a.Minus(b)} {
			var want []int
			for n := range 200 {
				keep := map[string]bool{"union": am[n] || bm[n], "intersect": am[n] && bm[n], "minus": am[n] && !bm[n]}[op]
				if keep {
					want = append(want, n)
				}
				if got.Contains(n) != keep {
					t.Fatalf("%s of %q and %q: %d is wrong", op, a, b, n)
				}
			}
			if list := slices.Collect(got.All()); !slices.Equal(list, want) || got.Len() != len(want) {
				t.Fatalf("%s of %q and %q is %v, want %v", op, a, b, list, want)
			}
			if !got.Equal(CPUs(want...)) {
				t.Fatalf("%s of %q and %q differs from the same set made anew", op, a, b)
			}
		}
		if back, err := ParseCPUSet(a.String()); err != nil || !back.Equal(a) {
			t.Fatalf("%q reads back as %q, %v", a, back, err)
		}
		if back, err := FromMap(a.Map(200)); err != nil || !back.Equal(a) {
			t.Fatalf("%q maps back as %q, %v", a, back, err)
		}
	}
}

func TestCPUMap(t *testing.T) {
	set := CPUs(0, 2, 9, 15)
	if got := set.Map(10); !slices.Equal(got, []byte{0x05, 0x02}) {
		t.Errorf("the map for 10 processors is %x", got)
	}
	if _, err := FromMap(make([]byte, 1<<20)); err != nil {
		t.Errorf("a long map of zeros is refused: %v", err)
	}
	if _, err := FromMap(append(make([]byte, 2048), 1)); !fault.Is(err, fault.Invalid) {
		t.Errorf("a bit above the limit gives %v", err)
	}
}

func TestCPUSet_JSON(t *testing.T) {
	type record struct{ CPUs CPUSet }
	text, err := json.Marshal(record{Range(2, 5)})
	if err != nil {
		t.Fatal(err)
	}
	var back record
	if err := json.Unmarshal(text, &back); err != nil || !back.CPUs.Equal(Range(2, 5)) {
		t.Errorf("%s reads back as %q, %v", text, back.CPUs, err)
	}
}

// TestParseCPUSet_WideRanges: a list of ranges over everything takes a word of
// work for each 64 numbers, as often as it repeats them.
// Promise: X3
func TestParseCPUSet_WideRanges(t *testing.T) {
	words := make([]uint64, MaxCPU/64+1)
	if touched, _, _ := window(words, 0, MaxCPU); len(touched) != 256 {
		t.Errorf("%d words are touched", len(touched))
	}
	for _, c := range []struct{ first, last int }{{0, 0}, {0, 63}, {63, 64}, {1, 62}, {64, 127}, {5, 200}, {MaxCPU, MaxCPU}, {0, MaxCPU}} {
		list := fmt.Sprintf("%d-%d", c.first, c.last)
		if got, err := ParseCPUSet(list); err != nil || !got.Equal(Range(c.first, c.last)) {
			t.Errorf("%s is read as %q, %v", list, got, err)
		}
	}
}

func FuzzParseCPUSet(f *testing.F) {
	for _, list := range []string{"0-3,^2,8", "0-16383,^5, 7 - 9 ,^63,^64", "16384", "3-1", "^1-2", "+1", ",", ""} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		set, err := ParseCPUSet(list)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatal(err)
			}
			return
		}
		back, err := ParseCPUSet(set.String())
		if err != nil || !back.Equal(set) || set.Max() > MaxCPU || set.String() != back.String() {
			t.Errorf("%q prints as %q, which reads as %q, %v", list, set, back, err)
		}
		if back, err = FromMap(set.Map(set.Max() + 1)); err != nil || !back.Equal(set) || back.Len() != set.Len() {
			t.Errorf("%q has a map that reads as %q, %v", list, back, err)
		}
		// Only the number that was removed last is missing.
		if low := set.Min(); low >= 0 {
			if less, err := ParseCPUSet(list + ",^" + strconv.Itoa(low)); err != nil || !less.Equal(set.Minus(CPUs(low))) {
				t.Errorf("%q without %d is %q, %v", list, low, less, err)
			}
		}
		if more, err := ParseCPUSet("1-70," + set.String()); !set.IsEmpty() && (err != nil || !more.Equal(set.Union(Range(1, 70)))) {
			t.Errorf("%q beside 1-70 is %q, %v", set, more, err)
		}
	})
}

// smt makes a host of cells with one package each.
func smt(cells, cores, threads int) *Host {
	h := &Host{}
	id := 0
	for c := range cells {
		cell := Cell{ID: c}
		for core := range cores {
			for range threads {
				cell.CPUs = append(cell.CPUs, CPU{ID: id, Package: c, Core: core})
				h.Online.Add(id)
				id++
			}
		}
		h.Cells = append(h.Cells, cell)
	}
	return h
}

func TestShape(t *testing.T) {
	without := func(h *Host, cpus ...int) *Host {
		off := CPUs(cpus...)
		h.Present, h.Online = h.Online, h.Online.Minus(off)
		for i := range h.Cells {
			h.Cells[i].CPUs = slices.DeleteFunc(h.Cells[i].CPUs, func(c CPU) bool { return off.Contains(c.ID) })
		}
		return h
	}
	with := func(h *Host, more ...Cell) *Host {
		h.Cells = append(h.Cells, more...)
		return h
	}
	for name, c := range map[string]struct {
		host *Host
		want Shape
	}{
		"even":                        {smt(4, 8, 2), Shape{4, 1, 8, 2}},
		"a thread is off":             {without(smt(2, 4, 2), smt(2, 4, 2).Online.Max()), Shape{2, 1, 4, 2}},
		"a core is off":               {without(smt(1, 2, 1), 1), Shape{1, 1, 2, 1}}, // two that are not the product
		"a cell of memory alone":      {with(smt(1, 2, 2), Cell{ID: 1, Memory: 1 << 30}), Shape{1, 1, 4, 1}},
		"two cells of memory alone":   {with(smt(2, 4, 1), Cell{ID: 2, Memory: 1 << 30}, Cell{ID: 3, Memory: 1 << 30}), Shape{1, 1, 8, 1}},
		"processors of one core each": {smt(1, 2, 1), Shape{1, 1, 2, 1}},
		"the kernel knows no present": {&Host{Online: Range(0, 1), Cells: smt(1, 2, 1).Cells}, Shape{1, 1, 2, 1}},
	} {
		if diff := cmp.Diff(c.want, c.host.Shape()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestCellLookup(t *testing.T) {
	h := &Host{Cells: []Cell{{ID: 0}, {ID: 8, Pages: []PagePool{{Size: 4096, Total: 7}}}}}
	cell, ok := h.Cell(8)
	if !ok || cell.ID != 8 {
		t.Fatal("cell 8 is not found")
	}
	if pool, ok := cell.Pool(4096); !ok || pool.Total != 7 {
		t.Error("the base pool is not found")
	}
	if _, ok := cell.Pool(2 << 20); ok {
		t.Error("a pool is found that is not there")
	}
	if _, ok := h.Cell(1); ok {
		t.Error("cell 1 is found")
	}
}
