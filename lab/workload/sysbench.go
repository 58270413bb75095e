package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/histogram"
	"github.com/lodge-kvm/lodge/lab/mariadb"
)

// Sysbench is the configuration of one of sysbench's loads on a database, which
// sysbench-prepare filled; sysbench must be installed where the load runs. Its operation
// is "transaction", and OpUndone are those that the server had begun anew. It tells
// about once in a second how many were done; how long they took, what was undone and
// what failed it tells of all of them at its end, with the last interval.
type Sysbench struct {
	Duration Duration       `json:"duration"`
	Database mariadb.Server `json:"database"`
	// Test is sysbench's name: "oltp_read_write", which is meant if nothing is said,
	// "oltp_read_only", "oltp_write_only" or "oltp_point_select".
	Test    string `json:"test,omitempty"`
	Threads int    `json:"threads,omitzero"` // 1
	Tables  int    `json:"tables,omitzero"`  // 1
	Rows    int    `json:"rows,omitzero"`    // of each table: 10000
	// Rate is transactions a second, drawn by chance: as many as go if nothing is
	// said.
	Rate int    `json:"rate,omitzero"`
	Seed uint64 `json:"seed,omitzero"`
}

// OpTransaction is one that sysbench saw done.
const OpTransaction = "transaction"

var sysbenchTests = []string{"oltp_read_write", "oltp_read_only", "oltp_write_only", "oltp_point_select"}

func (s *Sysbench) settle() error {
	orElse(&s.Test, sysbenchTests[0])
	orElse(&s.Threads, 1)
	orElse(&s.Tables, 1)
	orElse(&s.Rows, 10_000)
	if err := s.Database.Check(); err != nil {
		return err
	}
	switch {
	case s.Duration < Duration(time.Second) || time.Duration(s.Duration) > maxDuration:
		return invalid("duration is %v: 1s to %v are possible", time.Duration(s.Duration), maxDuration)
	case !slices.Contains(sysbenchTests, s.Test):
		return invalid("test is %q: it is one of %s", s.Test, strings.Join(sysbenchTests, ", "))
	case s.Threads < 1 || s.Threads > 4096 || s.Tables < 1 || s.Tables > 1000 || s.Rows < 1 || s.Rows > 1e9 || s.Rate < 0 || s.Rate > maxRate:
		return invalid("threads %d, tables %d, rows %d, rate %d: 1 to 4096, 1 to 1000, 1 to 10^9 and 0 to 10^6 are possible", s.Threads, s.Tables, s.Rows, s.Rate)
	}
	return nil
}

func parseSysbench(config json.RawMessage) (*Sysbench, error) {
	var s Sysbench
	if err := parse(config, &s); err != nil {
		return nil, err
	}
	return &s, s.settle()
}

func (s *Sysbench) arguments(command string) []string {
	args := []string{
		s.Test, "--db-driver=mysql", "--mysql-user=" + s.Database.User, "--mysql-password=" + s.Database.Password, "--mysql-db=" + s.Database.Database,
		fmt.Sprintf("--tables=%d", s.Tables), fmt.Sprintf("--table-size=%d", s.Rows), fmt.Sprintf("--threads=%d", s.Threads),
		fmt.Sprintf("--time=%d", time.Duration(s.Duration)/time.Second), "--events=0", "--histogram=on", "--report-interval=1", fmt.Sprintf("--rate=%d", s.Rate),
		// Below 2^31, which is what it takes; 0 would draw by the clock.
		fmt.Sprintf("--rand-seed=%d", 1+s.Seed%(1<<31-2)),
	}
	if path, ok := strings.CutPrefix(s.Database.Address, "unix:"); ok {
		args = append(args, "--mysql-socket="+path)
	} else if at := strings.LastIndexByte(s.Database.Address, ':'); at >= 0 {
		args = append(args, "--mysql-host="+s.Database.Address[:at], "--mysql-port="+s.Database.Address[at+1:])
	}
	return append(args, command)
}

