package bulk

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// said is a document of fio's of a job that writes.
func said(milliseconds, bytes int64, latencies map[int]int64) string {
	var bins []string
	total := int64(0)
	for ns, n := range latencies {
		bins, total = append(bins, fmt.Sprintf(`"%d" : %d`, ns, n)), total+n
	}
	return fmt.Sprintf("{\n  \"jobs\" : [\n    {\n      \"write\" : {\"runtime\" : %d, \"io_bytes\" : %d, \"total_ios\" : %d, \"lat_ns\" : {\"bins\" : {%s}}}\n    }\n  ]\n}\n",
		milliseconds, bytes, total, strings.Join(bins, ", "))
}

// course takes in a text in small pieces.
func course(t testing.TB, text string) (told []Stretch, err error) {
	t.Helper()
	c := NewCourse(time.Minute, func(s Stretch) { told = append(told, s) })
	for part := range slices.Chunk([]byte(text), 11) {
		if _, err := c.Write(part); err != nil {
			return told, err
		}
	}
	return told, c.End()
}

func TestACourseIsWhatDocumentsDifferBy(t *testing.T) {
	told, err := course(t, "note: something\n"+said(0, 0, nil)+
		said(1000, 8192, map[int]int64{5000: 1})+"note: more\n"+
		said(2001, 3*8192, map[int]int64{5000: 2, 9000: 1})+
		said(3000, 3*8192, map[int]int64{5000: 2, 9000: 1})+
		said(3040, 4*8192, map[int]int64{5000: 3, 9000: 1}))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, s := range told {
		got = append(got, fmt.Sprint(s.Length, s.Write.Requests, s.Write.Bytes/8192, s.Read.Requests))
		if n := s.Write.Requests; n > 0 && s.Write.Latency.TotalCount() != n {
			t.Errorf("stretch %d has %d requests and %d latencies", i, n, s.Write.Latency.TotalCount())
		}
	}
	// The last 40 ms belong to the second before them.
	if want := []string{"1s 1 1 0", "1.001s 2 2 0", "1.039s 1 1 0"}; !slices.Equal(got, want) {
		t.Errorf("told %v", got)
	}
	if at := told[1].Start.Sub(told[0].Start); at != time.Second {
		t.Errorf("the second begins %v after the first", at)
	}
}

// Promise: L51
func TestHostileCoursesAreRefused(t *testing.T) {
	good := said(1000, 8192, map[int]int64{5000: 2})
	for name, text := range map[string]string{
		"nothing":           "",
		"only notes":        "fio: no space left\n",
		"cut off":           good + good[:len(good)-4],
		"fewer requests":    good + said(2000, 8192, map[int]int64{5000: 1}) + said(3000, 8192, map[int]int64{5000: 1}),
		"a latency is gone": good + said(2000, 8192, map[int]int64{6000: 2}) + said(3000, 8192, map[int]int64{6000: 2}),
		"fewer bytes":       good + said(2000, 1, map[int]int64{5000: 2}) + said(3000, 1, map[int]int64{5000: 2}),
		"too many":          good + said(2000, 8192, map[int]int64{1: math.MaxInt64 / 2, 2: math.MaxInt64 / 2}),
		"never two":         strings.Replace(good, `"jobs" : [`, `"jobs" : [{},`, 1),
		"no end of them":    strings.Repeat(good, 200),
		"no end of a line":  "{\n" + strings.Repeat(" ", MaxOutput),
		"no end of one":     "{\n" + strings.Repeat(" \n", MaxOutput),
		"begun anew":        good + said(0, 0, nil),
		"the last is wrong": good + strings.Replace(good, `"total_ios" : 2`, `"total_ios" : 3`, 1),
	} {
		if _, err := course(t, text); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := course(t, good+"{\n \"jobs\":[{\"error\":28}]\n}\n"); !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), "28") {
		t.Errorf("a job that failed: %v", err)
	}
}

// fio 3.33 wrote with four threads for three seconds, and was asked each
// second what it had done.
// Promise: L51
func TestARecordedCourseAddsUpToItsResult(t *testing.T) {
	text, err := os.ReadFile("testdata/fio-3.33-course.txt")
	if err != nil {
		t.Fatal(err)
	}
	told, err := course(t, string(text))
	if err != nil || len(told) < 3 {
		t.Fatalf("%d stretches, %v", len(told), err)
	}
	all, err := Parse(text[bytes.LastIndex(text, []byte("\n{\n")):])
	if err != nil {
		t.Fatal(err)
	}
	var requests, written int64
	var length time.Duration
	for _, s := range told {
		requests, written, length = requests+s.Write.Requests, written+s.Write.Bytes, length+s.Length
		if s.Write.Requests == 0 || s.Length < 500*time.Millisecond || s.Length > 2*time.Second {
			t.Errorf("a stretch of %v has %d requests", s.Length, s.Write.Requests)
		}
	}
	if requests != all.Write.Requests || written != all.Write.Bytes || length != all.Write.Runtime {
		t.Errorf("%d requests of %d bytes in %v, and the result is %d, %d and %v", requests, written, length, all.Write.Requests, all.Write.Bytes, all.Write.Runtime)
	}
}

// FuzzCourse: what is told of a course that is taken to its end adds up to its last
// document.
func FuzzCourse(f *testing.F) {
	f.Add([]byte(said(1000, 8192, map[int]int64{5000: 1}) + said(2000, 2*8192, map[int]int64{5000: 2})))
	f.Add([]byte("{\n\"jobs\":[{\"write\":{\"runtime\":1}}]\n}\n{\n\"jobs\":[{\"read\":{\"runtime\":900,\"io_bytes\":7,\"total_ios\":1,\"lat_ns\":{\"bins\":{\"5\":1}}}}]\n}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var told []Stretch
		c := NewCourse(time.Minute, func(s Stretch) { told = append(told, s) })
		_, err := c.Write(text)
		if err == nil {
			err = c.End()
		}
		var read, write Side
		for _, s := range told {
			for side, sum := range map[*Side]*Side{&s.Read: &read, &s.Write: &write} {
				if s.Length < 0 || side.Bytes < 0 || side.Requests > 0 && side.Latency.TotalCount() != side.Requests {
					t.Fatalf("%+v", s)
				}
				sum.Bytes, sum.Requests = sum.Bytes+side.Bytes, sum.Requests+side.Requests
			}
		}
		if err != nil || len(told) == 0 {
			return
		}
		all, err := Parse(c.text)
		if err != nil || all.Read.Bytes != read.Bytes || all.Read.Requests != read.Requests || all.Write.Bytes != write.Bytes || all.Write.Requests != write.Requests {
			t.Fatalf("%+v and %+v are told of %+v, %v", read, write, all, err)
		}
	})
}
