package console

import (
	"context"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Key is a key of a guest's keyboard, by QEMU's numbering.
type Key struct {
	Type string `json:"type"` // qcode: Data is QEMU's name; number: an XT scan code
	Data any    `json:"data"`
}

// maxScanCode is the highest scan code: seven bits, and one for the second set.
const maxScanCode = 0xff

// ScanKey returns the key of an XT scan code in one byte. Keys with the prefix 0xe0 have the highest bit
// set.
func ScanKey(code uint32) (Key, error) {
	if code == 0 || code > maxScanCode {
		return Key{}, fault.New(fault.Invalid, fault.Call, "scan codes are 1 to %d, not %d", maxScanCode, code)
	}
	return Key{Type: "number", Data: code}, nil
}

// LinuxKey returns the key of a Linux key code.
func LinuxKey(code uint32) (Key, error) {
	if name := linuxKeys[code]; name != "" {
		return Key{Type: "qcode", Data: name}, nil
	}
	return Key{}, fault.New(fault.Invalid, fault.Call, "QEMU's keyboards have no key for Linux key code %d", code)
}

// linuxKeys maps Linux's key codes to QEMU's names.
var linuxKeys = numberRows(map[uint32]string{
	1:   "esc 1 2 3 4 5 6 7 8 9 0 minus equal backspace tab",
	16:  "q w e r t y u i o p bracket_left bracket_right ret ctrl",
	30:  "a s d f g h j k l semicolon apostrophe grave_accent shift backslash",
	44:  "z x c v b n m comma dot slash shift_r kp_multiply alt spc caps_lock",
	59:  "f1 f2 f3 f4 f5 f6 f7 f8 f9 f10 num_lock scroll_lock",
	71:  "kp_7 kp_8 kp_9 kp_subtract kp_4 kp_5 kp_6 kp_add kp_1 kp_2 kp_3 kp_0 kp_decimal",
	86:  "less f11 f12 ro",
	91:  "hiragana henkan katakanahiragana muhenkan",
	96:  "kp_enter ctrl_r kp_divide sysrq alt_r lf home up pgup left right end down pgdn insert delete",
	113: "audiomute volumedown volumeup power kp_equals",
	119: "pause",
	121: "kp_comma lang1 lang2 yen meta_l meta_r compose",
	128: "stop again props undo front copy open paste find cut help menu calculator",
	142: "sleep wake",
	155: "mail ac_bookmarks computer ac_back ac_forward",
	163: "audionext audioplay audioprev audiostop",
	172: "ac_home ac_refresh",
	210: "print",
	226: "mediaselect",
})

// numberRows numbers the names of each row, beginning with the row's key.
func numberRows(rows map[uint32]string) map[uint32]string {
	names := map[uint32]string{}
	for first, row := range rows {
		for i, name := range strings.Fields(row) {
			names[first+uint32(i)] = name
		}
	}
	return names
}

// SendKeys presses keys together and releases them after the hold time (0: QEMU's default). It returns when
// they are pressed.
func SendKeys(ctx context.Context, g *machine.Guest, sc scope.Scope, keys []Key, hold time.Duration) error {
	return g.Perform(ctx, sc, lifecycle.Change, domain.JobModify, machine.ModifyLimit, func() (machine.Work, error) {
		r := g.Instance
		return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
			s, err := r.Monitor()
			if err != nil {
				return nil, err
			}
			args := map[string]any{"keys": keys}
			if hold > 0 {
				args["hold-time"] = hold.Milliseconds()
			}
			return nil, s.Execute(ctx, "send-key", args, nil)
		}, nil
	})
}
