package image

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf16"
)

// readCD reads a CD's label and files as a kernel does, in one of its two directory
// trees. It checks that numbers that are stored in both byte orders agree.
func readCD(t *testing.T, cd []byte, descriptor int, text func([]byte) string) (label string, files map[string]string) {
	t.Helper()
	number := func(b []byte) int {
		le, be := binary.LittleEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		if le != be {
			t.Fatalf("%d and %d do not agree", le, be)
		}
		return int(le)
	}
	d := cd[descriptor*2048:]
	if string(d[1:6]) != "CD001" || number(d[80:])*2048 != len(cd) || binary.LittleEndian.Uint16(d[128:]) != 2048 {
		t.Fatalf("no volume descriptor of %d bytes in sector %d", len(cd), descriptor)
	}
	root := d[156:]
	directory := cd[number(root[2:])*2048:][:number(root[10:])]
	for order, at := range map[binary.ByteOrder]int{binary.LittleEndian: 140, binary.BigEndian: 148} {
		table := cd[order.Uint32(d[at:])*2048:]
		if int(order.Uint32(table[2:])) != number(root[2:]) || order.Uint16(table[6:]) != 1 {
			t.Errorf("the table of paths leads to sector %d", order.Uint32(table[2:]))
		}
	}
	files = map[string]string{}
	for entries := 0; directory[0] != 0; directory = directory[directory[0]:] {
		if entries++; entries <= 2 { // the entries of the directory itself and of its parent
			continue
		}
		name := text(directory[33 : 33+int(directory[32])])
		files[name] = string(cd[number(directory[2:])*2048:][:number(directory[10:])])
	}
	return strings.TrimRight(text(d[40:72]), " "), files
}

func fromUCS2(b []byte) string {
	var units []uint16
	for ; len(b) > 1; b = b[2:] {
		units = append(units, binary.BigEndian.Uint16(b))
	}
	return string(utf16.Decode(units))
}

// Promise: H3
func TestCD_Read(t *testing.T) {
	want := map[string]string{"user-data": "#cloud-config\n", "meta-data": strings.Repeat("x", 5000), "empty": ""}
	var files []CDFile
	for name, data := range want {
		files = append(files, CDFile{name, []byte(data)})
	}
	cd, err := CD("cidata", files, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	for form, read := range map[string]struct {
		descriptor int
		text       func([]byte) string
		name       func(string) string
	}{
		"ISO 9660": {16, func(b []byte) string { return string(b) }, func(name string) string { return strings.ToUpper(name) + ";1" }},
		"Joliet":   {17, fromUCS2, func(name string) string { return name }},
	} {
		label, got := readCD(t, cd, read.descriptor, read.text)
		if label != "cidata" || len(got) != len(want) {
			t.Errorf("%s: label %q, files %v", form, label, got)
		}
		for name, data := range want {
			if got[read.name(name)] != data {
				t.Errorf("%s: %s holds %d bytes, not %d", form, name, len(got[read.name(name)]), len(data))
			}
		}
	}
	blkid, err := exec.LookPath("blkid")
	if err != nil {
		t.Skipf("no blkid to read it: %v", err)
	}
	path := filepath.Join(t.TempDir(), "cd.iso")
	if err := os.WriteFile(path, cd, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), blkid, "--probe", "--output", "export", path).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("LABEL=cidata\n")) || !bytes.Contains(out, []byte("TYPE=iso9660\n")) {
		t.Errorf("blkid reads %v: %s", err, out)
	}
}

func TestCD_Refused(t *testing.T) {
	many := make([]CDFile, 17)
	for i := range many {
		many[i].Name = string(rune('a' + i))
	}
	for what, c := range map[string]struct {
		label string
		files []CDFile
	}{
		"no label":       {"", nil},
		"a long label":   {strings.Repeat("x", 17), nil},
		"a path":         {"x", []CDFile{{Name: "../x"}}},
		"a long name":    {"x", []CDFile{{Name: strings.Repeat("x", 25)}}},
		"the same twice": {"x", []CDFile{{Name: "a"}, {Name: "a"}}},
		"too many":       {"x", many},
		"too much":       {"x", []CDFile{{"a", make([]byte, maxCDBytes+1)}}},
	} {
		if _, err := CD(c.label, c.files, time.Time{}); err == nil {
			t.Errorf("%s was taken", what)
		}
	}
	full := many[:16]
	for i := range full {
		full[i].Name = strings.Repeat("n", 23) + string(rune('a'+i))
	}
	cd, err := CD("x", full, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if _, files := readCD(t, cd, 17, fromUCS2); len(files) != 16 {
		t.Errorf("%d of 16 files are read back", len(files))
	}
}
