package nested

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// pagesOn parses the kernel's numa_maps of a process. It returns how many KiB of anonymous memory lie on each
// node, in mappings that are bound to nodes.
func pagesOn(maps string) map[int]int {
	found := map[int]int{}
	field := regexp.MustCompile(`^N(\d+)=(\d+)$`)
	for line := range strings.Lines(maps) {
		words := strings.Fields(line)
		if len(words) < 2 || !strings.HasPrefix(words[1], "bind:") || !strings.Contains(line, "anon=") {
			continue
		}
		size := 4
		for _, w := range words {
			if kib, is := strings.CutPrefix(w, "kernelpagesize_kB="); is {
				size, _ = strconv.Atoi(kib)
			}
		}
		for _, w := range words {
			if m := field.FindStringSubmatch(w); m != nil {
				node, _ := strconv.Atoi(m[1])
				pages, _ := strconv.Atoi(m[2])
				found[node] += pages * size
			}
		}
	}
	return found
}

// According to the kernel, the memory of a guest that is bound to a node lies on that node only, whole or by
// cells.
func TestNestedNodes_MemoryOnBoundNode(t *testing.T) {
	m := begin(t)
	const mib = 64
	immediate := "<memoryBacking><allocation mode='immediate'/></memoryBacking>"
	for _, c := range []struct {
		guest
		want map[int]int // MiB by node
	}{
		{guest{name: "whole", memory: mib, more: immediate + "<numatune><memory mode='strict' nodeset='2'/></numatune>"}, map[int]int{2: mib}},
		{guest{name: "kvm", kind: "kvm", memory: mib, more: immediate + "<numatune><memory mode='strict' nodeset='3'/></numatune>"}, map[int]int{3: mib}},
		{guest{name: "cells", memory: 2 * mib, vcpus: 2, more: immediate + fmt.Sprintf(`<numatune><memory mode='strict' nodeset='1,3'/>
			<memnode cellid='0' mode='strict' nodeset='1'/><memnode cellid='1' mode='strict' nodeset='3'/></numatune>
			<cpu><numa><cell id='0' cpus='0' memory='%d' unit='MiB'/><cell id='1' cpus='1' memory='%[1]d' unit='MiB'/></numa></cpu>`, mib)}, map[int]int{1: mib, 3: mib}},
	} {
		maps := m.run("cat /proc/" + m.pid(m.paused(c.guest)) + "/numa_maps")
		for node, kib := range pagesOn(maps) {
			// QEMU's other memory, for firmware and video, may lie there, too.
			if most := c.want[node]<<10 + 32<<10; c.want[node] == 0 || kib < c.want[node]<<10 || kib > most {
				t.Errorf("guest %s has %d KiB on node %d:\n%s", c.name, kib, node, maps)
			}
		}
		if got := pagesOn(maps); len(got) != len(c.want) {
			t.Errorf("guest %s has its memory on %v, want %v MiB:\n%s", c.name, got, c.want, maps)
		}
	}
}
