package conformance

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
)

// crashVariable says which deaths of the crash matrix a run goes through: "all",
// or those of a seed. Without it a seed is drawn.
const crashVariable = "LODGE_CRASH"

// crashShares is the number of parts that the matrix is cut into. One seed has one
// part, so ten seeds in a row have every death.
const crashShares = 10

// crashDraw chooses the deaths of one run.
type crashDraw struct {
	all  bool
	seed uint64
}

// drawDeaths reads crashVariable, and prints how to repeat what it draws.
func drawDeaths(t *testing.T) crashDraw {
	t.Helper()
	text := os.Getenv(crashVariable)
	if text == "all" {
		return crashDraw{all: true}
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if text == "" {
		seed, err = rand.Uint64N(crashShares), nil
	}
	if err != nil {
		t.Fatalf("%s is neither a seed nor all: %v", crashVariable, err)
	}
	t.Logf("one death in %d is drawn with %s=%d", crashShares, crashVariable, seed)
	return crashDraw{seed: seed}
}

func (d crashDraw) takes(death string) bool {
	if d.all {
		return true
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(death))
	return (sum.Sum64()+d.seed)%crashShares == 0
}

// drawn says whether this run kills the daemon at a point of a deed.
func (c *crash) drawn(deed string, a failpoint.Armed) bool {
	return c.tally.draw.takes(fmt.Sprintf("%s/%s/%s/%d", c.scenario, deed, a.Point, a.Nth))
}

func TestCrashDraw_TenSeedsInARowTakeEachDeathOnce(t *testing.T) {
	for n := range 1000 {
		death, taken := fmt.Sprintf("scenario/deed/point%d/1", n), 0
		for seed := uint64(95); seed < 95+crashShares; seed++ {
			if (crashDraw{seed: seed}).takes(death) {
				taken++
			}
		}
		if taken != 1 {
			t.Fatalf("ten seeds take %s %d times", death, taken)
		}
	}
}
