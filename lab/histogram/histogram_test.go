package histogram

import (
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"pgregory.net/rapid"

	"github.com/lodge-kvm/lodge/fault"
)

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

func FuzzDecode(f *testing.F) {
	h := New()
	Record(h, time.Millisecond)
	text, err := Encode(h)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text string) {
		h, err := Decode(text)
		if err != nil {
			return
		}
		if again, err := Encode(h); err != nil {
			t.Fatal(err)
		} else if _, err := Decode(again); err != nil {
			t.Fatalf("what was read cannot be written and read again: %v", err)
		}
	})
}
