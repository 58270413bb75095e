package kernel

import (
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/mountinfo"
)

// SwapArea is a device or file that the host swaps to (swapon(2)).
type SwapArea struct {
	// Path is as the kernel has it. " (deleted)" follows the path of a file that was removed.
	Path string
	// File: it is a file, not a device of its own. Disks in memory (zram) are devices.
	File bool
	// Size and Used are in bytes.
	Size, Used uint64
	// Priority orders areas: the highest is used first, and equal ones in turn. Areas whose administrator gave
	// none have negative ones.
	Priority int
}

// maxSwapAreas is more areas than the kernel can have (32, less some that it uses itself).
const maxSwapAreas = 64

// SwapAreas reads /proc/swaps (Documentation/filesystems/proc.rst); none on a host without swap.
func (r Root) SwapAreas() ([]SwapArea, error) {
	text, err := r.read("proc/swaps")
	if err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read where the host swaps to")
	}
	var areas []SwapArea
	for line := range strings.Lines(text) {
		area, ok := parseSwapArea(strings.TrimSuffix(line, "\n"))
		if !ok { // the heading
			continue
		}
		if len(areas) == maxSwapAreas {
			return nil, fault.New(fault.Failed, fault.Host, "cannot understand /proc/swaps: it has more than %d swap areas", maxSwapAreas)
		}
		areas = append(areas, area)
	}
	return areas, nil
}

// parseSwapArea splits "path kind KiB KiB priority". Blanks and tabs separate fields; the kernel escapes those, and
// only those, in the path.
func parseSwapArea(line string) (area SwapArea, ok bool) {
	fields := strings.FieldsFunc(line, func(c rune) bool { return c == ' ' || c == '\t' })
	if len(fields) != 5 || fields[1] != "partition" && fields[1] != "file" {
		return area, false
	}
	size, err1 := strconv.ParseUint(fields[2], 10, 54)
	used, err2 := strconv.ParseUint(fields[3], 10, 54)
	priority, err3 := strconv.ParseInt(fields[4], 10, 32)
	return SwapArea{
		Path: mountinfo.Unescape(fields[0]), File: fields[1] == "file", Size: size << 10, Used: used << 10, Priority: int(priority),
	}, err1 == nil && err2 == nil && err3 == nil
}

// zswapDir holds the settings of zswap, the kernel's compressed store of swapped pages in RAM
// (Documentation/admin-guide/mm/zswap.rst).
const zswapDir = "sys/module/zswap/parameters"

// Zswap is the state of zswap.
type Zswap struct {
	Enabled bool
	// Compressor is the algorithm's name, such as lzo or zstd.
	Compressor string
	// MaxPoolPercent bounds the store, in percent of RAM.
	MaxPoolPercent uint64
	// Shrinker moves cold pages of the store to the swap device before the store is full.
	Shrinker bool
	// Held is the RAM that the store takes and Stored the size of the pages in it, in bytes (Zswap and Zswapped of
	// /proc/meminfo). They may be above zero after it was switched off.
	Held, Stored uint64
	// Absent names the files and lines that this kernel does not have. Their fields are zero.
	Absent []string
}

// Zswap reads the settings of zswap and its use. Unsupported on a kernel without it.
func (r Root) Zswap() (Zswap, error) {
	if !r.exists(zswapDir) {
		return Zswap{}, fault.New(fault.Unsupported, fault.Host, "this kernel cannot compress swapped pages: it is built without CONFIG_ZSWAP")
	}
	var z Zswap
	for name, parse := range map[string]func(string) bool{
		"enabled": parseYes(&z.Enabled), "max_pool_percent": parseUint(&z.MaxPoolPercent), "shrinker_enabled": parseYes(&z.Shrinker),
		"compressor": func(text string) bool { z.Compressor = text; return text != "" },
	} {
		text, err := r.read(zswapDir, name)
		if fault.Is(err, fault.NotFound) {
			z.Absent = append(z.Absent, name)
			continue
		}
		if err != nil {
			return Zswap{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read /%s/%s", zswapDir, name)
		}
		if text = strings.TrimSpace(text); !parse(text) {
			return Zswap{}, fault.New(fault.Failed, fault.Host, "cannot understand /%s/%s: it holds %.64q", zswapDir, name, text)
		}
	}
	text, err := r.read("proc/meminfo")
	if err != nil {
		return Zswap{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read the host's memory")
	}
	z.Absent = append(z.Absent, kibibytes(text, map[string]*uint64{"Zswap": &z.Held, "Zswapped": &z.Stored})...)
	slices.Sort(z.Absent)
	return z, nil
}

func parseYes(into *bool) func(string) bool {
	return func(text string) bool {
		*into = text == "Y"
		return text == "Y" || text == "N"
	}
}

// SetZswap switches zswap on or off. Off, it takes no more pages, and keeps those it has until they are needed
// or swapoff(8) takes them out.
func (r Root) SetZswap(on bool) error {
	value := "N"
	if on {
		value = "Y"
	}
	return r.setExactly(value, zswapDir, "enabled")
}

const swappinessFile = "proc/sys/vm/swappiness"

// maxSwappiness is the highest swappiness of the kernel.
const maxSwappiness = 200

// Swappiness reads how the kernel weighs swapping against dropping caches: from 0 to 200, where 100 says that both
// cost the same (Documentation/admin-guide/sysctl/vm.rst).
func (r Root) Swappiness() (uint64, error) {
	value, err := r.sysctl("vm/swappiness")
	if err == nil && value > maxSwappiness {
		err = fault.New(fault.Failed, fault.Host, "cannot understand /%s: it holds %.64q", swappinessFile, r.attr(swappinessFile))
	}
	return value, err
}

// SetSwappiness sets it, and reads it back.
func (r Root) SetSwappiness(value uint64) error {
	if value > maxSwappiness {
		return fault.New(fault.Invalid, fault.Host, "cannot set /%s to %d: its range is 0 to %d", swappinessFile, value, maxSwappiness)
	}
	return r.setExactly(decimal(value), swappinessFile)
}

// kibibytes reads lines "key: N kB" into the fields of the keys, in bytes. It returns the keys without a
// line, in no order.
func kibibytes(text string, fields map[string]*uint64) (absent []string) {
	found := map[string]bool{}
	keyed(text, ":", func(key, value string) {
		if into, has := fields[key]; has {
			if kib, err := strconv.ParseUint(strings.TrimSuffix(value, " kB"), 10, 54); err == nil {
				*into = kib << 10
				found[key] = true
			}
		}
	})
	for key := range fields {
		if !found[key] {
			absent = append(absent, key)
		}
	}
	return absent
}
