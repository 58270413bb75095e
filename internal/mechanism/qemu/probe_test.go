package qemu

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
)

var record = flag.Bool("record", false, "record the answers of this host's QEMU as test data")

const recordedAnswers = "testdata/qemu-7.2-answers.json.gz"

// recorded gives what QEMU 7.2 answered under TCG.
func recorded(t testing.TB) answers {
	t.Helper()
	if *record {
		recordAnswers(t)
	}
	file, err := os.Open(recordedAnswers)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	var a answers
	if err := json.Unmarshal(text, &a); err != nil {
		t.Fatal(err)
	}
	return a
}

func recordAnswers(t testing.TB) {
	t.Helper()
	said, err := interview(t.Context(), subject{binary: qemuBinary(t)}, "tcg", func(a answers, ctx context.Context, s *qmp.Session) error {
		if err := a.interrogate(ctx, s); err != nil {
			return err
		}
		return a.interrogateCPUs(ctx, s, "tcg")
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(said)
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(recordedAnswers, packed.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCapabilitiesOfRecordedAnswers(t *testing.T) {
	c, err := recorded(t).capabilities()
	if err != nil {
		t.Fatal(err)
	}
	if c.Arch != "x86_64" || c.Version.Major != 7 || c.Version.Minor != 2 {
		t.Errorf("%s %+v", c.Arch, c.Version)
	}
	q35, ok := c.Machine("q35")
	want := Machine{
		Name: "pc-q35-7.2", Alias: "q35", MaxCPUs: 288, HotplugCPUs: true,
		DefaultCPUType: "qemu64-x86_64-cpu", DefaultRAMID: "pc.ram",
	}
	if !ok || q35 != want {
		t.Errorf("q35 is %+v", q35)
	}
	if pc, _ := c.Machine("pc-i440fx-7.2"); !pc.Default || pc.Alias != "pc" || pc.NUMAMemory {
		t.Errorf("pc is %+v", pc)
	}
	for what, held := range map[string]bool{
		"devices":            c.HasDevice("virtio-blk-pci") && c.HasDevice("intel-iommu") && !c.HasDevice("virtio-vga-gl"),
		"objects":            c.HasObject("memory-backend-memfd") && c.HasObject("iothread") && !c.HasObject("memory-backend-moon"),
		"device properties":  c.HasProperty("virtio-balloon-pci", "free-page-reporting") && c.HasProperty("virtio-net-pci", "rss"),
		"bus properties":     c.HasProperty("virtio-blk-pci", "addr") && c.HasProperty("scsi-hd", "lun"),
		"machine properties": c.HasProperty("pc-q35-7.2", "smm") && c.HasProperty("pc-q35-7.2", "hpet"),
		"object properties":  c.HasProperty("memory-backend-file", "prealloc-threads") && c.HasProperty("iothread", "thread-pool-max"),
		"no properties":      !c.HasProperty("virtio-blk-pci", "colour") && !c.HasProperty("no-such-device", "addr"),
		"options":            c.HasOption("vnc", "") && c.HasOption("spice", "") && c.HasOption("msg", "timestamp") && !c.HasOption("msg", "x"),
		"commands":           c.HasCommand("blockdev-add") && !c.HasCommand("blockdev-eat"),
		"netdevs":            has(c.Netdevs, "tap") && has(c.Netdevs, "user") && !has(c.Netdevs, "vmnet-host"),
		"chardevs":           has(c.Chardevs, "socket") && has(c.Chardevs, "spicevmc"),
		"displays":           has(c.Displays, "egl-headless"),
		"TPM":                slices.Equal(c.TPMModels, []string{"tpm-crb", "tpm-tis"}) && slices.Equal(c.TPMBackends, []string{"emulator", "passthrough"}),
		"facts":              c.Has(FactIOUring) && c.Has(FactNativeAIO) && !c.Has(FactReconnectMS),
	} {
		if !held {
			t.Errorf("the %s are wrong", what)
		}
	}
}

func TestCPUModelsOfRecordedAnswers(t *testing.T) {
	tcg := Accelerator{Name: "tcg"}
	if err := recorded(t).fillCPUs(&tcg); err != nil {
		t.Fatal(err)
	}
	if m, _ := tcg.Model("qemu64"); !m.Usable || m.TypeName != "qemu64-x86_64-cpu" || m.AliasOf != "qemu64-v1" {
		t.Errorf("qemu64 is %+v", m)
	}
	if m, _ := tcg.Model("Skylake-Server"); m.Usable || !slices.Contains(m.Missing, "avx512f") {
		t.Errorf("Skylake-Server is %+v", m)
	}
	if _, ok := tcg.Model("z80"); ok {
		t.Error("a model that there is not")
	}
	if h := tcg.HostModel; h.Vendor != "AuthenticAMD" || !has(h.Features, "avx2") || h.Base == "" {
		t.Errorf("host model %+v", h)
	}
}

func TestTheHostModelIsTheNearestNamedOne(t *testing.T) {
	props := func(vendor string, family, model int, features ...string) json.RawMessage {
		all := object{"vendor": vendor, "family": family, "model": model, "avx9": false}
		for _, f := range features {
			all[f] = true
		}
		text, err := json.Marshal(object{"model": object{"name": "base", "props": all}})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	a := answers{
		"query-cpu-definitions": json.RawMessage(`[
			{"name": "Old", "typename": "o", "unavailable-features": []},
			{"name": "New", "typename": "n", "unavailable-features": []},
			{"name": "New-IBRS", "typename": "i", "unavailable-features": []},
			{"name": "New-v2", "typename": "v", "unavailable-features": []},
			{"name": "Newest", "typename": "x", "unavailable-features": ["avx9", "avx9"]},
			{"name": "Other", "typename": "a", "unavailable-features": []},
			{"name": "host", "typename": "h", "unavailable-features": []}]`),
	}
	for name, text := range map[string]json.RawMessage{
		"host":     props("GenuineIntel", 6, 85, "sse", "avx", "avx2", "spec-ctrl", "extra"),
		"Old":      props("GenuineIntel", 6, 60, "sse", "avx", "avx2", "spec-ctrl", "extra"), // exact, but another model
		"New":      props("GenuineIntel", 6, 85, "sse", "avx", "avx2", "hle"),
		"New-IBRS": props("GenuineIntel", 6, 85, "sse", "avx", "avx2", "hle", "spec-ctrl"),
		"New-v2":   props("GenuineIntel", 6, 85, "sse", "avx", "avx2", "spec-ctrl", "extra"),
		"Other":    props("AuthenticAMD", 6, 85, "sse", "avx", "avx2", "spec-ctrl", "extra"),
	} {
		a[question("query-cpu-model-expansion", expansionOf(name))] = text
	}
	kvm := Accelerator{Name: "kvm"}
	if err := a.fillCPUs(&kvm); err != nil {
		t.Fatal(err)
	}
	want := HostModel{
		Vendor: "GenuineIntel", Signature: Signature{Family: 6, Model: 85}, Features: []string{"avx", "avx2", "extra", "spec-ctrl", "sse"},
		Base: "New-IBRS", Added: []string{"extra"}, Removed: []string{"hle"},
	}
	if !reflect.DeepEqual(kvm.HostModel, want) {
		t.Errorf("got  %+v\nwant %+v", kvm.HostModel, want)
	}
	if m, _ := kvm.Model("Newest"); m.Usable || !slices.Equal(m.Missing, []string{"avx9"}) {
		t.Errorf("Newest is %+v", m)
	}
}

func TestAnswersThatAreNone(t *testing.T) {
	for name, a := range map[string]answers{
		"nothing":      {},
		"wrong shapes": {"query-machines": json.RawMessage(`7`), "query-qmp-schema": json.RawMessage(`[]`)},
		"empty":        {"query-machines": json.RawMessage(`[]`), "query-qmp-schema": json.RawMessage(`[]`)},
	} {
		if _, err := a.capabilities(); err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProbeThisHost(t *testing.T) {
	binary := qemuBinary(t)
	began := time.Now()
	c, err := Probe(t.Context(), binary, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("probed in %s", time.Since(began))
	for _, a := range c.Accelerators {
		t.Logf("%s: usable %v: %s", a.Name, a.Usable, a.Reason)
		if a.Reason == "" || a.Usable && (len(a.Models) == 0 || len(a.HostModel.Features) == 0) {
			t.Errorf("%s has no reason, or works and has no models", a.Name)
		}
		if !a.Usable && a.Models != nil {
			t.Errorf("%s does not work and has models", a.Name)
		}
	}
	if best, ok := c.Best(); !ok || best.Name == "kvm" != c.Accelerator("kvm").Usable {
		t.Errorf("the best accelerator is %q", best.Name)
	}
	if c.Accelerator("abacus").Usable {
		t.Error("an accelerator that there is not works")
	}
	stored, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var again Capabilities
	if err := json.Unmarshal(stored, &again); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c, &again) {
		t.Error("what was stored is not what was found")
	}
	if !again.Matches(binary) {
		t.Error("what was stored does not match the same binary")
	}
}

func TestMatches(t *testing.T) {
	prefix := t.TempDir()
	modules := filepath.Join(prefix, "lib", "x86_64-linux-gnu", "qemu")
	for _, dir := range []string{modules, filepath.Join(prefix, "bin")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	binary := write(t, filepath.Join(prefix, "bin", "qemu"), "one")
	identity, err := identify(binary)
	if err != nil {
		t.Fatal(err)
	}
	c := &Capabilities{Format: capabilitiesFormat, Binary: identity, Host: sources.host()}
	if !c.Matches(binary) {
		t.Fatal("the same binary does not match")
	}
	other := *c
	other.Host.BootID += "x"
	if other.Matches(binary) {
		t.Error("another boot matches")
	}
	other = *c
	other.Format++
	if other.Matches(binary) {
		t.Error("another format matches")
	}
	write(t, filepath.Join(modules, "ui-spice-core.so"), "module")
	if c.Matches(binary) {
		t.Error("a binary with one module more matches")
	}
	if c.Binary, err = identify(binary); err != nil || !c.Matches(binary) {
		t.Errorf("with the new module it does not match: %v", err)
	}
	if c.Matches(binary + ".gone") {
		t.Error("a binary that is gone matches")
	}
	if err := os.WriteFile(binary+".new", []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(binary+".new", binary); err != nil {
		t.Fatal(err)
	}
	if c.Matches(binary) {
		t.Error("a binary that was replaced matches")
	}
}

func TestProbeOfWhatIsNoQEMU(t *testing.T) {
	if _, err := Probe(t.Context(), filepath.Join(t.TempDir(), "none"), nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("a missing binary: %v", err)
	}
	_, err := Probe(t.Context(), "/bin/false", nil)
	if !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), "/bin/false") || !strings.Contains(err.Error(), "ended with status 1") {
		t.Errorf("a binary that is no QEMU: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	silent := write(t, filepath.Join(t.TempDir(), "silent"), "#!/bin/sh\nexec sleep 1000\n")
	if err := os.Chmod(silent, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Probe(ctx, silent, nil); err == nil {
		t.Error("a binary that says nothing is a QEMU")
	}
}
