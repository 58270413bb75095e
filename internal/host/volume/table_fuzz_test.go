package volume

import "testing"

// FuzzTable reads what sfdisk prints of a disk that a guest may have written: what is
// taken has its partitions on the disk, and the room between them is none of theirs.
func FuzzTable(f *testing.F) {
	f.Add(`{"partitiontable":{"label":"gpt","firstlba":2048,"lastlba":20446,"sectorsize":512,"partitions":[{"node":"/dev/sdx1","start":2048,"size":4096,"type":"0FC63DAF"}]}}`, uint64(10<<20), uint64(1<<20))
	f.Add(`{"partitiontable":{"label":"dos","partitions":[{"node":"/dev/sdx5","start":4096,"size":2048,"type":"5"},{"node":"/dev/sdx1","start":2048,"size":2048,"type":"83"}]}}`, uint64(1<<30), uint64(5<<20))
	f.Add(`{"partitiontable":{"sectorsize":4096,"firstlba":18446744073709551615,"partitions":[{"node":"/dev/../x1"}]}}`, uint64(1<<40), uint64(1))
	f.Fuzz(func(t *testing.T, text string, size, wanted uint64) {
		if size > 1<<60 {
			return // no disk
		}
		table, err := parseTable(text, size)
		if err != nil {
			return
		}
		last := uint64(0)
		apart := func(e extent) {
			for _, p := range table.Partitions {
				if from, to := p.Start*table.SectorSize, (p.Start+p.Size)*table.SectorSize; e.start < to && from < e.end {
					t.Fatalf("free from %d to %d, with a partition from %d to %d", e.start, e.end, from, to)
				}
			}
		}
		for _, e := range table.free() {
			if e.start < last || e.start >= e.end || e.end > size || e.start%align != 0 || e.end%align != 0 {
				t.Fatalf("free from %d to %d, after %d, of %d", e.start, e.end, last, size)
			}
			last = e.end
			apart(e)
		}
		if e, err := table.place(wanted); err == nil {
			if e.end-e.start < wanted || e.end > size {
				t.Fatalf("%d bytes go from %d to %d of %d", wanted, e.start, e.end, size)
			}
			apart(e)
		}
		if n, err := table.next(); err == nil {
			for _, p := range table.Partitions {
				if p.number() == n {
					t.Fatalf("the next partition gets number %d of %s", n, p.Node)
				}
			}
		}
	})
}