func newSysbenchPrepare(config json.RawMessage) (Load, error) {
	s, err := parseSysbench(config)
	if err != nil {
		return nil, err
	}
	return newErrand(longErrand, func(ctx context.Context, m *meter) error {
		if err := s.Database.Create(ctx); err != nil {
			return err
		}
		if _, err := program(ctx, maxSysbench, "sysbench", s.arguments("prepare")...); err != nil {
			return err
		}
		m.untimed(OpRows, int64(s.Tables)*int64(s.Rows))
		return context.Cause(ctx)
	})
}

func newSysbench(config json.RawMessage) (Load, error) { return parseSysbench(config) }

const maxSysbench = 1 << 20

// Run has sysbench do it.
func (s *Sysbench) Run(ctx context.Context, out func(Interval)) error {
	within, cancel := context.WithTimeoutCause(ctx, time.Duration(s.Duration)+maxTimeout, errLate)
	defer cancel()
	course := sysbenchCourse{out: out, rest: bounded{most: maxSysbench}}
	if err := follow(within, &course, "sysbench", s.arguments("run")...); err != nil && course.rest.lost == 0 {
		return err
	}
	err := course.end()
	if err != nil && ctx.Err() != nil {
		course.stopped()
		return nil // there was no result yet
	}
	return err
}

// sysbenchCourse reads sysbench's output as it comes: a line for each second, and a
// report at the end. The seconds are told as they come, the last with what the report
// has beyond them, so that all add up to it.
type sysbenchCourse struct {
	out  func(Interval)
	line []byte
	rest bounded // what is not of seconds

	began       time.Time     // zero until a second has come
	until, told time.Duration // since then: what has come, and what was told
	done, given float64       // transactions that have come, and those of them that were told
}

// sysbenchSecond is a line of a course: its time, and what was done in a second.
var sysbenchSecond = regexp.MustCompile(`^\[ (\d{1,9})s \] thds: \d{1,9} tps: (\d{1,9}\.\d{1,2}) `)

// mostLine bounds a line of the course, in bytes.
const mostLine = 4 << 10

// Write takes more of the output, and never refuses.
func (c *sysbenchCourse) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		c.line = append(c.line, part[:min(len(part), mostLine-len(c.line))]...)
		if rest = after; ended {
			c.take()
		}
	}
	return len(p), nil
}

// take reads a line.
func (c *sysbenchCourse) take() {
	line := c.line
	c.line = c.line[:0]
	if !bytes.HasPrefix(line, []byte("[ ")) {
		_, _ = c.rest.Write(append(line, '\n'))
		return
	}
	found := sysbenchSecond.FindSubmatch(line)
	if found == nil {
		return // of queues
	}
	seconds, _ := strconv.ParseInt(string(found[1]), 10, 64) // at most nine digits
	rate, _ := strconv.ParseFloat(string(found[2]), 64)
	at := time.Duration(seconds) * time.Second
	if c.began.IsZero() {
		c.began = time.Now().Add(-at)
	}
	if at <= c.until || at > maxLength {
		return // time stands, or is none
	}
	if c.until > c.told {
		// What came before is not the last.
		whole := math.Floor(c.done)
		c.tell(c.until, map[string]Count{OpTransaction: {Done: int64(whole - c.given)}})
		c.given = whole
	}
	c.done += rate * (at - c.until).Seconds()
	c.until = at
}

// tell gives an interval that ends then.
func (c *sysbenchCourse) tell(until time.Duration, ops map[string]Count) {
	c.out(Interval{Start: c.began.Add(c.told), Length: max(0, until-c.told), Ops: ops})
	c.told = until
}

// stopped tells the last second that came, of a sysbench that has not come to its
// report.
func (c *sysbenchCourse) stopped() {
	if c.until > c.told {
		c.tell(c.until, map[string]Count{OpTransaction: {Done: int64(math.Floor(c.done) - c.given)}})
	}
}

