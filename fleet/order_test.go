package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lodge-kvm/lodge/fault"
)

// told shows an order as "wave: names", the waves apart by bars.
func told(names []string, places []place) string {
	var waves [][]string
	for i, p := range places {
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

// guests reads "name:priority<dependency<dependency".
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

func TestGuestsComeInWaves(t *testing.T) {
	for _, c := range []struct{ guests, up, back string }{
		{"a b c", "a b c", "a b c"},
		{"a:5 b:-1 c", "b | c | a", "a | c | b"},
		{"web<db db", "db | web", "web | db"},
		{"web<db<cache db cache<net net", "db net | cache | web", "web | db cache | net"},
		{"web<elsewhere", "web", "web"},
		{"web<db<db db", "db | web", "web | db"},
		// What an early guest needs is early too.
		{"early:-5<db db:7 other", "db | early | other", "other | early | db"},
		// A group waits for all of the one before, however deep that is.
		{"a:1 b<c c<d d", "d | c | b | a", "a | b | c | d"},
		{"a:1<d b:1 d", "d | a b", "a b | d"},
	} {
		names, marks := guests(t, c.guests)
		for _, way := range []struct {
			direction
			want string
		}{{upwards, c.up}, {backward, c.back}, {anyhow, strings.Join(names, " ")}} {
			places, err := arrange(names, marks, way.direction)
			if err != nil {
				t.Errorf("%s: %v", c.guests, err)
			} else if got := told(names, places); got != way.want {
				t.Errorf("%s in direction %d: got %s, want %s", c.guests, way.direction, got, way.want)
			}
		}
	}
}

func TestACircleIsRefusedByName(t *testing.T) {
	for text, says := range map[string]string{
		"a<a":                   "a after a;",
		"x<c c<b b<a a<c":       "a after c after b after a;",
		"web<db db<web other":   "db after web after db;",
		"z<y y<x x<w w<y a b<z": "w after y after x after w;",
	} {
		names, marks := guests(t, text)
		_, err := arrange(names, marks, backward)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want one that says %q", text, err, says)
		}
	}
}

// TestEveryOrderIsSound draws sets without circles.
func TestEveryOrderIsSound(t *testing.T) {
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
		up, err := arrange(names, marks, upwards)
		if err != nil {
			t.Fatal(err)
		}
		back, err := arrange(names, marks, backward)
		if err != nil {
			t.Fatal(err)
		}
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
