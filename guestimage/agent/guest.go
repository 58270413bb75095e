package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/guestimage/line"
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

// facts answers who the guest is and how it does.
func (g *guest) facts() *line.Facts {
	host, _ := os.Hostname()
	f := &line.Facts{
		Hostname: host, UpAfter: g.upAfter, Age: age(),
		Kernel: readTrimmed("/proc/sys/kernel/osrelease"),
		BootID: readTrimmed("/proc/sys/kernel/random/boot_id"),
		CPUs:   len(onlineCPUs()),
	}
	for field := range strings.Lines(readTrimmed("/proc/meminfo")) {
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
		if state := readTrimmed(dir + "/online"); state == "" || state == "1" {
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

// kernelArguments splits the kernel's command line.
func kernelArguments() map[string]string {
	args := map[string]string{}
	for word := range strings.FieldsSeq(readTrimmed("/proc/cmdline")) {
		key, value, _ := strings.Cut(word, "=")
		args[key] = value
	}
	return args
}

func readTrimmed(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(text))
}

// mountAll makes the kernel's file systems and two scratch places.
func mountAll() error {
	for _, m := range []struct{ kind, at, options string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"devtmpfs", "/dev", "mode=0755"},
		{"devpts", "/dev/pts", "mode=0620,ptmxmode=0666"},
		{"tmpfs", "/run", "mode=0755"},
		{"tmpfs", "/tmp", "mode=1777"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, m.options); err != nil {
			return fmt.Errorf("cannot mount %s: %w", m.at, err)
		}
	}
	return nil
}
