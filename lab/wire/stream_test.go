package wire

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
)

func TestAStreamTakesNoMoreThanItsReaderHasRoomFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var in *Inlet
		out := NewOutlet(1, 1, Output, func(f Frame) error { return in.Push(f.Payload) })
		in = NewInlet(1, 1, Output, func(f Frame) error { return out.Credited(f.Payload) })
		const size = 3 * Window
		written := make(chan error, 1)
		go func() {
			_, err := out.Write(make([]byte, size))
			written <- err
		}()
		synctest.Wait()
		if held := len(in.held); held != Window {
			t.Errorf("%d bytes are under way, with a window of %d", held, Window)
		}
		if n, err := io.ReadFull(in, make([]byte, size)); n != size || err != nil {
			t.Fatalf("read %d: %v", n, err)
		}
		if err := <-written; err != nil {
			t.Error(err)
		}
	})
}

func TestAWaitEndsWhenTheStreamFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		out := NewOutlet(1, 1, Input, func(Frame) error { return nil })
		in := NewInlet(1, 1, Output, func(Frame) error { return nil })
		ended := make(chan error, 2)
		go func() { _, err := out.Write(make([]byte, Window+1)); ended <- err }()
		go func() { _, err := in.Read(make([]byte, 1)); ended <- err }()
		synctest.Wait()
		out.Fail(broken)
		in.Finish(broken)
		for range 2 {
			if err := <-ended; !errors.Is(err, broken) {
				t.Errorf("ended with %v", err)
			}
		}
	})
}

func TestAPeerThatBreaksTheRulesIsFound(t *testing.T) {
	in := NewInlet(1, 1, Output, func(Frame) error { return nil })
	if err := in.Push(make([]byte, Window)); err != nil {
		t.Fatal(err)
	}
	if err := in.Push([]byte{0}); !errors.Is(err, ErrOverrun) {
		t.Errorf("a byte too many: %v", err)
	}
	out := NewOutlet(1, 1, Output, func(Frame) error { return nil })
	if err := out.Credited([]byte{0, 0, 0, 1}); err == nil {
		t.Error("credit for nothing was taken")
	}
	if err := out.Credited([]byte{1}); err == nil {
		t.Error("half a credit was taken")
	}
}
