// Package histogram is the one form in which the lab keeps many times: an
// HdrHistogram of µs from one microsecond to an hour, to three digits, which
// can be added to others without loss. Percentiles are taken from the sum of
// histograms, never from averages of percentiles.
//
// What belongs here: that form, its text and its bounds; texts come from guests
// and from files, so none is trusted. What does not: what is timed.
package histogram

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"io"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// The form: µs from Shortest to Longest, to so many Digits. What lies outside is
// counted at the bound, so that nothing measured is dropped.
const (
	Shortest = 1
	Longest  = 3600e6
	Digits   = 3
)

// MaxText bounds the text of one histogram, in bytes: one with every count taken
// and very large fits well within.
const MaxText = 512 << 10

// headers are what goes before the compressed part and before the counts in it,
// and where the latter says its form.
const (
	outer     = 8
	inner     = 40
	digitsAt  = 12
	lowestAt  = 16
	highestAt = 24
)

// New makes an empty one.
func New() *hdrhistogram.Histogram { return hdrhistogram.New(Shortest, Longest, Digits) }

// Record counts a time.
func Record(h *hdrhistogram.Histogram, took time.Duration) {
	RecordMicroseconds(h, took.Microseconds())
}

// Quantile gives the time within which a part of all operations, in percent, were done.
// Those that failed are in no histogram, and count as longer than all others: it is
// false where the quantile lies among them.
func Quantile(done *hdrhistogram.Histogram, failed int64, percent float64) (time.Duration, bool) {
	if n := done.TotalCount(); failed > 0 {
		rank := math.Ceil(percent / 100 * float64(n+failed))
		if rank > float64(n) {
			return 0, false
		}
		percent = 100 * rank / float64(n)
	}
	return time.Duration(done.ValueAtQuantile(percent)) * time.Microsecond, true
}

// RecordMicroseconds counts a time given in µs.
func RecordMicroseconds(h *hdrhistogram.Histogram, took int64) {
	// It cannot fail for what lies within the form.
	_ = h.RecordValue(min(max(took, Shortest), Longest))
}

// RecordMany counts the same time so often.
func RecordMany(h *hdrhistogram.Histogram, took time.Duration, times int64) {
	_ = h.RecordValues(min(max(took.Microseconds(), Shortest), Longest), times)
}

// Merge adds what from holds to what into holds. Either may be nil: the sum is
// returned, and is a histogram of its own unless it is into.
func Merge(into, from *hdrhistogram.Histogram) *hdrhistogram.Histogram {
	if from == nil {
		return into
	}
	if into == nil {
		into = New()
	}
	into.Merge(from)
	return into
}

// Encode gives the text: HdrHistogram's version 2, compressed, base64.
func Encode(h *hdrhistogram.Histogram) (string, error) {
	text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	return string(text), fault.Wrap(err, fault.Failed, fault.Host, "cannot encode a histogram")
}

// Decode reads a text. One of another form is refused before memory is taken
// for it.
func Decode(text string) (*hdrhistogram.Histogram, error) {
	if len(text) > MaxText {
		return nil, fault.New(fault.Invalid, fault.Host, "cannot read a histogram of %d bytes: at most %d are allowed", len(text), MaxText)
	}
	if err := checkForm(text); err != nil {
		return nil, err
	}
	h, err := hdrhistogram.Decode([]byte(text))
	return h, fault.Wrap(err, fault.Invalid, fault.Host, "cannot read a histogram")
}

// checkForm looks at the header inside the compressed part: a few bytes of text
// could ask for a gigabyte of counts.
func checkForm(text string) error {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return fault.Wrap(err, fault.Invalid, fault.Host, "cannot read a histogram")
	}
	if len(data) < outer {
		return fault.New(fault.Invalid, fault.Host, "cannot read a histogram: it is cut off")
	}
	z, err := zlib.NewReader(bytes.NewReader(data[outer:]))
	if err != nil {
		return fault.Wrap(err, fault.Invalid, fault.Host, "cannot read a histogram")
	}
	header := make([]byte, inner)
	if _, err := io.ReadFull(z, header); err != nil {
		return fault.Wrap(err, fault.Invalid, fault.Host, "cannot read a histogram's header")
	}
	digits := int32(binary.BigEndian.Uint32(header[digitsAt:]))
	lowest := int64(binary.BigEndian.Uint64(header[lowestAt:]))
	highest := int64(binary.BigEndian.Uint64(header[highestAt:]))
	if digits != Digits || lowest != Shortest || highest != Longest {
		return fault.New(fault.Invalid, fault.Host, "cannot read a histogram of %d to %d with %d digits: the lab's are of %d to %d µs with %d", lowest, highest, digits, Shortest, int64(Longest), Digits)
	}
	return nil
}
