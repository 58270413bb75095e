package resources

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// describe writes a description of flash firmware; @ stands for the folder.
func describe(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text = strings.ReplaceAll(text, "@", dir)
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestFirmwares(t *testing.T) {
	vendor, admin := filepath.Join(t.TempDir(), "vendor"), filepath.Join(t.TempDir(), "admin")
	describe(t, vendor, "CODE.fd", "code")
	describe(t, vendor, "60-plain.json", `{"interface-types": ["uefi"], "features": ["acpi-s3"],
		"mapping": {"device": "flash", "executable": {"filename": "@/CODE.fd", "format": "raw"},
			"nvram-template": {"filename": "@/VARS.fd", "format": "raw"}},
		"targets": [{"architecture": "x86_64", "machines": ["pc-i440fx-*", "pc-q35-*"]}]}`)
	describe(t, vendor, "50-secure.json", `{"interface-types": ["uefi"], "features": ["secure-boot", "requires-smm"],
		"mapping": {"device": "flash", "executable": {"filename": "@/CODE.fd", "format": "raw"}},
		"targets": [{"architecture": "x86_64", "machines": ["pc-q35-*"]}]}`)
	describe(t, vendor, "40-hidden.json", `{"interface-types": ["uefi"],
		"mapping": {"device": "memory", "filename": "@/CODE.fd"}, "targets": []}`)
	describe(t, vendor, "30-missing.json", `{"interface-types": ["uefi"],
		"mapping": {"device": "flash", "executable": {"filename": "@/GONE.fd", "format": "raw"}}}`)
	describe(t, vendor, "20-bios.json", `{"interface-types": ["bios"], "mapping": {"device": "memory", "filename": "@/CODE.fd"}}`)
	describe(t, vendor, "10-broken.json", `{"interface-types": `)
	describe(t, vendor, "70-stateless.json", `{"interface-types": ["uefi"], "features": ["amd-sev-es"],
		"mapping": {"device": "flash", "mode": "stateless", "executable": {"filename": "@/CODE.fd", "format": "raw"}},
		"targets": [{"architecture": "x86_64", "machines": ["pc-q35-*"]}]}`)
	describe(t, vendor, "80-combined.json", `{"interface-types": ["uefi"], "features": ["combined"],
		"mapping": {"device": "flash", "mode": "combined", "executable": {"filename": "@/CODE.fd", "format": "raw"}}}`)
	describe(t, admin, "40-hidden.json", "")

	list, err := FirmwaresIn(vendor, admin)
	if err == nil || !strings.Contains(err.Error(), "10-broken.json") {
		t.Errorf("a description that cannot be understood gives %v", err)
	}
	var features []string
	for _, f := range list {
		features = append(features, strings.Join(f.Features, " "))
	}
	if diff := cmp.Diff([]string{"secure-boot requires-smm", "acpi-s3", "amd-sev-es"}, features); diff != "" {
		t.Fatal(diff)
	}
	secure, plain := list[0], list[1]
	if !list[2].Stateless || plain.Stateless {
		t.Error("which firmware keeps no variables is not told")
	}
	if !secure.Has("secure-boot") || secure.Supports("x86_64", "pc-i440fx-7.2") || !secure.Supports("x86_64", "pc-q35-7.2") {
		t.Errorf("the secure one is %+v", secure)
	}
	if !plain.Flash || plain.Template != filepath.Join(vendor, "VARS.fd") || plain.Supports("aarch64", "pc-q35-7.2") || !plain.Supports("x86_64", "pc-i440fx-7.2") {
		t.Errorf("the plain one is %+v", plain)
	}
}
