package workload

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/histogram"
	"github.com/lodge-kvm/lodge/lab/mariadb"
)

func sysbenchSaid(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("testdata/sysbench-1.0.20.txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestSysbenchIsReadToTheLastTransaction(t *testing.T) {
	ops, length, err := readSysbench(sysbenchSaid(t))
	if err != nil {
		t.Fatal(err)
	}
	got := ops[OpTransaction]
	if got.Done != 425 || got.Errors != 0 || got.Latency.TotalCount() != 425 || ops[OpUndone].Done != 17 || length < time.Second || length > 2*time.Second {
		t.Errorf("%+v in %v", ops, length)
	}
	if p := got.Latency.Min(); p < 1200 || p > 1300 {
		t.Errorf("the shortest took %d µs instead of about 1270", p)
	}
}

// Promise: L6
func TestHostileSysbenchIsRefused(t *testing.T) {
	good := sysbenchSaid(t)
	for name, text := range map[string]string{
		"nothing": "", "cut off": good[:len(good)/2], "no time": strings.Replace(good, "total time:", "time:", 1),
		"more transactions":  strings.Replace(good, "transactions:                        4", "transactions:                        9", 1),
		"fewer transactions": strings.Replace(good, "transactions:                        4", "transactions:                        1", 1),
		"a year":             strings.Replace(good, "1.0093s", "31536000.0s", 1),
		"huge":               strings.Replace(good, "transactions:                        4", "transactions:                        99999999999999999999", 1),
	} {
		if text == good {
			t.Fatalf("%s: nothing was changed", name)
		}
		if ops, _, err := readSysbench(text); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, %v", name, err, ops)
		}
	}
}

// little is a report with all that is read of one, and no more: a fuzzer drags the
// rest along.
const little = ` 1.272 |** 1
  3.187 |*** 2

 transactions: 3 (4.9 per sec.)
 ignored errors: 1 (1
 reconnects: 0 (0
 total time: 1.0093s
`

// reports begin a fuzzer: one that is sound, with one thing changed.
func reports() []string {
	all := []string{little}
	for _, change := range [][2]string{
		{"reconnects: 0", "reconnects: 2"},
		{"ignored errors: 1", "ignored errors: 0"},
		{"1.0093s", "999999999.999999s"},
		{"1.272", "999999999999.999"},
		{"transactions: 3", "transactions: 999999999999999"},
		{" total time", " time"},
		{"|** 1", "|** 3"},
		{"|*** 2", "| -2"},
	} {
		all = append(all, strings.Replace(little, change[0], change[1], 1))
	}
	return all
}

func FuzzSysbench(f *testing.F) {
	for _, text := range reports() {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ops, length, err := readSysbench(text)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatal(err)
			}
			return
		}
		all := ops[OpTransaction]
		if all.Latency.TotalCount() != all.Done || length < 0 || all.Errors < 0 || (all.Errors > 0) != (all.Example != "") || len(ops) > 2 || ops[OpUndone].Done < 0 {
			t.Fatalf("%+v in %v", ops, length)
		}
		if all.Done > 0 && all.Latency.Max() > histogram.Longest*2 {
			t.Fatalf("the longest took %d µs", all.Latency.Max())
		}
	})
}

