package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFramesComeBackAsSent(t *testing.T) {
	var stream bytes.Buffer
	sent := []Frame{
		{Kind: Call, Epoch: 7, ID: 1, Payload: []byte(`{"do":"clock"}`)},
		{Kind: Data, Stream: Errors, Epoch: 7, ID: 1 << 31, Payload: bytes.Repeat([]byte{0xFF}, MaxPayload)},
		{Kind: End, Epoch: 7, ID: 1, Payload: []byte{}},
	}
	for _, f := range sent {
		stream.Write(f.Encode())
	}
	from := NewReader(&stream)
	for _, want := range sent {
		got, err := from.Next()
		if err != nil || from.Skipped != 0 {
			t.Fatalf("%v, skipped %d", err, from.Skipped)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := from.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last frame: %v", err)
	}
}

// A host that went away in the middle of a frame must not cost the next one its
// first, wherever the cut was.
func TestFlushCompletesAnyHalfFrame(t *testing.T) {
	whole := Frame{Kind: Data, Epoch: 1, ID: 1, Payload: bytes.Repeat([]byte("LLF1"), MaxPayload/4)}.Encode()
	hello := Frame{Kind: Hello, Epoch: 2, Payload: []byte("{}")}
	for _, cut := range []int{0, 1, 3, 4, headSize - 1, headSize, headSize + 1, headSize + 17, len(whole) / 2, len(whole) - 1} {
		stream := append(append(append([]byte(nil), whole[:cut]...), Flush()...), hello.Encode()...)
		got, err := NewReader(bytes.NewReader(stream)).Next()
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if diff := cmp.Diff(hello, got); diff != "" {
			t.Errorf("cut at %d: %s", cut, diff)
		}
	}
}

func TestADamagedFrameIsSkippedAndSaidToBe(t *testing.T) {
	for _, at := range []int{0, 4, 9, 13, 17, 21, 25, headSize, headSize + 3} {
		bad := Frame{Kind: Data, Epoch: 1, ID: 1, Payload: []byte("payload")}.Encode()
		bad[at] ^= 0x10
		good := Frame{Kind: End, Epoch: 1, ID: 1, Payload: []byte{}}
		// What a wrong length swallows is at most one frame's worth.
		stream := append(append(bad, Flush()...), good.Encode()...)
		from := NewReader(bytes.NewReader(stream))
		got, err := from.Next()
		if err != nil || from.Skipped == 0 {
			t.Fatalf("damaged at %d: %v, skipped %d", at, err, from.Skipped)
		}
		if diff := cmp.Diff(good, got); diff != "" {
			t.Errorf("damaged at %d: %s", at, diff)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add(Frame{Kind: Call, Epoch: 1, ID: 2, Payload: []byte("x")}.Encode())
	f.Add(append(Flush()[:50], Frame{Kind: End}.Encode()...))
	f.Fuzz(func(t *testing.T, data []byte) {
		from := NewReader(bytes.NewReader(data))
		for {
			frame, err := from.Next()
			if err != nil {
				return
			}
			if len(frame.Payload) > MaxPayload {
				t.Fatalf("a payload of %d bytes", len(frame.Payload))
			}
			if again := frame.Encode(); !bytes.Contains(data, again[:6]) {
				t.Fatal("a frame that was not there")
			}
		}
	})
}
