package blockdev

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

const mib = 1 << 20

func TestTable_Allocate(t *testing.T) {
	part := func(n, start, size int) string {
		return fmt.Sprintf(`{"node":"/dev/sdx%d","start":%d,"size":%d,"type":"83"}`, n, start, size)
	}
	for _, test := range []struct {
		name, head string
		parts      []string
		size       uint64
		want       Extent
		next       int
		kind       fault.Kind
	}{
		{"empty dos", `"label":"dos"`, nil, mib, Extent{"", mib, 2 * mib}, 1, 0},
		{"empty gpt", `"label":"gpt","firstlba":34,"lastlba":131038`, nil, 62 * mib, Extent{"", mib, 63 * mib}, 1, 0},
		{"gpt keeps its copy at the end", `"label":"gpt","firstlba":34,"lastlba":131038`, nil, 63 * mib, Extent{}, 1, fault.NoCapacity},
		{"a hole is taken before the end", `"label":"dos"`, []string{part(1, 2048, 2048), part(3, 6144, 2048)}, mib, Extent{"", 2 * mib, 3 * mib}, 2, 0},
		{"a hole that is too small is not", `"label":"dos"`, []string{part(1, 2048, 2048), part(2, 6144, 2048)}, 2 * mib, Extent{"", 4 * mib, 6 * mib}, 3, 0},
		{"an old table that is not aligned", `"label":"dos"`, []string{part(1, 63, 4000)}, 1, Extent{"", 2 * mib, 3 * mib}, 2, 0},
		{"one that lies within another", `"label":"dos"`, []string{part(2, 2048, 20480), part(5, 4096, 2048)}, mib, Extent{"", 11 * mib, 12 * mib}, 1, 0},
		{"large sectors", `"label":"dos","sectorsize":4096`, []string{part(1, 256, 256)}, mib, Extent{"", 2 * mib, 3 * mib}, 2, 0},
		{"more than all", `"label":"dos"`, nil, 1 << 63, Extent{}, 1, fault.NoCapacity},
	} {
		text := fmt.Sprintf(`{"partitiontable":{%s,"partitions":[%s]}}`, test.head, strings.Join(test.parts, ","))
		table, err := ParseTable(text, 64*mib)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		got, err := table.Allocate(test.size)
		if got != test.want || test.kind != 0 && !fault.Is(err, test.kind) || test.kind == 0 && err != nil {
			t.Errorf("%s: %v, %v", test.name, got, err)
		}
		if n, err := table.NextNumber(); n != test.next {
			t.Errorf("%s: next is %d, %v", test.name, n, err)
		}
	}
	full, err := ParseTable(`{"partitiontable":{"label":"dos","partitions":[`+strings.Join([]string{part(1, 2048, 1), part(2, 2049, 1), part(3, 2050, 1), part(4, 2051, 1)}, ",")+`]}}`, 64*mib)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := full.NextNumber(); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("a fifth partition in a dos table: %v", err)
	}
}
