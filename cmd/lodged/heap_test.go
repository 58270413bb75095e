package main

import "testing"

func TestGarbageHasItsRoomAndNoMore(t *testing.T) {
	for _, c := range []struct {
		live uint64
		want int
	}{
		{0, 2300}, {4 << 20, 500}, {11 << 20, 118}, {12 << 20, 100}, {1 << 30, 100},
	} {
		if got := pace(c.live); got != c.want {
			t.Errorf("with %d bytes alive the pace is %d, want %d", c.live, got, c.want)
		}
	}
}
