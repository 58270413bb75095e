package conformance

import (
	"strconv"
	"strings"
	"testing"
)

// memory is how much memory a guest's balloon leaves it, in MiB.
func (g *guest) memory(t *testing.T) int {
	t.Helper()
	for text := range strings.Lines(g.d.virsh(t, "dommemstat", g.name)) {
		if kib, is := strings.CutPrefix(text, "actual "); is {
			n, err := strconv.Atoi(strings.TrimSpace(kib))
			if err != nil {
				t.Fatal(err)
			}
			return n >> 10
		}
	}
	t.Fatalf("dommemstat shows no memory of guest %s", g.name)
	return 0
}

// TestMemory_LentAndTakenBack: a guest is lent memory beyond its user's while the host has some. The next daemon after a kill
// leaves the guest its memory. It takes the loan back when all guests may hold less, and never takes the user's part.
//
// Promise: M1
func TestMemory_LentAndTakenBack(t *testing.T) {
	needs(t)
	d := start(t, "--memory", "act")
	g := d.boot(t, shape{name: "grows", memory: 384, more: "<currentMemory unit='MiB'>160</currentMemory>"})
	eventually(t, "the balloon takes what the definition does not give", func() bool { return g.memory(t) <= 200 })
	g.shell(t, "for i in 1 2 3 4 5 6 7 8 9 10 11; do dd if=/dev/zero of=/fill$i bs=1M count=10 2>&1; sleep 1; done")
	eventually(t, "the guest is lent memory", func() bool { return g.memory(t) > 220 })
	contains(t, "lodge memory", d.set(t, 0, "memory"), "mode act: ", "GUEST", "grows  384M   160M  ")
	contains(t, "lodge why", d.set(t, 0, "why", "grows"), "grows: memory: it has ", "its user asked for 160M, and it never gets less than 160M", "grows: memory: need ", "virsh setmem grows SIZE")

	d.signal(t, "KILL")
	d.launch(t, "--memory", "advise")
	if has := g.memory(t); has <= 220 {
		t.Errorf("after a restart in mode advise the guest has %d MiB", has)
	}
	g.shell(t, "rm /fill*")
	d.signal(t, "KILL")
	d.launch(t, "--memory", "act", "--guest-memory", "200MiB")
	eventually(t, "the guest gives back what it was lent", func() bool {
		has := g.memory(t)
		if has < 160 {
			t.Fatalf("the guest has %d MiB, less than its user gave it", has)
		}
		return has <= 210
	})

	d.virsh(t, "setmem", g.name, "224M", "--live")
	eventually(t, "the user's word counts", func() bool { return g.memory(t) == 224 })
	g.shell(t, "sleep 6") // three samples
	if has := g.memory(t); has < 224 {
		t.Errorf("the guest has %d MiB after its user gave it 224", has)
	}
}
