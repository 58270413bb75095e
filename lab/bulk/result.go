package bulk

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/histogram"
)

// Result is what fio says of a job.
type Result struct {
	Read, Write Side
}

// Side is one direction.
type Side struct {
	Requests, Bytes int64
	Runtime         time.Duration // until the slowest thread had done
	Latency         *hdrhistogram.Histogram
}

// MaxOutput bounds what is read of fio, in bytes.
const MaxOutput = 8 << 20

// maxBins bounds the kinds of latency that one direction tells: fio has some
// thousand.
const maxBins = 1 << 14

// maxRequests bounds what one job can have done.
const maxRequests = 1 << 50

type side struct {
	IOBytes  int64 `json:"io_bytes"`
	TotalIOs int64 `json:"total_ios"`
	Runtime  int64 `json:"runtime"` // ms
	Latency  struct {
		Bins map[string]int64 `json:"bins"` // requests by ns
	} `json:"lat_ns"`
}

// Parse reads fio's output: JSON after whatever notes it has for the user. The
// guest may be hostile: what does not fit together is refused.
func Parse(output []byte) (Result, error) {
	var r Result
	if len(output) > MaxOutput {
		return r, fault.New(fault.Invalid, fault.Host, "fio said more than %d bytes", MaxOutput)
	}
	if !bytes.HasPrefix(output, []byte("{")) {
		at := bytes.Index(output, []byte("\n{"))
		if at < 0 {
			return r, fault.New(fault.Invalid, fault.Host, "fio gave no result: %.300q", output)
		}
		output = output[at+1:]
	}
	read, write, err := decode(output)
	if err != nil {
		return r, err
	}
	if r.Read, err = read.read(); err != nil {
		return Result{}, fault.Wrap(err, fault.Of(err), fault.Host, "fio's reads")
	}
	if r.Write, err = write.read(); err != nil {
		return Result{}, fault.Wrap(err, fault.Of(err), fault.Host, "fio's writes")
	}
	return r, nil
}

// decode reads one document of fio's, of one job that goes well.
func decode(document []byte) (read, write side, err error) {
	var said struct {
		Jobs []struct {
			Error       int `json:"error"`
			Read, Write side
		} `json:"jobs"`
	}
	if err := json.Unmarshal(document, &said); err != nil {
		return read, write, fault.Wrap(err, fault.Invalid, fault.Host, "cannot read fio's result")
	}
	if len(said.Jobs) != 1 {
		return read, write, fault.New(fault.Invalid, fault.Host, "fio tells of %d jobs instead of one", len(said.Jobs))
	}
	job := said.Jobs[0]
	if job.Error != 0 {
		return read, write, fault.New(fault.Failed, fault.Host, "fio's job ended with error %d", job.Error)
	}
	return job.Read, job.Write, nil
}

// length is how long a job has gone on by both directions.
func (s side) length(other side) time.Duration {
	return time.Duration(max(0, s.Runtime, other.Runtime)) * time.Millisecond
}

// requests are those of a direction by their latency, and how many there are.
func (s side) requests() (byLatency map[time.Duration]int64, all int64, err error) {
	const longest = int64(math.MaxInt64 / int64(time.Millisecond))
	if s.TotalIOs < 0 || s.TotalIOs > maxRequests || s.IOBytes < 0 || s.Runtime < 0 || s.Runtime > longest || len(s.Latency.Bins) > maxBins {
		return nil, 0, fault.New(fault.Invalid, fault.Host, "%d requests of %d bytes in %d ms with %d kinds of latency cannot be", s.TotalIOs, s.IOBytes, s.Runtime, len(s.Latency.Bins))
	}
	byLatency = make(map[time.Duration]int64, len(s.Latency.Bins))
	for key, n := range s.Latency.Bins {
		ns, err := strconv.ParseInt(key, 10, 64)
		if err != nil || ns < 0 || n < 0 || n > maxRequests-all {
			return nil, 0, fault.New(fault.Invalid, fault.Host, "a latency of %.40q ns, %d times among %d, cannot be", key, n, s.TotalIOs)
		}
		byLatency[time.Duration(ns)] += n
		all += n
	}
	return byLatency, all, nil
}

func (s side) read() (Side, error) {
	requests, counted, err := s.requests()
	if err != nil {
		return Side{}, err
	}
	if counted != s.TotalIOs {
		return Side{}, fault.New(fault.Invalid, fault.Host, "%d requests and the latencies of %d cannot be", s.TotalIOs, counted)
	}
	all := Side{Requests: s.TotalIOs, Bytes: s.IOBytes, Runtime: time.Duration(s.Runtime) * time.Millisecond}
	if s.TotalIOs == 0 {
		return all, nil
	}
	all.Latency = histogram.New()
	for latency, n := range requests {
		histogram.RecordMany(all.Latency, latency, n)
	}
	return all, nil
}
