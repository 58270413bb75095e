package qemu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadFirmware(t *testing.T) {
	dir := t.TempDir()
	code := write(t, filepath.Join(dir, "code.fd"), "x")
	vars := write(t, filepath.Join(dir, "vars.fd"), "x")
	describe := func(name, feature, code string) string {
		return `{"description": "` + name + `", "interface-types": ["uefi"],
			"mapping": {"device": "flash", "executable": {"filename": "` + code + `", "format": "raw"},
				"nvram-template": {"filename": "` + vars + `", "format": "raw"}},
			"targets": [{"architecture": "x86_64", "machines": ["pc-q35-*"]}], "features": ["` + feature + `"], "tags": []}`
	}
	shipped, local := filepath.Join(dir, "usr"), filepath.Join(dir, "etc")
	write(t, filepath.Join(shipped, "50-second.json"), describe("second", "secure-boot", code))
	write(t, filepath.Join(shipped, "40-first.json"), describe("first", "acpi-s3", code))
	write(t, filepath.Join(shipped, "60-masked.json"), describe("masked", "x", code))
	write(t, filepath.Join(shipped, "70-gone.json"), describe("gone", "x", code+".not"))
	write(t, filepath.Join(shipped, "80-broken.json"), "{")
	write(t, filepath.Join(shipped, "90-strange.json"), `{"mapping": {"device": "cloud"}}`)
	write(t, filepath.Join(shipped, "95-relative.json"), describe("relative", "x", "code.fd"))
	write(t, filepath.Join(shipped, "README"), "not json")
	write(t, filepath.Join(local, "60-masked.json"), "")
	write(t, filepath.Join(local, "40-first.json"), describe("first, locally", "acpi-s3", code))

	found, err := ReadFirmware(shipped, local, filepath.Join(dir, "none"))
	var names []string
	for _, f := range found {
		names = append(names, f.Description)
	}
	if got := strings.Join(names, "|"); got != "first, locally|second" {
		t.Fatalf("found %q", got)
	}
	for _, bad := range []string{"80-broken.json", "90-strange.json", "95-relative.json"} {
		if err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("nothing is said about %s: %v", bad, err)
		}
	}
	f := found[1]
	if f.Path != code || f.NVRAM != vars || f.Mode != "split" || !f.Has("secure-boot") || !f.Is("uefi") {
		t.Errorf("got %+v", f)
	}
	for machine, want := range map[string]bool{"pc-q35-7.2": true, "pc-i440fx-7.2": false, "microvm": false} {
		if f.Fits("x86_64", machine) != want || f.Fits("aarch64", machine) {
			t.Errorf("fits %s: %v", machine, !want)
		}
	}
}

func TestFirmwareOfThisHost(t *testing.T) {
	if _, err := os.Stat("/usr/share/qemu/firmware"); err != nil {
		t.Skip("needs firmware descriptions, such as those of package ovmf")
	}
	found, err := ReadFirmware(FirmwareDirs...)
	if err != nil || len(found) == 0 {
		t.Fatalf("found %d, %v", len(found), err)
	}
}

func FuzzFirmware(f *testing.F) {
	f.Add([]byte(`{"mapping": {"device": "memory", "filename": "/x"}, "targets": [{"architecture": "x86_64", "machines": ["[", "pc-*"]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if fw, err := parseFirmware(text); err == nil {
			fw.Fits("x86_64", "pc-q35-7.2")
			if !filepath.IsAbs(fw.Path) {
				t.Fatalf("path %q", fw.Path)
			}
		}
	})
}
