package main

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/testguest/early"
	"github.com/lodge-kvm/lodge/internal/testguest/line"
)

// guest is the machine as its first process sees it.
type guest struct {
	family  *family
	args    map[string]string // kernel command line
	upAfter float64           // seconds; set before anything answers

	seen    sync.Mutex
	present map[string]bool // devices being served, by "subsystem/name"

	ending sync.Once
}

// facts returns the guest's identity and state.
func (g *guest) facts() *line.Facts {
	host, _ := os.Hostname()
	f := &line.Facts{
		Hostname: host, UpAfter: g.upAfter, Age: age(),
		Kernel: early.Trimmed("/proc/sys/kernel/osrelease"),
		BootID: early.Trimmed("/proc/sys/kernel/random/boot_id"),
		CPUs:   len(onlineCPUs()),
	}
	for field := range strings.Lines(early.Trimmed("/proc/meminfo")) {
		if rest, ok := strings.CutPrefix(field, "MemTotal:"); ok {
			f.MemoryKiB, _ = strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		}
	}
	disks, _ := os.ReadDir("/sys/class/block")
	for _, d := range disks {
		f.Disks = append(f.Disks, d.Name())
	}
	return f
}

// interfaces lists the network interfaces with their addresses.
func (g *guest) interfaces() []line.Interface {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	var found []line.Interface
	for _, i := range all {
		one := line.Interface{Name: i.Name, MAC: i.HardwareAddr.String()}
		addresses, _ := i.Addrs()
		for _, a := range addresses {
			one.Addresses = append(one.Addresses, a.String())
		}
		found = append(found, one)
	}
	return found
}

// onlineCPUs gives the numbers of the processors in use.
func onlineCPUs() []int {
	dirs, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*")
	var online []int
	for _, dir := range dirs {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "cpu"))
		if err != nil {
			continue
		}
		// A processor that cannot be taken away has no such file.
		if state := early.Trimmed(dir + "/online"); state == "" || state == "1" {
			online = append(online, n)
		}
	}
	return online
}

// end stops the machine: programs get a moment to leave, disks are synced. It
// does not return.
func (g *guest) end(how int) {
	g.ending.Do(func() {
		g.say("going down")
		_ = unix.Kill(-1, unix.SIGTERM)
		_ = unix.Kill(-1, unix.SIGHUP)
		select {
		case <-g.family.empty():
		case <-time.After(500 * time.Millisecond):
			_ = unix.Kill(-1, unix.SIGKILL)
		}
		unix.Sync()
		if err := unix.Reboot(how); err != nil {
			g.say("cannot go down: %v", err)
		}
	})
	select {}
}