// end reads the report and tells the rest.
func (c *sysbenchCourse) end() error {
	if len(c.line) > 0 {
		c.take()
	}
	if c.rest.lost > 0 {
		return fault.New(fault.Invalid, fault.Host, "sysbench said more than %d bytes", maxSysbench)
	}
	ops, length, err := readSysbench(c.rest.String())
	if err != nil {
		return err
	}
	all := ops[OpTransaction]
	// A rate is told to hundredths: it may be a little too much, and no more.
	beyond := int64(c.given) - all.Done
	if beyond > 1+int64(c.told/time.Minute) {
		return fault.New(fault.Invalid, fault.Host, "sysbench's seconds have %.0f transactions, and its report %d", c.given, all.Done)
	}
	all.Done = max(0, -beyond)
	ops[OpTransaction] = all
	if c.began.IsZero() {
		c.began = time.Now().Add(-length)
	}
	c.tell(length, ops)
	return nil
}

// What of its report is read.
var (
	sysbenchDone   = regexp.MustCompile(`(?m)^ +transactions: +(\d{1,15}) `)
	sysbenchUndone = regexp.MustCompile(`(?m)^ +ignored errors: +(\d{1,15}) `)
	sysbenchLost   = regexp.MustCompile(`(?m)^ +reconnects: +(\d{1,15}) `)
	sysbenchTime   = regexp.MustCompile(`(?m)^ +total time: +(\d{1,9}\.\d{1,6})s`)
	sysbenchBin    = regexp.MustCompile(`(?m)^ *(\d{1,12}\.\d{3}) \|\**\** +(\d{1,15})$`)
)

// readSysbench reads the report of a hostile guest: what does not fit together is
// refused.
func readSysbench(text string) (map[string]Count, time.Duration, error) {
	var numbers [3]int64
	for i, what := range []*regexp.Regexp{sysbenchDone, sysbenchUndone, sysbenchLost} {
		found := what.FindStringSubmatch(text)
		if found == nil {
			return nil, 0, fault.New(fault.Invalid, fault.Host, "sysbench gave no result: %.300q", text)
		}
		numbers[i], _ = strconv.ParseInt(found[1], 10, 64) // at most 15 digits
	}
	took := sysbenchTime.FindStringSubmatch(text)
	if took == nil {
		return nil, 0, fault.New(fault.Invalid, fault.Host, "sysbench tells no time: %.300q", text)
	}
	seconds, _ := strconv.ParseFloat(took[1], 64) // digits and a point
	length := time.Duration(seconds * float64(time.Second))
	if length > maxLength {
		return nil, 0, fault.New(fault.Invalid, fault.Host, "sysbench tells of %v: at most %v can be", length, maxLength)
	}
	c := Count{Done: numbers[0], Errors: numbers[2]}
	if c.Errors > 0 {
		c.Example = "sysbench lost its connection"
	}
	var err error
	if c.Latency, err = sysbenchTimes(text, c.Done); err != nil {
		return nil, 0, err
	}
	ops := map[string]Count{OpTransaction: c}
	if numbers[1] > 0 {
		ops[OpUndone] = Count{Done: numbers[1]}
	}
	return ops, length, nil
}

// sysbenchTimes reads the histogram of what was done.
func sysbenchTimes(text string, done int64) (*hdrhistogram.Histogram, error) {
	times, left := histogram.New(), done
	for _, bin := range sysbenchBin.FindAllStringSubmatch(text, -1) {
		ms, _ := strconv.ParseFloat(bin[1], 64)
		n, _ := strconv.ParseInt(bin[2], 10, 64)
		if left -= n; left < 0 {
			break
		}
		histogram.RecordMany(times, time.Duration(min(ms, histogram.Longest)*float64(time.Millisecond)), n)
	}
	if left != 0 {
		return nil, fault.New(fault.Invalid, fault.Host, "sysbench's histogram does not fit its %d transactions", done)
	}
	return times, nil
}
