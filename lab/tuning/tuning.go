// Package tuning changes the host's settings for a while: those that the papers
// changed for many guests. What each setting was is told to a journal before it
// is changed, so that it is put back whatever happens.
//
// What belongs here: which settings there are, reading, changing and restoring
// them. What does not: when, and what they bring.
package tuning

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Change is one file of the kernel's that was given another value.
type Change struct {
	Path string `json:"path"` // below the root
	Old  string `json:"old"`
	New  string `json:"new"`
}

// Unavailable says that this host does not have what is to be changed.
type Unavailable struct{ Reason string }

func (u *Unavailable) Error() string { return "not on this host: " + u.Reason }

// settings are the files, by name and value of a tuning. A path with a star is
// every file that matches.
var settings = map[string]map[string]map[string]string{
	// Frames between guests by-pass the host's packet filter. What that gives up: no rule
	// of iptables sees them.
	"bridge-netfilter": {
		"off": bridge("0"),
		"on":  bridge("1"),
	},
	// The network set for very many guests.
	"network": {"many-guests": {
		"proc/sys/net/ipv4/tcp_max_tw_buckets":       "4000000",
		"proc/sys/net/core/rmem_max":                 "67108864",
		"proc/sys/net/core/wmem_max":                 "67108864",
		"proc/sys/net/core/optmem_max":               "67108864",
		"proc/sys/net/ipv4/tcp_rmem":                 "4096 16777216 67108864",
		"proc/sys/net/ipv4/tcp_wmem":                 "4096 16777216 67108864",
		"proc/sys/net/core/somaxconn":                "640000",
		"proc/sys/net/core/netdev_max_backlog":       "250000",
		"proc/sys/net/ipv4/tcp_max_syn_backlog":      "20000",
		"proc/sys/net/ipv4/ip_local_port_range":      "4096 65535",
		"proc/sys/net/ipv4/tcp_timestamps":           "0",
		"proc/sys/net/ipv4/tcp_dsack":                "0",
		"proc/sys/net/ipv4/tcp_sack":                 "0",
		"proc/sys/net/ipv4/tcp_window_scaling":       "0",
		"proc/sys/net/ipv4/neigh/default/gc_thresh3": "65536",
	}},
	"io-scheduler": {
		"deadline": {"sys/block/*/queue/scheduler": "mq-deadline"},
		"none":     {"sys/block/*/queue/scheduler": "none"},
		"bfq":      {"sys/block/*/queue/scheduler": "bfq"},
		"kyber":    {"sys/block/*/queue/scheduler": "kyber"},
	},
	"ksm": {
		"on":  {"sys/kernel/mm/ksm/run": "1"},
		"off": {"sys/kernel/mm/ksm/run": "0"},
	},
	"numa-balancing": {
		"on":  {"proc/sys/kernel/numa_balancing": "1"},
		"off": {"proc/sys/kernel/numa_balancing": "0"},
	},
}

func bridge(value string) map[string]string {
	return map[string]string{
		"proc/sys/net/bridge/bridge-nf-call-iptables":  value,
		"proc/sys/net/bridge/bridge-nf-call-ip6tables": value,
		"proc/sys/net/bridge/bridge-nf-call-arptables": value,
	}
}

// AsFound is the value of a tuning that changes nothing.
const AsFound = "as-found"

// Check refuses a tuning that there is not.
func Check(name, value string) error {
	values, ok := settings[name]
	if !ok {
		return fault.New(fault.Invalid, fault.Host, "there is no host tuning %q: %s are there", name, strings.Join(slices.Sorted(maps.Keys(settings)), ", "))
	}
	if _, ok := values[value]; !ok && value != AsFound {
		return fault.New(fault.Invalid, fault.Host, "host tuning %s has no value %q: %s and %s are there", name, value, strings.Join(slices.Sorted(maps.Keys(values)), ", "), AsFound)
	}
	return nil
}

// Host is a tree of the kernel's settings: Root is "/" of this host.
type Host struct{ Root string }

