package oltp

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

func TestSizesThatCannotBeAreRefused(t *testing.T) {
	for want, s := range map[string]Size{"warehouses": {}, "customers": {Warehouses: 1, Customers: 1}, "items": {Warehouses: 1, Items: 1}} {
		if err := s.Settle(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	full := Size{Warehouses: 1}
	if err := full.Settle(); err != nil || full.Customers != 3000 || full.Items != 100_000 {
		t.Errorf("%v: %+v", err, full)
	}
}

func TestTheMixIsAHundred(t *testing.T) {
	sum := 0
	for _, m := range mix {
		sum += m.part
	}
	if sum != 100 {
		t.Errorf("the parts add up to %d", sum)
	}
}

// Numbers drawn unevenly stay within their bounds and prefer some.
func TestUnevenDraws(t *testing.T) {
	d := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{10, 30, 3000} {
		times := make([]int, n)
		for range 100 * n {
			times[uneven(d, n)-1]++
		}
		if slices.Max(times) < 150 {
			t.Errorf("of %d: %d times at most", n, slices.Max(times))
		}
	}
}

func TestOrdersTakeStockInOneOrder(t *testing.T) {
	terminal := Terminal{size: Size{Warehouses: 3, Customers: 30, Items: 100}, home: 2, draw: rand.New(rand.NewPCG(1, 2))}
	for range 1000 {
		lines := terminal.wants()
		items := map[int]bool{}
		for i, l := range lines {
			items[l.item] = true
			if i > 0 && (l.supplier < lines[i-1].supplier || l.supplier == lines[i-1].supplier && l.item <= lines[i-1].item) {
				t.Fatalf("not in order: %v", lines)
			}
		}
		if len(lines) < minLines || len(lines) > maxLines || len(items) != len(lines) {
			t.Fatalf("%d lines of %d items", len(lines), len(items))
		}
	}
}
