package guest

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/fault"
)

// TestAConsoleIsNotOpenedWithoutBound: each session takes memory for as long as its client likes.
func TestAConsoleIsNotOpenedWithoutBound(t *testing.T) {
	var all consoles
	back := func(ctx context.Context, _ *device.Char) (io.ReadWriteCloser, error) {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { _ = theirs.Close() })
		return ours, ctx.Err()
	}
	open := func(o ConsoleOptions) (io.Closer, error) { return all.open(t.Context(), &device.Char{}, o, back) }
	for range maxSessions {
		s, err := open(ConsoleOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
	}
	if _, err := open(ConsoleOptions{}); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("one more: %v", err)
	}
	s, err := open(ConsoleOptions{Force: true})
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
}

// TestPicturesThatNobodyReadsAreBounded: they are memory of the host's.
func TestPicturesThatNobodyReadsAreBounded(t *testing.T) {
	var p pictures
	if !p.take(2 * maxPicture) {
		t.Error("one alone is not taken")
	}
	if p.take(1) {
		t.Error("another is taken beside it")
	}
	p.give(2 * maxPicture)
	for range 2 {
		if !p.take(maxPicture / 2) {
			t.Error("what there is room for is not taken")
		}
	}
	if p.take(1) {
		t.Error("more is taken than there is room for")
	}
}