// Plan reads what would be changed: only files whose value differs. What this host does
// not have of it, or does not let be changed, is lacking, in words; a tuning of which
// it has nothing is Unavailable. Nothing is changed yet.
func (h Host) Plan(name, value string) (all []Change, lacking []string, err error) {
	if err := Check(name, value); err != nil {
		return nil, nil, err
	}
	files := settings[name][value]
	found := len(files) == 0
	for _, pattern := range slices.Sorted(maps.Keys(files)) {
		paths, _ := filepath.Glob(filepath.Join(h.Root, pattern))
		if len(paths) == 0 {
			lacking = append(lacking, pattern+" is not there")
		}
		for _, path := range paths {
			relative, _ := filepath.Rel(h.Root, path)
			c, offered, err := h.look(relative, files[pattern])
			if err != nil {
				return nil, nil, err
			}
			if offered && c.Old != c.New {
				if why := h.closed(relative); why != nil {
					lacking = append(lacking, fmt.Sprintf("%s cannot be changed: %v", relative, why))
					continue
				}
				all = append(all, c)
			}
			found = found || offered
		}
	}
	if !found {
		return nil, nil, &Unavailable{fmt.Sprintf("the kernel offers nothing of %s=%s: %s", name, value, cmp.Or(strings.Join(lacking, "; "), "no device has that choice"))}
	}
	return all, lacking, nil
}

// look reads one file. A file that lists its choices, as "none [bfq]", must offer
// the value; a device of which the file says none alone takes no scheduler.
func (h Host) look(path, value string) (c Change, offered bool, err error) {
	old, choices, err := h.read(path)
	if err != nil {
		return c, false, err
	}
	if choices == nil && filepath.Base(path) == "scheduler" {
		choices = []string{old}
	}
	return Change{path, old, value}, choices == nil || slices.Contains(choices, value), nil
}

// closed says why a file cannot be written: of the network's settings, some are the
// whole host's and closed in a name space.
func (h Host) closed(path string) error {
	f, err := os.OpenFile(filepath.Join(h.Root, path), os.O_WRONLY, 0)
	if err != nil {
		if failed, ok := errors.AsType[*fs.PathError](err); ok {
			return failed.Err
		}
		return err
	}
	return f.Close()
}

func (h Host) read(path string) (value string, choices []string, err error) {
	text, err := os.ReadFile(filepath.Join(h.Root, path))
	if err != nil {
		return "", nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read the setting %s", path)
	}
	words := strings.Fields(string(text))
	for i, word := range words {
		if inner, ok := strings.CutPrefix(word, "["); ok {
			value = strings.TrimSuffix(inner, "]")
			words[i] = value
		}
	}
	if value != "" {
		return value, words, nil
	}
	return strings.Join(words, " "), nil, nil
}

// Apply makes changes that were planned and journalled.
func (h Host) Apply(changes []Change) error {
	for _, c := range changes {
		if err := h.write(c.Path, c.New); err != nil {
			return err
		}
	}
	return nil
}

// Restore takes changes back, last first. A setting that somebody else has
// changed meanwhile is left, and told.
func (h Host) Restore(changes []Change) (left []string, err error) {
	for _, c := range slices.Backward(changes) {
		now, _, failure := h.read(c.Path)
		switch {
		case errors.Is(failure, fs.ErrNotExist): // the device or module has gone
		case failure != nil:
			err = errors.Join(err, failure)
		case now == c.Old:
		case now != c.New:
			left = append(left, fmt.Sprintf("%s is now %q, which the lab did not write: it is left, and was %q before", c.Path, now, c.Old))
		default:
			err = errors.Join(err, h.write(c.Path, c.Old))
		}
	}
	return left, err
}

func (h Host) write(path, value string) error {
	f, err := os.OpenFile(filepath.Join(h.Root, path), os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.WriteString(value + "\n")
		err = errors.Join(err, f.Close())
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot change the setting %s to %q", path, value)
}

// Notable reads the settings that measured values depend on, for the record.
func (h Host) Notable() map[string]string {
	all := map[string]string{}
	for _, values := range settings {
		for _, files := range values {
			for pattern := range files {
				paths, _ := filepath.Glob(filepath.Join(h.Root, pattern))
				for _, path := range paths {
					relative, _ := filepath.Rel(h.Root, path)
					if value, _, err := h.read(relative); err == nil {
						all[relative] = value
					}
				}
			}
		}
	}
	for _, path := range []string{"sys/kernel/mm/transparent_hugepage/enabled", "proc/sys/vm/swappiness", "proc/sys/vm/nr_hugepages", "sys/devices/system/cpu/smt/control", "proc/sys/fs/aio-max-nr"} {
		if value, _, err := h.read(path); err == nil {
			all[path] = value
		}
	}
	return all
}
