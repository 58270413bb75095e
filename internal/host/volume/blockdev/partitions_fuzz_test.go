package blockdev

import "testing"

// FuzzTable parses sfdisk's report of a disk that a guest may have written. The partitions of an accepted
// table lie on the disk, and the free space between them overlaps none of them.
func FuzzTable(f *testing.F) {
	f.Add(`{"partitiontable":{"label":"gpt","firstlba":2048,"lastlba":20446,"sectorsize":512,"partitions":[{"node":"/dev/sdx1","start":2048,"size":4096,"type":"0FC63DAF"}]}}`, uint64(10<<20), uint64(1<<20))
	f.Add(`{"partitiontable":{"label":"dos","partitions":[{"node":"/dev/sdx5","start":4096,"size":2048,"type":"5"},{"node":"/dev/sdx1","start":2048,"size":2048,"type":"83"}]}}`, uint64(1<<30), uint64(5<<20))
	f.Add(`{"partitiontable":{"sectorsize":4096,"firstlba":18446744073709551615,"partitions":[{"node":"/dev/../x1"}]}}`, uint64(1<<40), uint64(1))
	f.Fuzz(func(t *testing.T, text string, size, wanted uint64) {
		if size > 1<<60 {
			return // not a disk
		}
		table, err := ParseTable(text, size)
		if err != nil {
			return
		}
		last := uint64(0)
		apart := func(e Extent) {
			for _, p := range table.Partitions {
				if from, to := p.Start*table.SectorSize, (p.Start+p.Size)*table.SectorSize; e.Start < to && from < e.End {
					t.Fatalf("free from %d to %d, with a partition from %d to %d", e.Start, e.End, from, to)
				}
			}
		}
		for _, e := range table.Free() {
			if e.Start < last || e.Start >= e.End || e.End > size || e.Start%Align != 0 || e.End%Align != 0 {
				t.Fatalf("free from %d to %d, after %d, of %d", e.Start, e.End, last, size)
			}
			last = e.End
			apart(e)
		}
		if e, err := table.Allocate(wanted); err == nil {
			if e.End-e.Start < wanted || e.End > size {
				t.Fatalf("%d bytes go from %d to %d of %d", wanted, e.Start, e.End, size)
			}
			apart(e)
		}
		if n, err := table.NextNumber(); err == nil {
			for _, p := range table.Partitions {
				if p.Number() == n {
					t.Fatalf("the next partition gets number %d of %s", n, p.Node)
				}
			}
		}
	})
}
