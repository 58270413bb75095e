package histogram

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"pgregory.net/rapid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Of a hundred operations two have failed: the slowest percent is among them.
// Promise: L54
func TestQuantile_FailedOperationsAreTheLongest(t *testing.T) {
	h := New()
	for took := range int64(98) {
		RecordMicroseconds(h, took+1)
	}
	for _, c := range []struct {
		failed  int64
		percent float64
		want    time.Duration
		done    bool
	}{
		{0, 100, 98 * time.Microsecond, true},
		{2, 50, 50 * time.Microsecond, true},
		{2, 98, 98 * time.Microsecond, true},
		{2, 99, 0, false},
		{98, 50, 98 * time.Microsecond, true},
		{99, 50, 0, false},
	} {
		if got, done := Quantile(h, c.failed, c.percent); got != c.want || done != c.done {
			t.Errorf("%v %% with %d failed: %v, %v", c.percent, c.failed, got, done)
		}
	}
}

func TestTextsKeepAndAddUpWhatWasCounted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		times := rapid.SliceOfN(rapid.Int64Range(-5, 2*int64(Longest)), 0, 200).Draw(t, "times")
		cut := rapid.IntRange(0, len(times)).Draw(t, "cut")
		whole, one, two := New(), New(), New()
		for i, took := range times {
			RecordMicroseconds(whole, took)
			if i < cut {
				RecordMicroseconds(one, took)
			} else {
				RecordMicroseconds(two, took)
			}
		}
		a, err := Encode(Merge(Merge(nil, one), two))
		if err != nil {
			t.Fatal(err)
		}
		b, err := Encode(whole)
		if err != nil {
			t.Fatal(err)
		}
		if a != b {
			t.Fatal("two halves added up are not the whole")
		}
		back, err := Decode(a)
		if err != nil {
			t.Fatal(err)
		}
		if back.TotalCount() != int64(len(times)) || !back.Equals(whole) {
			t.Fatalf("%d of %d times came back", back.TotalCount(), len(times))
		}
	})
}

func TestThreeDigitsAreKept(t *testing.T) {
	h := New()
	Record(h, 123456*time.Microsecond)
	if got := h.Max(); got < 123456 || got > 123600 {
		t.Errorf("123456 µs became %d", got)
	}
}

// Promise: L6
func TestHostileTextsAreRefused(t *testing.T) {
	huge, err := Encode(hdrhistogram.New(1, 1<<62, 5)) // 100 MB of counts in 60 bytes
	if err != nil {
		t.Fatal(err)
	}
	good, err := Encode(New())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"another form": huge, "empty": "", "not base64": "{}", "cut off": good[:len(good)/2], "long": strings.Repeat("A", MaxText+4),
		"short": "AAAA",
	} {
		if _, err := Decode(text); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzDecode gives what lies inside of base64 and zlib, for a fuzzer does not get
// through those: what is taken has the lab's form, and is read again as it is written.
func FuzzDecode(f *testing.F) {
	const first = hdrhistogram.V2EncodingCookieBase | 0x10 // as the library writes it
	f.Add(first, int32(Digits), int64(Shortest), int64(Longest), int16(0), []byte{2, 4, 1, 6})
	f.Add(first, int32(5), int64(1), int64(1<<62), int16(0), []byte{2})
	f.Add(first, int32(Digits), int64(Shortest), int64(Longest), int16(3), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2})
	f.Fuzz(func(t *testing.T, cookie, digits int32, lowest, highest int64, missing int16, counts []byte) {
		var inside bytes.Buffer
		z, err := zlib.NewWriterLevel(&inside, zlib.NoCompression)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []any{cookie, int32(len(counts)) + int32(missing), int32(0), digits, lowest, highest, float64(1), counts} {
			if err := binary.Write(z, binary.BigEndian, word); err != nil {
				t.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		outside := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(hdrhistogram.V2CompressedEncodingCookieBase|0x10)), uint32(inside.Len()))
		h, err := Decode(base64.StdEncoding.EncodeToString(append(outside, inside.Bytes()...)))
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatal(err)
			}
			return
		}
		if h.LowestTrackableValue() != Shortest || h.HighestTrackableValue() != Longest || h.SignificantFigures() != Digits || h.TotalCount() < 0 {
			t.Fatalf("%d to %d with %d digits, %d times", h.LowestTrackableValue(), h.HighestTrackableValue(), h.SignificantFigures(), h.TotalCount())
		}
		text, err := Encode(h)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Decode(text); err != nil || !again.Equals(h) {
			t.Fatalf("what was read cannot be written and read again: %v", err)
		}
	})
}
