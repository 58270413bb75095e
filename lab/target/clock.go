package target

import (
	"math"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// tscKHz is how fast this host's time-stamp counter runs, which is also that of
// an emulated guest's. 0 where it cannot be told.
var tscKHz = sync.OnceValue(func() int {
	buffer := make([]byte, 1<<20)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, buffer)
	if err == nil {
		if khz := fromLog(string(buffer[:n])); khz > 0 {
			return khz
		}
	}
	text, _ := os.ReadFile("/proc/cpuinfo")
	return fromCPUInfo(string(text))
})

var (
	refined = regexp.MustCompile(`tsc: (?:Refined TSC clocksource calibration|Detected|Using PIT calibration value)[: ]+(\d+\.\d+) MHz`)
	mhz     = regexp.MustCompile(`(?m)^cpu MHz\s*: (\d+\.\d+)`)
)

// fromLog takes the last that the kernel found out.
func fromLog(text string) int {
	all := refined.FindAllStringSubmatch(text, -1)
	if len(all) == 0 {
		return 0
	}
	return kilo(all[len(all)-1][1])
}

func fromCPUInfo(text string) int {
	match := mhz.FindStringSubmatch(text)
	if match == nil {
		return 0
	}
	return kilo(match[1])
}

func kilo(text string) int {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0
	}
	return int(math.Round(value * 1000))
}

// bootPatience is how long a guest may take until its agent answers: emulated
// ones are slow, and slower beside others.
const bootPatience = 5 * time.Minute
