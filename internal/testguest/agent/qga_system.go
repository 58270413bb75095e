package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/testguest/early"
)

// From the kernel's fs.h: _IOWR('X', 119, int) and _IOWR('X', 120, int).
const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878
)

func (q *qga) networkInterfaces(json.RawMessage) (any, error) {
	type address struct {
		Kind   string `json:"ip-address-type"`
		IP     string `json:"ip-address"`
		Prefix int    `json:"prefix"`
	}
	type nic struct {
		Name      string           `json:"name"`
		MAC       string           `json:"hardware-address,omitempty"`
		Addresses []address        `json:"ip-addresses,omitempty"`
		Counters  map[string]int64 `json:"statistics,omitempty"`
	}
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	found := []nic{}
	for _, i := range all {
		one := nic{Name: i.Name, MAC: i.HardwareAddr.String(), Counters: counters(i.Name)}
		if one.MAC == "" {
			one.MAC = "00:00:00:00:00:00"
		}
		addresses, _ := i.Addrs()
		for _, a := range addresses {
			ip, network, err := net.ParseCIDR(a.String())
			if err != nil {
				continue
			}
			kind, prefix := "ipv6", 0
			if ip.To4() != nil {
				kind = "ipv4"
			}
			prefix, _ = network.Mask.Size()
			one.Addresses = append(one.Addresses, address{kind, ip.String(), prefix})
		}
		found = append(found, one)
	}
	return found, nil
}

func counters(name string) map[string]int64 {
	found := map[string]int64{}
	for _, direction := range []string{"rx", "tx"} {
		for ours, kernels := range map[string]string{"bytes": "bytes", "packets": "packets", "errs": "errors", "dropped": "dropped"} {
			value := early.Trimmed("/sys/class/net/" + name + "/statistics/" + direction + "_" + kernels)
			found[direction+"-"+ours], _ = strconv.ParseInt(value, 10, 64)
		}
	}
	return found
}

// diskMount is one mounted file system that lives on a disk.
type diskMount struct{ source, at, kind string }

func diskMounts() []diskMount {
	var found []diskMount
	for text := range strings.Lines(early.Trimmed("/proc/self/mounts")) {
		fields := strings.Fields(text)
		if len(fields) >= 3 && strings.HasPrefix(fields[0], "/dev/") {
			found = append(found, diskMount{fields[0], fields[1], fields[2]})
		}
	}
	return found
}

func (q *qga) fsInfo(json.RawMessage) (any, error) {
	found := []map[string]any{}
	for _, m := range diskMounts() {
		one := map[string]any{
			"name": filepath.Base(m.source), "mountpoint": m.at, "type": m.kind,
			"disk": []struct{}{},
		}
		var s unix.Statfs_t
		if err := unix.Statfs(m.at, &s); err == nil {
			one["total-bytes"] = s.Blocks * uint64(s.Bsize)            //nolint:gosec // never negative
			one["used-bytes"] = (s.Blocks - s.Bfree) * uint64(s.Bsize) //nolint:gosec // never negative
		}
		found = append(found, one)
	}
	return found, nil
}

func (q *qga) freezeStatus(json.RawMessage) (any, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.frozen) > 0 {
		return "frozen", nil
	}
	return "thawed", nil
}

// freeze stops writes to the named mount points, or to all on disks, and returns
// their number. If one cannot be frozen, it thaws the others.
func (q *qga) freeze(arguments json.RawMessage) (any, error) {
	var a struct {
		Mountpoints []string `json:"mountpoints"`
	}
	if err := json.Unmarshal(arguments, &a); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.frozen) > 0 {
		return nil, &qgaError{"GenericError", "file systems are frozen already"}
	}
	for _, m := range diskMounts() {
		if a.Mountpoints != nil && !slices.Contains(a.Mountpoints, m.at) {
			continue
		}
		if err := ioctlMount(m.at, fiFreeze); err != nil {
			q.thawAll()
			return nil, fmt.Errorf("cannot freeze %s: %w", m.at, err)
		}
		q.frozen = append(q.frozen, m.at)
	}
	return len(q.frozen), nil
}

func (q *qga) thaw(json.RawMessage) (any, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.thawAll(), nil
}

func (q *qga) thawAll() int {
	thawed := 0
	for _, at := range q.frozen {
		if ioctlMount(at, fiThaw) == nil {
			thawed++
		}
	}
	q.frozen = nil
	return thawed
}

func ioctlMount(at string, request uint) error {
	dir, err := os.Open(at)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.IoctlSetInt(int(dir.Fd()), request, 0)
}
