package bulk

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Job is one cell of the block matrix, as fio does it.
type Job struct {
	// Profile is one of Profiles.
	Profile string `json:"profile"`
	// Threads work at once, each on a file or a part of the device of its own: 1.
	Threads int `json:"threads,omitzero"`
	// Dir is where files are made and removed. Or Device is what is read and
	// written as a whole: what was on it is lost.
	Dir    string `json:"dir,omitempty"`
	Device string `json:"device,omitempty"`
	// Megabytes is the size of each thread's file, or of its part of the device.
	Megabytes int `json:"megabytes"`
	// Kilobytes of each request: 1024 in sequence, 8 at random.
	Kilobytes int `json:"kilobytes,omitzero"`
	// Engine is fio's: "psync", which is meant if nothing is said, "libaio" or
	// "io_uring". Depth is how many requests a thread has under way: 1.
	Engine string `json:"engine,omitempty"`
	Depth  int    `json:"depth,omitzero"`
	// Buffered goes through the guest's page cache.
	Buffered bool   `json:"buffered,omitempty"`
	Seed     uint64 `json:"seed,omitzero"`
}

// profiles are fio's words for what is done. Creating ends with its files; the
// others go round until the time is up.
var profiles = map[string]struct {
	words     []string
	kilobytes int
	rounds    bool
}{
	"create":      {[]string{"--rw=write", "--create_on_open=1", "--fallocate=none", "--end_fsync=1"}, 1024, false},
	"sequential":  {[]string{"--rw=read"}, 1024, true},
	"random-read": {[]string{"--rw=randread", "--norandommap=1"}, 8, true},
	"random-write": {
		[]string{"--rw=randwrite", "--norandommap=1"}, 8, true,
	},
}

// Profiles names the profiles of the matrix that fio does.
func Profiles() []string { return []string{"create", "sequential", "random-read", "random-write"} }

// The bounds of a job.
const (
	maxThreads   = 64
	maxMegabytes = 1 << 20
	maxKilobytes = 16 << 10
	maxDepth     = 256
)

// Settle fills in what was not said and refuses what cannot be.
func (j *Job) Settle() error {
	p, known := profiles[j.Profile]
	if !known {
		return fault.New(fault.Invalid, fault.Config, "profile is %q: there are %s", j.Profile, strings.Join(Profiles(), ", "))
	}
	for _, d := range []struct {
		value     *int
		otherwise int
	}{{&j.Threads, 1}, {&j.Kilobytes, p.kilobytes}, {&j.Depth, 1}} {
		if *d.value == 0 {
			*d.value = d.otherwise
		}
	}
	if j.Engine == "" {
		j.Engine = "psync"
	}
	switch {
	case (j.Dir == "") == (j.Device == ""):
		return fault.New(fault.Invalid, fault.Config, "give dir or device, one of them")
	case j.Dir != "" && !plain(j.Dir), j.Device != "" && (!plain(j.Device) || !strings.HasPrefix(j.Device, "/dev/")):
		return fault.New(fault.Invalid, fault.Config, "dir is %q and device is %q: dir is an absolute path, device is below /dev, and neither has a colon or a comma", j.Dir, j.Device)
	case j.Device != "" && j.Profile == "create":
		return fault.New(fault.Invalid, fault.Config, "files are created in a dir, not on a device")
	case j.Threads < 1 || j.Threads > maxThreads:
		return fault.New(fault.Invalid, fault.Config, "threads is %d: 1 to %d are possible", j.Threads, maxThreads)
	case j.Megabytes < 1 || j.Megabytes > maxMegabytes:
		return fault.New(fault.Invalid, fault.Config, "megabytes is %d: 1 to %d are possible", j.Megabytes, maxMegabytes)
	case j.Kilobytes < 1 || j.Kilobytes > maxKilobytes || j.Kilobytes > 1024*j.Megabytes:
		return fault.New(fault.Invalid, fault.Config, "kilobytes is %d: 1 to %d are possible, and not more than the file", j.Kilobytes, maxKilobytes)
	case j.Engine != "psync" && j.Engine != "libaio" && j.Engine != "io_uring":
		return fault.New(fault.Invalid, fault.Config, "engine is %q: it is psync, libaio or io_uring", j.Engine)
	case j.Depth < 1 || j.Depth > maxDepth || j.Depth > 1 && j.Engine == "psync":
		return fault.New(fault.Invalid, fault.Config, "depth is %d: 1 to %d are possible, and with psync only 1", j.Depth, maxDepth)
	}
	return nil
}

// plain is a path that fio does not read as several.
func plain(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && !strings.ContainsAny(path, ":,\n\\")
}

// Arguments are fio's for a job that runs so long at most. Threads instead of
// processes: nothing is left when fio ends.
func (j Job) Arguments(runtime time.Duration) []string {
	p := profiles[j.Profile]
	seconds := max(1, int64(runtime.Round(time.Second)/time.Second))
	direct := 1
	if j.Buffered {
		direct = 0
	}
	args := []string{
		"--name=lab", "--thread", "--group_reporting", "--output-format=json+", "--lat_percentiles=1", "--clat_percentiles=0", "--eta=never",
		fmt.Sprintf("--status-interval=%d", Status/time.Second),
		fmt.Sprintf("--numjobs=%d", j.Threads), fmt.Sprintf("--size=%dM", j.Megabytes), fmt.Sprintf("--bs=%dk", j.Kilobytes), fmt.Sprintf("--ioengine=%s", j.Engine),
		fmt.Sprintf("--iodepth=%d", j.Depth), fmt.Sprintf("--direct=%d", direct), fmt.Sprintf("--runtime=%d", seconds),
		// Fresh chance in every block, or the store below shares or packs them.
		fmt.Sprintf("--randseed=%d", j.Seed), "--refill_buffers",
	}
	if p.rounds {
		args = append(args, "--time_based")
	}
	if j.Device != "" {
		args = append(args, "--filename="+j.Device, fmt.Sprintf("--offset_increment=%dM", j.Megabytes))
	} else {
		args = append(args, "--directory="+j.Dir, "--unlink=1")
	}
	return append(args, p.words...)
}
