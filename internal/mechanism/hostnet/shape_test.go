package hostnet

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet/linktest"
)

func TestShape_TapRate(t *testing.T) {
	linktest.Need(t)
	files, err := OpenTap(Tap{Name: "lshape0", Up: true})
	ok(t, err)
	t.Cleanup(func() { closeAll(files) })
	shaped := func(want *Shape) {
		t.Helper()
		got, err := ShapeOf("lshape0")
		ok(t, err)
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Fatalf("the kernel shapes to %+v, want %+v", got, want)
		}
	}
	shaped(nil)
	ok(t, SetShape("lshape0", nil))
	ok(t, SetShape("lshape0", &Shape{Rate: 1 << 20}))
	shaped(&Shape{Rate: 1 << 20, Peak: 1 << 20})
	ok(t, SetShape("lshape0", &Shape{Rate: 2 << 20, Peak: 4 << 20, Burst: 64 << 10}))
	shaped(&Shape{Rate: 2 << 20, Peak: 4 << 20})
	ok(t, SetShape("lshape0", nil))
	shaped(nil)
}
