package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// installedFirmware is what Debian's package ovmf describes, and a qcow2 and a
// stateless image after it. Images are called by the folder's path.
func installedFirmware(t *testing.T) (all []resources.Firmware, dir string) {
	t.Helper()
	dir = t.TempDir()
	describe := func(file, code, format, vars, features, machines, mode string) {
		t.Helper()
		template := ""
		if vars != "" {
			template = fmt.Sprintf(`, "nvram-template": {"filename": "%s/%s", "format": "%s"}`, dir, vars, format)
		}
		text := fmt.Sprintf(`{"interface-types": ["uefi"], "features": [%s], "targets": [{"architecture": "x86_64", "machines": [%s]}],
			"mapping": {"device": "flash"%s, "executable": {"filename": "%s/%s", "format": "%s"}%s}}`, features, machines, mode, dir, code, format, template)
		for name, text := range map[string]string{file: text, code: ""} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	const q35, both, secure = `"pc-q35-*"`, `"pc-i440fx-*", "pc-q35-*"`, `"acpi-s3", "requires-smm", "secure-boot"`
	describe("40-enrolled.json", "CODE.ms.fd", "raw", "VARS.ms.fd", secure+`, "enrolled-keys"`, q35, "")
	describe("50-secure.json", "CODE.secboot.fd", "raw", "VARS.fd", secure, q35, "")
	describe("60-plain.json", "CODE.fd", "raw", "VARS.fd", `"acpi-s3"`, both, `, "mode": "split"`)
	describe("70-qcow2.json", "CODE.qcow2", "qcow2", "VARS.qcow2", secure, q35, "")
	describe("80-stateless.json", "STATELESS.fd", "raw", "", `"amd-sev"`, q35, `, "mode": "stateless"`)
	all, err := resources.FirmwaresIn(dir)
	if err != nil || len(all) != 5 {
		t.Fatalf("%d images, %v", len(all), err)
	}
	return all, dir
}

// efiGuest is a guest that asks for UEFI firmware in general.
func efiGuest(machine string, more func(*domain.Definition)) *domain.Definition {
	d := &domain.Definition{OS: domain.OS{Arch: "x86_64", Machine: machine, Firmware: "efi"}}
	if more != nil {
		more(d)
	}
	return d
}

// TestFirmware_WhatIsNotAskedForIsNotRefused has every way to ask for the two features: libvirt 9.0 takes
// the same images.
func TestFirmware_WhatIsNotAskedForIsNotRefused(t *testing.T) {
	all, dir := installedFirmware(t)
	const ms, secboot, plain, none = "CODE.ms.fd", "CODE.secboot.fd", "CODE.fd", ""
	yes, no, open := device.On, device.Off, device.Unset
	for _, c := range []struct {
		secure, enrolled   device.Switch
		q35, q35NoSMM, old string // by machine, and with SMM switched off
	}{
		{open, open, ms, plain, plain},
		{open, yes, ms, none, none},
		{open, no, secboot, plain, plain},
		{yes, open, ms, none, none},
		{yes, yes, ms, none, none},
		{yes, no, secboot, none, none},
		{no, open, plain, plain, plain},
		{no, no, plain, plain, plain},
		{no, yes, none, none, none}, // refused before, by name
	} {
		for _, m := range []struct {
			machine string
			smm     device.Switch
			want    string
		}{
			{"pc-q35-7.2", open, c.q35},
			{"pc-q35-7.2", yes, c.q35},
			{"pc-q35-7.2", no, c.q35NoSMM},
			{"pc-i440fx-7.2", open, c.old},
		} {
			d := efiGuest(m.machine, func(d *domain.Definition) {
				d.Features.SMM = m.smm
				for name, said := range map[string]device.Switch{"secure-boot": c.secure, "enrolled-keys": c.enrolled} {
					if said != open {
						d.OS.FirmwareFeatures = append(d.OS.FirmwareFeatures, domain.FirmwareFeature{Name: name, Enabled: said})
					}
				}
			})
			err := pickFirmware(d, all)
			if got := strings.TrimPrefix(d.OS.Loader.Path, dir+"/"); got != m.want {
				t.Errorf("%s, SMM %v, secure-boot %v, enrolled-keys %v: %q instead of %q (%v)", m.machine, m.smm, c.secure, c.enrolled, got, m.want, err)
			}
			if (err == nil) != (m.want != none) {
				t.Errorf("%s, SMM %v, secure-boot %v, enrolled-keys %v: %v", m.machine, m.smm, c.secure, c.enrolled, err)
			}
			isSecure := m.want == ms || m.want == secboot
			if isSecure && (d.Features.SMM != device.On || d.OS.Loader.Secure != device.On) || !isSecure && d.OS.Loader.Secure != device.Unset {
				t.Errorf("%s has SMM %v and secure=%v", m.want, d.Features.SMM, d.OS.Loader.Secure)
			}
		}
	}
}

func TestFirmware_IsChosenByWhatElseIsAsked(t *testing.T) {
	all, dir := installedFirmware(t)
	for name, c := range map[string]struct {
		ask        func(*domain.Definition)
		code, vars string
		says       string
	}{
		"a secure loader":    {func(d *domain.Definition) { d.OS.Loader.Secure = device.On }, "CODE.ms.fd", "VARS.ms.fd", ""},
		"no secure loader":   {func(d *domain.Definition) { d.OS.Loader.Secure = device.Off }, "CODE.fd", "VARS.fd", ""},
		"a qcow2 loader":     {func(d *domain.Definition) { d.OS.Loader.Format = "qcow2" }, "CODE.qcow2", "VARS.qcow2", ""},
		"qcow2 variables":    {func(d *domain.Definition) { d.OS.NVRAM.Format = "qcow2" }, "CODE.qcow2", "VARS.qcow2", ""},
		"a stateless loader": {func(d *domain.Definition) { d.OS.Loader.Stateless = device.On }, "STATELESS.fd", "", ""},
		"a ROM":              {func(d *domain.Definition) { d.OS.Loader.Type = "rom" }, "", "", `os/loader/@type="rom"`},
		"suspend to disk":    {func(d *domain.Definition) { d.SuspendToDisk = device.On }, "", "", "pm/suspend-to-disk"},
		"formats that differ": {func(d *domain.Definition) {
			d.OS.Loader.Format, d.OS.NVRAM.Format = "raw", "qcow2"
		}, "", "", `os/loader/@format="raw", os/nvram/@format="qcow2"`},
	} {
		d := efiGuest("pc-q35-7.2", c.ask)
		err := pickFirmware(d, all)
		if c.says != "" {
			if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		vars := ""
		if c.vars != "" {
			vars = filepath.Join(dir, c.vars)
		}
		if err != nil || d.OS.Loader.Path != filepath.Join(dir, c.code) || d.OS.NVRAM.Template != vars {
			t.Errorf("%s: %+v, %+v, %v", name, d.OS.Loader, d.OS.NVRAM, err)
		}
		if is := strings.HasSuffix(c.code, "qcow2"); is != (d.OS.Loader.Format == "qcow2") || is != (d.OS.NVRAM.Format == "qcow2") {
			t.Errorf("%s: the formats are %q and %q", name, d.OS.Loader.Format, d.OS.NVRAM.Format)
		}
	}
}

// TestFirmware_OfAPathHasItsTemplate names the image, and not where its variables come from.
func TestFirmware_OfAPathHasItsTemplate(t *testing.T) {
	all, dir := installedFirmware(t)
	path := func(d *domain.Definition, code string) {
		d.OS.Firmware, d.OS.Loader = "", domain.Loader{Path: code, Type: "pflash", ReadOnly: device.On}
		if !filepath.IsAbs(code) {
			d.OS.Loader.Path = filepath.Join(dir, code)
		}
	}
	for name, c := range map[string]struct {
		machine, code string
		more          func(*domain.Definition)
		vars, says    string
		secure        device.Switch
	}{
		"plain":              {"pc-q35-7.2", "CODE.fd", nil, "VARS.fd", "", device.Unset},
		"secure":             {"pc-q35-7.2", "CODE.secboot.fd", nil, "VARS.fd", "", device.On},
		"with keys":          {"pc-q35-7.2", "CODE.ms.fd", nil, "VARS.ms.fd", "", device.On},
		"secure, not wanted": {"pc-q35-7.2", "CODE.secboot.fd", func(d *domain.Definition) { d.OS.Loader.Secure = device.Off }, "VARS.fd", "", device.Off},
		"qcow2":              {"pc-q35-7.2", "CODE.qcow2", nil, "VARS.qcow2", "", device.On},
		"not read-only":      {"pc-q35-7.2", "CODE.fd", func(d *domain.Definition) { d.OS.Loader.ReadOnly = device.Unset }, "VARS.fd", "", device.Unset},
		"another machine's":  {"pc-i440fx-7.2", "CODE.secboot.fd", nil, "", "", device.Unset},
		"nobody's":           {"pc-q35-7.2", "/srv/own.fd", nil, "", "", device.Unset},
		"listed":             {"pc-q35-7.2", "/usr/share/OVMF/OVMF_CODE.fd", nil, "/usr/share/OVMF/OVMF_VARS.fd", "", device.Unset},
		"not what it is": {
			"pc-q35-7.2", "CODE.fd", func(d *domain.Definition) { d.OS.Loader.Format = "qcow2" }, "", "os/loader/@format: the firmware " + dir + "/CODE.fd is raw", device.Unset,
		},
		"variables of another format": {
			"pc-q35-7.2", "CODE.fd", func(d *domain.Definition) { d.OS.NVRAM.Format = "qcow2" }, "", "os/nvram/@format", device.Unset,
		},
		"a file of another format": {
			"pc-q35-7.2", "CODE.fd", func(d *domain.Definition) { d.OS.NVRAM.Format, d.OS.NVRAM.Path = "qcow2", "/srv/vars" }, "", "", device.Unset,
		},
		"a file of its own": {"pc-q35-7.2", "CODE.secboot.fd", func(d *domain.Definition) { d.OS.NVRAM.Path = "/srv/vars" }, "VARS.fd", "", device.Unset},
		"SMM off":           {"pc-q35-7.2", "CODE.secboot.fd", func(d *domain.Definition) { d.Features.SMM = device.Off }, "", "features/smm", device.Unset},
	} {
		d := efiGuest(c.machine, func(d *domain.Definition) { path(d, c.code) })
		if c.more != nil {
			c.more(d)
		}
		err := findTemplate(d, all)
		if c.says != "" {
			if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if got := strings.TrimPrefix(d.OS.NVRAM.Template, dir+"/"); err != nil || got != c.vars || d.OS.Loader.Secure != c.secure || c.secure == device.On && d.Features.SMM != device.On {
			t.Errorf("%s: template %q, secure %v, SMM %v, %v", name, got, d.OS.Loader.Secure, d.Features.SMM, err)
		}
		if c.vars != "" && d.OS.Loader.ReadOnly != device.On {
			t.Errorf("%s: the image is written to", name)
		}
	}
}
