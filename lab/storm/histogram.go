package storm

import (
	"errors"
	"fmt"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/fault"
)

// Of a histogram of µs: an hour at most, to three digits.
const (
	longest = 3600e6
	digits  = 3
)

// maxTook is how many times of calls are kept one by one in one record.
const maxTook = 4096

// NewHistogram makes an empty histogram as Calls have it.
func NewHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, longest, digits) }

// pack keeps the times in whichever form suits their number.
func (c *Calls) pack() error {
	if len(c.Took) <= maxTook {
		return nil
	}
	h, err := c.Times()
	if err != nil {
		return err
	}
	text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot pack the times of %s", c.Metric)
	}
	c.Took, c.Histogram = nil, string(text)
	return nil
}

// Times is the histogram of the calls, in µs, in whichever form they are kept.
func (c *Calls) Times() (*hdrhistogram.Histogram, error) {
	if c.Histogram != "" {
		h, err := hdrhistogram.Decode([]byte(c.Histogram))
		return h, fault.Wrap(err, fault.Invalid, fault.Host, "times of %s", c.Metric)
	}
	h := NewHistogram()
	var all error
	for _, one := range c.Took {
		if err := h.RecordValue(min(max(one, 1), longest)); err != nil {
			all = errors.Join(all, fmt.Errorf("times of %s: %w", c.Metric, err))
		}
	}
	return h, all
}
