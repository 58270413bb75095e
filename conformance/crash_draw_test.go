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

// crashVariable chooses the deaths of the crash matrix for this run: "all", or those of a seed. Without it the
// test draws a seed.
const crashVariable = "LODGE_CRASH"

// crashShares is the number of parts of the matrix. One seed runs one part, so ten consecutive seeds run every
// death.
const crashShares = 10

// crashDraw chooses the deaths of one run.
type crashDraw struct {
	all  bool
	seed uint64
}

// drawDeaths reads crashVariable, and prints how to repeat the draw.
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

// drawn reports whether this run kills the daemon at a fail point of an action.
func (c *crash) drawn(action string, a failpoint.Armed) bool {
	return c.tally.draw.takes(fmt.Sprintf("%s/%s/%s/%d", c.scenario, action, a.Point, a.Nth))
}

func TestCrashDraw_TenSeedsCoverEachDeathOnce(t *testing.T) {
	for n := range 1000 {
		death, taken := fmt.Sprintf("scenario/action/point%d/1", n), 0
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
