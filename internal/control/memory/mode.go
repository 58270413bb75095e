package memory

import "github.com/lodge-kvm/lodge/internal/base/fault"

// Mode is what the manager may do.
type Mode string

// Modes.
const (
	// Off: it does not look at guests.
	Off Mode = "off"
	// Advise: it decides, shows its decisions and moves nothing.
	Advise Mode = "advise"
	// Act: it moves balloons.
	Act Mode = "act"
)

// ParseMode parses a mode as a user writes it.
func ParseMode(text string) (Mode, error) {
	switch m := Mode(text); m {
	case Off, Advise, Act:
		return m, nil
	}
	return "", fault.New(fault.Invalid, fault.Call, "the mode of the memory manager is off, advise or act, not %q", text)
}
