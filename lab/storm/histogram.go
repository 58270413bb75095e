package storm

import (
	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/histogram"
)

// maxTook is how many times of calls are kept one by one in one record.
const maxTook = 4096

// pack keeps the times in whichever form suits their number.
func (c *Calls) pack() error {
	if len(c.Took) <= maxTook {
		return nil
	}
	h, err := c.Times()
	if err != nil {
		return err
	}
	text, err := histogram.Encode(h)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot pack the times of %s", c.Metric)
	}
	c.Took, c.Histogram = nil, text
	return nil
}

// Times is the histogram of the calls, in µs, in whichever form they are kept.
func (c *Calls) Times() (*hdrhistogram.Histogram, error) {
	if c.Histogram != "" {
		h, err := histogram.Decode(c.Histogram)
		return h, fault.Wrap(err, fault.Invalid, fault.Host, "times of %s", c.Metric)
	}
	h := histogram.New()
	for _, one := range c.Took {
		histogram.RecordMicroseconds(h, one)
	}
	return h, nil
}
