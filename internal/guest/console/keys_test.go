package console

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestLinuxKeys compares the key numbers with the kernel's headers, where they are installed. It covers every key
// with two names that can be matched.
func TestLinuxKeys(t *testing.T) {
	const header = "/usr/include/linux/input-event-codes.h"
	f, err := os.Open(header)
	if err != nil {
		t.Skipf("no kernel headers: %v", err)
	}
	defer f.Close()
	known := map[string]string{
		"ret": "enter", "spc": "space", "ctrl": "leftctrl", "ctrl_r": "rightctrl", "shift": "leftshift", "shift_r": "rightshift",
		"alt": "leftalt", "alt_r": "rightalt", "meta_l": "leftmeta", "meta_r": "rightmeta", "bracket_left": "leftbrace",
		"bracket_right": "rightbrace", "grave_accent": "grave", "pgup": "pageup", "pgdn": "pagedown", "lf": "linefeed",
		"less": "102nd", "kp_multiply": "kpasterisk", "kp_subtract": "kpminus", "kp_add": "kpplus", "kp_decimal": "kpdot",
		"kp_divide": "kpslash", "kp_equals": "kpequal", "audiomute": "mute", "lang1": "hangeul", "lang2": "hanja",
		"calculator": "calc", "wake": "wakeup", "ac_home": "homepage", "audionext": "nextsong", "audioprev": "previoussong",
		"audioplay": "playpause", "audiostop": "stopcd", "mediaselect": "media",
	}
	codes := map[string]uint32{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) < 3 || !strings.HasPrefix(words[1], "KEY_") {
			continue
		}
		if code, err := strconv.ParseUint(words[2], 0, 32); err == nil {
			codes[strings.ToLower(strings.TrimPrefix(words[1], "KEY_"))] = uint32(code)
		}
	}
	for code, name := range linuxKeys {
		kernel := known[name]
		if kernel == "" {
			kernel = strings.NewReplacer("_", "", "ac_", "").Replace(name)
		}
		if got, ok := codes[kernel]; !ok || got != code {
			t.Errorf("%s (KEY_%s): the kernel says %d (%v), not %d", name, strings.ToUpper(kernel), got, ok, code)
		}
	}
	if _, err := LinuxKey(84); err == nil {
		t.Error("a key that is none was found")
	}
}

func TestScanKey(t *testing.T) {
	for code, fine := range map[uint32]bool{0: false, 1: true, 0xff: true, 0x100: false} {
		if _, err := ScanKey(code); (err == nil) != fine {
			t.Errorf("%#x: %v", code, err)
		}
	}
}
