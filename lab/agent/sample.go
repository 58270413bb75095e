package agent

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/lab/wire"
)

const (
	tick       = time.Second / 100 // USER_HZ, which is 100 on every Linux that Go runs on
	diskSector = 512               // of /proc/diskstats, whatever the disk's own
)

// now reads the clocks.
func now(root string) wire.Instant {
	var up unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &up)
	return wire.Instant{
		Wall: time.Now(), Up: time.Duration(up.Nano()),
		Source: trimmed(filepath.Join(root, "sys/devices/system/clocksource/clocksource0/current_clocksource")),
	}
}

// usage reads what the kernel has counted.
func usage(root string) (wire.Usage, error) {
	u := wire.Usage{Instant: now(root), CPUs: online(root)}
	if first, _, ok := strings.Cut(trimmed(filepath.Join(root, "proc/loadavg")), " "); ok {
		u.Load, _ = strconv.ParseFloat(first, 64)
	}
	for _, part := range []struct {
		file string
		read func(*wire.Usage, string)
	}{
		{"proc/stat", readStat},
		{"proc/meminfo", readMemory},
		{"proc/diskstats", readDisks},
		{"proc/net/dev", readNets},
	} {
		text, err := os.ReadFile(filepath.Join(root, part.file))
		if err != nil {
			return u, fmt.Errorf("cannot take a sample: %w", err)
		}
		part.read(&u, string(text))
	}
	return u, nil
}

func readStat(u *wire.Usage, text string) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch n := numbers(fields[1:]); fields[0] {
		case "cpu":
			t := func(i int) time.Duration { return time.Duration(n[i]) * tick }
			u.CPU.User, u.CPU.System, u.CPU.Idle, u.CPU.Wait = t(0)+t(1), t(2), t(3), t(4)
			u.CPU.IRQ, u.CPU.Steal, u.CPU.Guest = t(5)+t(6), t(7), t(8)
		case "ctxt":
			u.CPU.Context = n[0]
		}
	}
}

func readMemory(u *wire.Usage, text string) {
	kib := map[string]int64{}
	for line := range strings.Lines(text) {
		if key, rest, ok := strings.Cut(line, ":"); ok {
			kib[key] = numbers(strings.Fields(rest))[0]
		}
	}
	u.Memory = wire.Memory{
		Total: kib["MemTotal"] << 10, Free: kib["MemFree"] << 10, Available: kib["MemAvailable"] << 10,
		Cached: (kib["Cached"] + kib["Buffers"]) << 10, Swap: (kib["SwapTotal"] - kib["SwapFree"]) << 10, Dirty: kib["Dirty"] << 10,
	}
}

// readDisks leaves out partitions of nothing and devices that never did
// anything.
func readDisks(u *wire.Usage, text string) {
	u.Disks = map[string]wire.Disk{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 13 {
			continue
		}
		n := numbers(fields[3:])
		if n[0]+n[4] == 0 {
			continue
		}
		u.Disks[fields[2]] = wire.Disk{
			Reads: n[0], ReadBytes: n[2] * diskSector, ReadTime: time.Duration(n[3]) * time.Millisecond,
			Writes: n[4], WrittenBytes: n[6] * diskSector, WriteTime: time.Duration(n[7]) * time.Millisecond,
			Busy: time.Duration(n[9]) * time.Millisecond,
		}
	}
}

func readNets(u *wire.Usage, text string) {
	u.Nets = map[string]wire.Net{}
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		if !ok {
			continue // the two lines of headings
		}
		n := numbers(strings.Fields(rest))
		u.Nets[strings.TrimSpace(name)] = wire.Net{
			InBytes: n[0], InPackets: n[1], InErrors: n[2] + n[3],
			OutBytes: n[8], OutPackets: n[9], OutErrors: n[10] + n[11],
		}
	}
}

// numbers reads a row; what is missing or no number is 0. The result has room
// for every column that is asked for here.
func numbers(fields []string) []int64 {
	row := make([]int64, max(16, len(fields)))
	for i, f := range fields {
		row[i], _ = strconv.ParseInt(f, 10, 64)
	}
	return row
}

// online counts the processors in use.
func online(root string) int {
	count := 0
	for span := range strings.SplitSeq(trimmed(filepath.Join(root, "sys/devices/system/cpu/online")), ",") {
		first, last, isSpan := strings.Cut(span, "-")
		a, err := strconv.Atoi(first)
		if err != nil {
			continue
		}
		b := a
		if isSpan {
			if b, err = strconv.Atoi(last); err != nil {
				continue
			}
		}
		count += b - a + 1
	}
	return count
}

func trimmed(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(text))
}