func TestSysbenchIsToldWhereAndHowLong(t *testing.T) {
	config, err := json.Marshal(Sysbench{Duration: Duration(30 * time.Second), Database: mariadb.Server{Address: "10.0.0.2:3306", User: "lab", Database: "sb"}, Threads: 4, Rate: 2})
	if err != nil {
		t.Fatal(err)
	}
	s, err := parseSysbench(config)
	if err != nil {
		t.Fatal(err)
	}
	args := s.arguments("run")
	for _, want := range []string{"oltp_read_write", "--mysql-host=10.0.0.2", "--mysql-port=3306", "--time=30", "--threads=4", "--rate=2", "--table-size=10000"} {
		if !slices.Contains(args, want) {
			t.Errorf("%s is not in %v", want, args)
		}
	}
	for want, bad := range map[string]Sysbench{
		"duration": {Database: s.Database}, "test": {Duration: s.Duration, Database: s.Database, Test: "--help"}, "threads": {Duration: s.Duration, Database: s.Database, Threads: -1}, "address": {Duration: s.Duration},
	} {
		if err := bad.settle(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// course gives a report with a line for each second before it.
func course(t testing.TB, seconds ...string) string {
	t.Helper()
	head, report, ok := strings.Cut(sysbenchSaid(t), "Latency histogram")
	if !ok {
		t.Fatal("the report has no histogram")
	}
	return head + strings.Join(seconds, "\n") + "\nLatency histogram" + report
}

func read(t testing.TB, text string) (told []Interval, err error) {
	t.Helper()
	c := sysbenchCourse{out: func(i Interval) { told = append(told, i) }, rest: bounded{most: maxSysbench}}
	for part := range slices.Chunk([]byte(text), 7) { // as a pipe may cut it
		if n, err := c.Write(part); n != len(part) || err != nil {
			t.Fatalf("%d of %d bytes taken: %v", n, len(part), err)
		}
	}
	return told, c.end()
}

// Seconds are told as they come, and with the last what the report has beyond them.
// Promise: L51
func TestSysbenchIsToldSecondBySecond(t *testing.T) {
	told, err := read(t, course(t,
		"[ 1s ] thds: 2 tps: 200.41 qps: 4027.10 (r/w/o: 2823.17/801.11/402.82) lat (ms,95%): 16.12 err/s: 8.02 reconn/s: 0.00",
		"[ 1s ] queue length: 0, concurrency: 1",
		"[ 2s ] thds: 2 tps: 150.30 qps: 3027.10 (r/w/o: 2823.17/801.11/402.82) lat (ms,95%): 16.12 err/s: 8.02 reconn/s: 0.00",
		"[ 3s ] thds: 2 tps: 60.00 qps: 1227.10 (r/w/o: 2823.17/801.11/402.82) lat (ms,95%): 16.12 err/s: 8.02 reconn/s: 0.00"))
	if err != nil || len(told) != 3 {
		t.Fatalf("%d intervals, %v", len(told), err)
	}
	sum := Total{}
	for i, want := range []int64{200, 150, 75} {
		if got := told[i].Ops[OpTransaction].Done; got != want {
			t.Errorf("interval %d has %d transactions and not %d", i, got, want)
		}
		if i < 2 && (told[i].Length != time.Second || told[i].Ops[OpTransaction].Latency != nil) {
			t.Errorf("interval %d is %+v", i, told[i])
		}
		if err := sum.Add(told[i]); err != nil {
			t.Error(err)
		}
	}
	if all := sum.Ops[OpTransaction]; all.Done != 425 || all.Latency.TotalCount() != 425 || sum.Ops[OpUndone].Done != 17 {
		t.Errorf("they add up to %+v", sum.Ops)
	}
	if told[1].Start.Sub(told[0].Start) != time.Second {
		t.Errorf("the second begins %v after the first", told[1].Start.Sub(told[0].Start))
	}
	// What comes back over the wire is the same: times of all, told with the last.
	data, err := json.Marshal(told[2])
	if err != nil {
		t.Fatal(err)
	}
	var back Interval
	if err := json.Unmarshal(data, &back); err != nil || back.Ops[OpTransaction].Latency.TotalCount() != 425 {
		t.Errorf("%v, %+v", err, back)
	}
}

// Promise: L51
func TestHostileSecondsOfSysbenchAreRefused(t *testing.T) {
	if told, err := read(t, course(t, "[ 1s ] thds: 2 tps: 9000.00 qps: 1", "[ 2s ] thds: 2 tps: 9000.00 qps: 1")); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "report 425") {
		t.Errorf("more than its report has: %v, %v", err, told)
	}
	if _, err := read(t, strings.Repeat("x", maxSysbench+2)+"\n"+strings.Repeat("y\n", maxSysbench)); !fault.Is(err, fault.Invalid) {
		t.Errorf("more than fits: %v", err)
	}
	// Time that stands or goes back tells nothing.
	told, err := read(t, course(t, "[ 5s ] thds: 2 tps: 10.00 q", "[ 5s ] thds: 2 tps: 10.00 q", "[ 2s ] thds: 2 tps: 10.00 q", "[ 99999999999s ] thds: 2 tps: 10.00 q"))
	if err != nil || len(told) != 1 || told[0].Ops[OpTransaction].Done != 425 {
		t.Errorf("%v, %v", err, told)
	}
}

func FuzzSysbenchCourse(f *testing.F) {
	for _, report := range reports() {
		f.Add("[ 1s ] thds: 2 tps: 2.41 qps\n[ 2s ] thds: 2 tps: 1.00 q\n" + report)
	}
	f.Add("[ 1s ] thds: 2 tps: 999999999.99 q\n[ 1s ] queue length: 0\n[ 999999999s ] thds: 2 tps: 1.00 q\n" + little)
	f.Fuzz(func(t *testing.T, text string) {
		told, err := read(t, text)
		sum := Total{}
		for _, i := range told {
			if err := i.Check(); err != nil || i.Ops[OpTransaction].Done < 0 {
				t.Fatalf("%v: %+v", err, i)
			}
			if err := sum.Add(i); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil {
			return
		}
		// What is told adds up to the report, or to what the seconds before its end had,
		// which may be a little more by rounding.
		all, before := sum.Ops[OpTransaction], time.Duration(0)
		for _, i := range told[:len(told)-1] {
			before += i.Length
		}
		if beyond := all.Done - all.Latency.TotalCount(); beyond < 0 || beyond > 1+int64(before/time.Minute) {
			t.Fatalf("%d are told, and %d were timed: %+v", all.Done, all.Latency.TotalCount(), told)
		}
	})
}
