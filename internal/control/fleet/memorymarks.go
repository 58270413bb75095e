package fleet

import (
	"cmp"
	"strconv"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// MemoryMarks tell the memory manager how to treat a guest. The zero value leaves all to the host's settings:
//
//	<lodge:memory shares="2000" floor="512MiB" mode="advise"/>
type MemoryMarks struct {
	// Shares weigh the guest against others when the needs of all do not fit, by its size; 0: UsualShares.
	Shares int
	// Floor is the least memory that the balloon leaves the guest, in bytes. 0: the memory that its user last asked for.
	Floor uint64
	// Mode is the guest's own; "": the host's. The stricter of both counts.
	Mode MemoryMode
}

// MemoryMode is what the memory manager may do.
type MemoryMode string

// Modes.
const (
	// MemoryOff: it does not look at guests.
	MemoryOff MemoryMode = "off"
	// MemoryAdvise: it decides, shows its decisions and moves nothing.
	MemoryAdvise MemoryMode = "advise"
	// MemoryAct: it moves balloons.
	MemoryAct MemoryMode = "act"
)

// ParseMemoryMode parses a mode as a user writes it.
func ParseMemoryMode(text string) (MemoryMode, error) {
	switch m := MemoryMode(text); m {
	case MemoryOff, MemoryAdvise, MemoryAct:
		return m, nil
	}
	return "", fault.New(fault.Invalid, fault.Call, "the mode of the memory manager is off, advise or act, not %q", text)
}

// UsualShares are the shares of a guest without marks.
const UsualShares = 1000

// mostShares bounds the shares of a guest.
const mostShares = 100 * UsualShares

// Weight returns the guest's shares.
func (m MemoryMarks) Weight() int { return cmp.Or(m.Shares, UsualShares) }

func parseMemoryMarks(e *xmltree.Element) (m MemoryMarks, err error) {
	for _, a := range []struct {
		name  string
		parse func(string) error
	}{
		{"shares", func(text string) error { m.Shares, err = parseShares(text); return err }},
		{"floor", func(text string) error { m.Floor, err = ParseSize(text); return err }},
		{"mode", func(text string) error { m.Mode, err = ParseMemoryMode(text); return err }},
	} {
		if text := e.Attr(a.name); text != "" {
			if err := a.parse(text); err != nil {
				return MemoryMarks{}, wrongMarks("have a wrong %s of memory: %v", a.name, err)
			}
		}
	}
	return m, nil
}

func parseShares(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > mostShares {
		return 0, fault.New(fault.Invalid, fault.Metadata, "shares are a number from 1 to %d (usual: %d), not %q", mostShares, UsualShares, text)
	}
	return n, nil
}

// attrs returns the attributes of the element; nil: there is nothing to say.
func (m MemoryMarks) attrs() (all []xmltree.Attr) {
	if m.Shares != 0 {
		all = append(all, xmltree.Attr{Name: "shares", Value: strconv.Itoa(m.Shares)})
	}
	if m.Floor != 0 {
		all = append(all, xmltree.Attr{Name: "floor", Value: formatSize(m.Floor)})
	}
	if m.Mode != "" {
		all = append(all, xmltree.Attr{Name: "mode", Value: string(m.Mode)})
	}
	return all
}

// formatSize writes a size in the largest unit that divides it. Sizes of marks are multiples of 1 KiB.
func formatSize(bytes uint64) string {
	for _, unit := range []string{"TiB", "GiB", "MiB"} {
		if bytes%units[unit] == 0 {
			return strconv.FormatUint(bytes/units[unit], 10) + unit
		}
	}
	return strconv.FormatUint(bytes/units["KiB"], 10) + "KiB"
}
