package savestate

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// A guest that crashes again and again replaces its own dumps. Crashes of many other
// guests remove dumps of the guest with the most.
func TestSurplusCores_PerGuest(t *testing.T) {
	var cores []coreDump
	began := time.Unix(1e9, 0)
	crash := func(guest string) {
		gone := surplusCores(slices.Clone(cores), guest)
		cores = slices.DeleteFunc(cores, func(c coreDump) bool { return slices.Contains(gone, c) })
		began = began.Add(time.Second)
		cores = append(cores, coreDump{path: fmt.Sprint(began.Unix()), guest: guest, at: began})
	}
	of := func(guest string) (n int) {
		for _, c := range cores {
			if c.guest == guest {
				n++
			}
		}
		return n
	}
	crash("ours")
	first := cores[0]
	for range 100 {
		crash("theirs")
	}
	if of("theirs") != coresPerGuest || of("ours") != 1 || cores[len(cores)-1].at != began {
		t.Errorf("%d and %d are kept", of("theirs"), of("ours"))
	}
	for n := range 20 {
		for range 5 {
			crash(fmt.Sprint("theirs-", n))
		}
	}
	for range 40 { // each of a guest that was there for it alone
		cores = append(cores, coreDump{path: fmt.Sprint("gone-", began.Unix()), at: began})
		began = began.Add(time.Second)
	}
	crash("another")
	if len(cores) != maxCores || !slices.Contains(cores, first) || of("another") != 1 {
		t.Errorf("%d are kept, of those %d of who had one", len(cores), of("ours"))
	}
}
