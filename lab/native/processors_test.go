package native

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestPlacesHaveCoresOfTheirOwnAsLongAsThereAreSome(t *testing.T) {
	root := t.TempDir()
	for cpu := range 4 { // two threads a core, numbered side by side; nothing is told of the last two
		path := filepath.Join(root, fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, fmt.Appendf(nil, "%d-%d\n", cpu&^1, cpu|1), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := &Processors{order: coresFirst(root, []int{0, 1, 2, 3, 4, 5}), used: map[int]int{}}
	first := p.Take(2)
	if want := []int{0, 2}; !slices.Equal(first, want) {
		t.Errorf("the first place has %v and not %v", first, want)
	}
	for _, want := range [][]int{{4, 5}, {1, 3}, {0, 2}} { // and then they share
		if got := p.Take(2); !slices.Equal(got, want) {
			t.Errorf("got %v and not %v", got, want)
		}
	}
	p.Give(first)
	if got := p.Take(3); !slices.Equal(got, []int{0, 2, 4}) {
		t.Errorf("after two were given back: %v", got)
	}
	if got := p.Take(7); got != nil {
		t.Errorf("seven of six are %v", got)
	}
	here, err := NewProcessors("/")
	if err != nil || len(here.Take(1)) != 1 {
		t.Errorf("here: %+v, %v", here, err)
	}
}
