package importer

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// firmwareHost completes domains as a daemon with firmware does.
type firmwareHost struct{ nvram, template string }

func (firmwareHost) Known(context.Context, Kind, string) (bool, error) { return false, nil }

func (h firmwareHost) Define(_ context.Context, _ Kind, _ string, t Traits) (string, error) {
	if t.Variables == nil {
		return "", nil
	}
	nvram := ""
	if h.nvram != "" {
		nvram = "<nvram template='" + h.template + "'>" + h.nvram + "</nvram>"
	}
	return t.Variables.Place("<domain type='qemu'><name>a</name><os firmware='efi'><type>hvm</type><loader readonly='yes' type='pflash'>/code.fd</loader>" +
		nvram + "</os></domain>")
}

// TestImport_CopiesUEFIVariables imports a guest with UEFI whose Secure Boot keys are in a file that its definition
// does not name.
func TestImport_CopiesUEFIVariables(t *testing.T) {
	root := t.TempDir()
	put := func(file, text string) string {
		file = filepath.Join(root, file)
		ok(t, os.MkdirAll(filepath.Dir(file), 0o755))
		ok(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	const domain = "<domain type='qemu'><name>NAME</name><memory>1024</memory><os firmware='efi'><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
	put("etc/libvirt/qemu/efi.xml", strings.Replace(domain, "NAME", "efi", 1))
	put("etc/libvirt/qemu/new.xml", strings.Replace(domain, "NAME", "new", 1)) // it has never run
	put("etc/libvirt/qemu/bios.xml", strings.NewReplacer("NAME", "bios", " firmware='efi'", "").Replace(domain))
	put("var/lib/libvirt/qemu/nvram/bios_VARS.fd", "of another guest of that name")
	from := put("var/lib/libvirt/qemu/nvram/efi_VARS.fd", "keys")
	h := firmwareHost{nvram: filepath.Join(root, "data/efi_VARS.fd"), template: put("template.fd", "none")}
	run := func(dry bool) map[string]Result {
		t.Helper()
		results := map[string]Result{}
		ok(t, Import(t.Context(), filepath.Join(root, "etc/libvirt"), Options{Host: h, DryRun: dry}, func(r Result) { results[r.Name] = r }))
		return results
	}
	if r := run(true)["efi"]; r.Err != nil || !strings.Contains(r.Outcome, from) {
		t.Errorf("before, it says %q, %v", r.Outcome, r.Err)
	}
	if _, err := os.Stat(h.nvram); err == nil {
		t.Fatal("a dry run copies them")
	}
	results := run(false)
	text, err := os.ReadFile(h.nvram)
	ok(t, err)
	if info, err := os.Stat(h.nvram); err != nil || string(text) != "keys" || info.Mode().Perm() != 0o600 {
		t.Errorf("the variables are %q, %v, %v", text, info.Mode(), err)
	}
	if r := results["efi"]; r.Err != nil || !strings.Contains(r.Outcome, "copied from "+from+" to "+h.nvram) {
		t.Errorf("it says %q, %v", r.Outcome, r.Err)
	}
	for _, name := range []string{"new", "bios"} {
		if r := results[name]; r.Err != nil || strings.Contains(r.Outcome, "variables") {
			t.Errorf("of %s it says %q, %v", name, r.Outcome, r.Err)
		}
	}
	ok(t, os.WriteFile(h.nvram, []byte("mine"), 0o600))
	if r := run(false)["efi"]; r.Err != nil || !strings.Contains(r.Outcome, "were there already and stay") {
		t.Errorf("where there are variables, it says %q, %v", r.Outcome, r.Err)
	}
	if text, err := os.ReadFile(h.nvram); err != nil || string(text) != "mine" {
		t.Errorf("they are %q then, %v", text, err)
	}
	if left, err := os.ReadDir(filepath.Dir(h.nvram)); err != nil || len(left) != 1 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
}

// TestImport_RefusesLossOfUEFIVariables: the guest would start with other variables, and lose its keys.
func TestImport_RefusesLossOfUEFIVariables(t *testing.T) {
	root := t.TempDir()
	nvram := filepath.Join(root, "var/lib/libvirt/qemu/nvram")
	ok(t, os.MkdirAll(filepath.Join(root, "etc/libvirt/qemu"), 0o755))
	ok(t, os.MkdirAll(nvram, 0o755))
	ok(t, os.WriteFile(filepath.Join(root, "etc/libvirt/qemu/efi.xml"),
		[]byte("<domain type='qemu'><name>efi</name><memory>1024</memory><os firmware='efi'><type arch='x86_64' machine='q35'>hvm</type></os></domain>"), 0o600))
	template, secret, file := filepath.Join(root, "template.fd"), filepath.Join(root, "secret"), filepath.Join(nvram, "efi_VARS.fd")
	for path, text := range map[string]string{template: "larger", secret: "larger", file: "keys"} {
		ok(t, os.WriteFile(path, []byte(text), 0o600))
	}
	try := func(h Host, want string) {
		t.Helper()
		ok(t, Import(t.Context(), filepath.Join(root, "etc/libvirt"), Options{Host: h}, func(r Result) {
			if r.Err == nil || !strings.Contains(r.Err.Error(), want) {
				t.Errorf("%q, %v instead of %q", r.Outcome, r.Err, want)
			}
		}))
	}
	h := firmwareHost{nvram: filepath.Join(root, "data/efi_VARS.fd"), template: template}
	try(h, "have 4 bytes, and those of the firmware /code.fd have 6")
	try(firmwareHost{}, "keeps no UEFI variables")
	ok(t, os.Remove(file))
	ok(t, os.Symlink(secret, file)) // the tree may be another user's
	try(h, "cannot read the domain's UEFI variables")
	if _, err := os.Stat(h.nvram); err == nil {
		t.Error("variables are copied that were refused")
	}
}

// TestImport_ReportsNamedUEFIVariables imports definitions that name the file.
func TestImport_ReportsNamedUEFIVariables(t *testing.T) {
	root := t.TempDir()
	there := filepath.Join(root, "vars.fd")
	ok(t, os.WriteFile(there, nil, 0o600))
	for path, want := range map[string]string{there: "", filepath.Join(root, "gone.fd"): "copy them there before it starts"} {
		doc := "<domain type='qemu'><name>a</name><memory>1024</memory><os><type arch='x86_64' machine='q35'>hvm</type><loader readonly='yes' type='pflash'>/code.fd</loader><nvram>" + path + "</nvram></os></domain>"
		v, note, err := stateOutside(root, doc)
		if v != nil || err != nil || (want == "") != (note == "") || !strings.Contains(note, want) {
			t.Errorf("of %s it says %q, %v, %v", path, note, v, err)
		}
	}
}

// TestImport_UEFIVariablesOutsideOfEtcLibvirt: for such a tree it is not known where its host keeps the variables, and
// without them the guest loses its keys.
func TestImport_UEFIVariablesOutsideOfEtcLibvirt(t *testing.T) {
	root := t.TempDir()
	ok(t, os.MkdirAll(filepath.Join(root, "qemu"), 0o755))
	for name, firmware := range map[string]string{"efi": " firmware='efi'", "bios": ""} {
		doc := "<domain type='qemu'><name>" + name + "</name><memory>1024</memory><os" + firmware + "><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
		ok(t, os.WriteFile(filepath.Join(root, "qemu", name+".xml"), []byte(doc), 0o600))
	}
	for _, dry := range []bool{true, false} {
		ok(t, Import(t.Context(), root, Options{Host: firmwareHost{}, DryRun: dry}, func(r Result) {
			if noted := strings.Contains(r.Outcome, "copy efi_VARS.fd from its host"); r.Err != nil || noted != (r.Name == "efi") {
				t.Errorf("of %s it says %q, %v", r.Name, r.Outcome, r.Err)
			}
		}))
	}
}
