package device

import "testing"

func TestParseMAC_ShortOctets(t *testing.T) {
	for given, want := range map[string]string{
		"52:54:00:aB:cd:ef": "52:54:00:ab:cd:ef",
		"0:0:6c:28:30:d5":   "00:00:6c:28:30:d5",
		"0:0:0:0:0:0":       "00:00:00:00:00:00",
	} {
		if mac, err := ParseMAC(given); err != nil || mac.String() != want {
			t.Errorf("%s: %s, %v; want %s", given, mac, err, want)
		}
	}
	for _, wrong := range []string{
		"", "52", "52:54:00:00:00", "52:54:00:00:00:00:01", "52-54-00-00-00-01", "5254.0000.0001", "52:54::00:00:01",
		"52:54:00:00:00:001", "52:54:00:00:00:+1", "52:54:00:00:00: 1", "52:54:00:00:00:0x", "52:54:00:00:00:0g", "52:54:00:00:00:01 ",
	} {
		if mac, err := ParseMAC(wrong); err == nil {
			t.Errorf("%q is read as %s", wrong, mac)
		}
	}
}
