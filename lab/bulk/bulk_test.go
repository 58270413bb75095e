package bulk

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// recorded is what fio 3.33 said, with a note before the JSON.
func recorded(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/fio-3.33.txt")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestRecordedResultsAreReadToTheLastRequest(t *testing.T) {
	r, err := Parse(recorded(t))
	if err != nil {
		t.Fatal(err)
	}
	w := r.Write
	if w.Requests == 0 || w.Bytes != w.Requests*8<<10 || w.Latency.TotalCount() != w.Requests || w.Runtime < time.Second || w.Runtime > 2*time.Second || r.Read.Requests != 0 {
		t.Errorf("%+v", r)
	}
}

// Promise: L6
func TestHostileResultsAreRefused(t *testing.T) {
	good := string(recorded(t))
	for name, text := range map[string]string{
		"nothing":       "",
		"only notes":    "fio: no space left\n",
		"cut off":       good[:len(good)/2],
		"no job":        `{"jobs":[]}`,
		"two jobs":      `{"jobs":[{},{}]}`,
		"negative":      `{"jobs":[{"read":{"total_ios":-1}}]}`,
		"huge":          `{"jobs":[{"read":{"total_ios":9000000000000000000,"lat_ns":{"bins":{"1":9000000000000000000}}}}]}`,
		"long":          `{"jobs":[{"read":{"total_ios":1,"runtime":9223372036854775807,"lat_ns":{"bins":{"1":1}}}}]}`,
		"no latencies":  `{"jobs":[{"read":{"total_ios":3}}]}`,
		"too few":       `{"jobs":[{"read":{"total_ios":3,"lat_ns":{"bins":{"1":2}}}}]}`,
		"too many":      `{"jobs":[{"read":{"total_ios":3,"lat_ns":{"bins":{"1":4}}}}]}`,
		"minus a bin":   `{"jobs":[{"read":{"total_ios":3,"lat_ns":{"bins":{"1":-3,"2":6}}}}]}`,
		"no number":     `{"jobs":[{"read":{"total_ios":1,"lat_ns":{"bins":{"x":1}}}}]}`,
		"more than fit": strings.Repeat(" ", MaxOutput+1),
	} {
		if r, err := Parse([]byte(text)); !fault.Is(err, fault.Invalid) || r.Read.Requests != 0 {
			t.Errorf("%s: %v, %+v", name, err, r)
		}
	}
	if _, err := Parse([]byte(`{"jobs":[{"error":28}]}`)); !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), "28") {
		t.Errorf("a job that failed: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		said(1000, 8192, map[int]int64{5000: 1, 9000: 2}), "note\n" + said(1, 1, map[int]int64{1: 1}), "note\n{\"jobs\":[{\"error\":28}]}",
		`{"jobs":[{"read":{"total_ios":3,"io_bytes":9,"runtime":9223372036854,"lat_ns":{"bins":{"5":1,"9223372036854775807":1,"05":1}}},"write":{"total_ios":1,"lat_ns":{"bins":{"0":1}}}}]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, output []byte) {
		r, err := Parse(output)
		if err != nil {
			if !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.Failed) || r != (Result{}) {
				t.Fatalf("%v, with %+v", err, r)
			}
			return
		}
		for _, s := range []Side{r.Read, r.Write} {
			if s.Requests < 0 || s.Bytes < 0 || s.Runtime < 0 || (s.Requests > 0) != (s.Latency != nil) || s.Requests > 0 && s.Latency.TotalCount() != s.Requests {
				t.Fatalf("%+v", s)
			}
		}
		// Notes before the result change nothing of it.
		again, err := Parse(append([]byte("note: a\n"), output...))
		if err != nil || again.Read.Requests != r.Read.Requests || again.Write.Bytes != r.Write.Bytes {
			t.Fatalf("behind a note it is %+v, %v", again, err)
		}
	})
}

func TestJobsThatCannotBeAreRefused(t *testing.T) {
	good := Job{Profile: "random-read", Dir: "/data", Megabytes: 10}
	for want, change := range map[string]func(*Job){
		"profile": func(j *Job) { j.Profile = "all" }, "dir or device": func(j *Job) { j.Device = "/dev/vdb" }, "absolute": func(j *Job) { j.Dir = "data" },
		"colon": func(j *Job) { j.Dir = "/data:/etc" }, "below /dev": func(j *Job) { j.Dir, j.Device = "", "/etc/passwd" }, "not on a device": func(j *Job) { j.Profile, j.Dir, j.Device = "create", "", "/dev/vdb" },
		"threads": func(j *Job) { j.Threads = 65 }, "megabytes": func(j *Job) { j.Megabytes = 0 }, "kilobytes": func(j *Job) { j.Kilobytes = 16 << 10 }, "engine": func(j *Job) { j.Engine = "rbd" },
		"depth": func(j *Job) { j.Depth = 4 },
	} {
		bad := good
		change(&bad)
		if err := bad.Settle(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for _, device := range []string{"/dev/../etc/passwd", "/dev/vdb:/dev/vda", "/dev/"} {
		if err := (&Job{Profile: "sequential", Device: device, Megabytes: 1}).Settle(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", device, err)
		}
	}
}

func TestArgumentsBoundTheJob(t *testing.T) {
	j := Job{Profile: "random-write", Device: "/dev/vdb", Megabytes: 64, Threads: 8, Engine: "io_uring", Depth: 16}
	if err := j.Settle(); err != nil {
		t.Fatal(err)
	}
	args := j.Arguments(90 * time.Second)
	for _, want := range []string{"--runtime=90", "--time_based", "--numjobs=8", "--filename=/dev/vdb", "--offset_increment=64M", "--size=64M", "--direct=1", "--iodepth=16", "--bs=8k", "--rw=randwrite", "--thread"} {
		if !slices.Contains(args, want) {
			t.Errorf("%s is not in %v", want, args)
		}
	}
}

func TestSizesOfMailsHaveTheMeanThatRoomIsMadeFor(t *testing.T) {
	m := Mail{Dir: "/"}
	if err := m.Settle(); err != nil {
		t.Fatal(err)
	}
	d, sum := rand.New(rand.NewPCG(1, 1)), 0.0
	const n = 100_000
	for range n {
		size := m.size(d)
		if size < m.Least || size > m.Most {
			t.Fatalf("%d bytes", size)
		}
		sum += float64(size)
	}
	if mean := sum / n; math.Abs(mean/float64(m.Mean())-1) > 0.03 {
		t.Errorf("%.0f bytes on the average instead of %d", mean, m.Mean())
	}
	for want, bad := range map[string]Mail{"dir": {Dir: "x"}, "files": {Dir: "/", Files: -1}, "sizes": {Dir: "/", Least: 5, Most: 4}} {
		if err := bad.Settle(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
