package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// told prints an order as "wave: names", with bars between waves.
func told(names []string, entries []orderEntry) string {
	var waves [][]string
	for i, p := range entries {
		for len(waves) < p.wave {
			waves = append(waves, nil)
		}
		waves[p.wave-1] = append(waves[p.wave-1], names[i])
	}
	var words []string
	for _, w := range waves {
		words = append(words, strings.Join(w, " "))
	}
	return strings.Join(words, " | ")
}

// guests parses "name:priority<dependency<dependency".
func guests(t *testing.T, text string) (names []string, marks []*Marks) {
	t.Helper()
	for word := range strings.FieldsSeq(text) {
		parts := strings.Split(word, "<")
		name, priority, _ := strings.Cut(parts[0], ":")
		m := &Marks{After: parts[1:]}
		if priority != "" {
			var err error
			if m.Priority, err = parsePriority(priority); err != nil {
				t.Fatal(err)
			}
		}
		names, marks = append(names, name), append(marks, m)
	}
	return names, marks
}

func TestOrderGuests_Waves(t *testing.T) {
	for _, c := range []struct{ guests, up, back string }{
		{"a b c", "a b c", "a b c"},
		{"a:5 b:-1 c", "b | c | a", "a | c | b"},
		{"web<db db", "db | web", "web | db"},
		{"web<db<cache db cache<net net", "db net | cache | web", "web | db cache | net"},
		{"web<elsewhere", "web", "web"},
		{"web<db<db db", "db | web", "web | db"},
		// A dependency of an early guest is early too.
		{"early:-5<db db:7 other", "db | early | other", "other | early | db"},
		// A group waits for the whole group before it, however long its dependency chains.
		{"a:1 b<c c<d d", "d | c | b | a", "a | b | c | d"},
		{"a:1<d b:1 d", "d | a b", "a b | d"},
	} {
		names, marks := guests(t, c.guests)
		for _, way := range []struct {
			direction
			want string
		}{{dependenciesFirst, c.up}, {dependentsFirst, c.back}, {unordered, strings.Join(names, " ")}} {
			if got := told(names, orderGuests(names, marks, way.direction)); got != way.want {
				t.Errorf("%s in direction %d: got %s, want %s", c.guests, way.direction, got, way.want)
			}
		}
	}
}

// The error for a dependency cycle names its members. All other guests keep their order, including those that
// depend on the cycle.
//
// Promise: A14
func TestOrderGuests_Cycle(t *testing.T) {
	for _, c := range []struct{ guests, waves, in, says string }{
		{"a<a b<c c", "a c | b", "a", "a after a;"},
		{"x<c c<b b<a a<c", "c b a | x", "c b a", "a after c after b after a;"},
		{"web<db db<web other", "web db other", "web db", "db after web after db;"},
		{"z<y y<x x<w w<y a b<z", "y x w a | z | b", "y x w", "w after y after x after w;"},
		{"a<b<d b<a<x x<c<d c d<c y:-5<a", "c | d | a | y | x | b", "a b", "a after b after a;"},
	} {
		names, marks := guests(t, c.guests)
		entries := orderGuests(names, marks, dependenciesFirst)
		var in []string
		for i, p := range entries {
			if p.cycleError == nil {
				continue
			}
			in = append(in, names[i])
			if !fault.Is(p.cycleError, fault.Invalid) || !strings.Contains(p.cycleError.Error(), c.says) {
				t.Errorf("%s: %s is told %v, not %q", c.guests, names[i], p.cycleError, c.says)
			}
		}
		if got := told(names, entries); got != c.waves || strings.Join(in, " ") != c.in {
			t.Errorf("%s: in circles are %q, and the waves are %s; want %s and %s", c.guests, in, got, c.in, c.waves)
		}
	}
}

// A cycle of the maximum number of guests is found quickly and named in few words.
//
// Promise: A14
func TestOrderGuests_LargeCycle(t *testing.T) {
	names, marks := make([]string, 16384), make([]*Marks, 16384)
	for i := range names {
		names[i] = fmt.Sprintf("g-%05d", i)
		marks[i] = &Marks{After: []string{fmt.Sprintf("g-%05d", (i+1)%len(names))}}
	}
	entries := orderGuests(names, marks, dependenciesFirst)
	if why := fmt.Sprint(entries[77].cycleError); len(why) > 1000 || !strings.Contains(why, "more after g-00000") {
		t.Errorf("told in %d bytes: %.200s", len(why), why)
	}
}

// TestOrderGuests_Properties generates sets without cycles.
func TestOrderGuests_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 20).Draw(t, "n")
		names, marks := make([]string, n), make([]*Marks, n)
		for i := range n {
			names[i] = fmt.Sprint("g", i)
			marks[i] = &Marks{Priority: rapid.IntRange(-2, 2).Draw(t, "priority")}
			if i > 0 {
				for _, j := range rapid.SliceOfN(rapid.IntRange(0, i-1), 0, 3).Draw(t, "after") {
					marks[i].After = append(marks[i].After, names[j])
				}
			}
		}
		up, back := orderGuests(names, marks, dependenciesFirst), orderGuests(names, marks, dependentsFirst)
		for i := range n {
			for _, name := range marks[i].After {
				j := slices.Index(names, name)
				if up[j].wave >= up[i].wave || back[i].wave >= back[j].wave || up[j].group > up[i].group {
					t.Fatalf("%s does not come after %s: %v %v", names[i], name, told(names, up), told(names, back))
				}
			}
			for j := range n {
				if up[i].group < up[j].group && up[i].wave >= up[j].wave || back[i].group < back[j].group && back[i].wave >= back[j].wave {
					t.Fatalf("a wave is in two groups: %v %v", told(names, up), told(names, back))
				}
			}
		}
	})
}
