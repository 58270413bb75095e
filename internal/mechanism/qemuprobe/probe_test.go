package qemuprobe

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
)

var record = flag.Bool("record", false, "record the answers of this host's QEMU as test data")

const recordedAnswers = "testdata/qemu-7.2-answers.json.gz"

// recorded returns the answers of QEMU 7.2 under TCG.
func recorded(t testing.TB) Answers {
	t.Helper()
	if *record {
		recordAnswers(t)
	}
	file, err := os.Open(recordedAnswers)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	a, err := ReadAnswers(file)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func recordAnswers(t testing.TB) {
	t.Helper()
	said, err := query(t.Context(), target{binary: qemuBinary(t)}, "tcg", func(a Answers, ctx context.Context, s *qmp.Session) error {
		if err := a.askAll(ctx, s); err != nil {
			return err
		}
		return a.askCPUs(ctx, s, "tcg")
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

func TestCapabilities_RecordedAnswers(t *testing.T) {
	c, err := recorded(t).Capabilities()
	if err != nil {
		t.Fatal(err)
	}
	if c.Arch != "x86_64" || c.Version.Major != 7 || c.Version.Minor != 2 {
		t.Errorf("%s %+v", c.Arch, c.Version)
	}
	q35, ok := c.Machine("q35")
	want := qemucaps.Machine{
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
		"netdevs":            slices.Contains(c.Netdevs, "tap") && slices.Contains(c.Netdevs, "user") && !slices.Contains(c.Netdevs, "vmnet-host"),
		"chardevs":           slices.Contains(c.Chardevs, "socket") && slices.Contains(c.Chardevs, "spicevmc"),
		"displays":           slices.Contains(c.Displays, "egl-headless"),
		"TPM":                slices.Equal(c.TPMModels, []string{"tpm-crb", "tpm-tis"}) && slices.Equal(c.TPMBackends, []string{"emulator", "passthrough"}),
		"facts":              c.Has(qemucaps.FactIOUring) && c.Has(qemucaps.FactNativeAIO) && !c.Has(qemucaps.FactReconnectMS),
	} {
		if !held {
			t.Errorf("the %s are wrong", what)
		}
	}
}

func TestCPUModels_RecordedAnswers(t *testing.T) {
	tcg := qemucaps.Accelerator{Name: "tcg"}
	if err := recorded(t).FillCPUs(&tcg); err != nil {
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
	if h := tcg.HostModel; h.Vendor != "AuthenticAMD" || !slices.Contains(h.Features, "avx2") || h.Base == "" {
		t.Errorf("host model %+v", h)
	}
}

func TestHostModel_NearestNamedModel(t *testing.T) {
	props := func(vendor string, family, model int, features ...string) json.RawMessage {
		all := arguments{"vendor": vendor, "family": family, "model": model, "avx9": false}
		for _, f := range features {
			all[f] = true
		}
		text, err := json.Marshal(arguments{"model": arguments{"name": "base", "props": all}})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	a := Answers{
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
		a[answerKey("query-cpu-model-expansion", expansionOf(name))] = text
	}
	kvm := qemucaps.Accelerator{Name: "kvm"}
	if err := a.FillCPUs(&kvm); err != nil {
		t.Fatal(err)
	}
	want := qemucaps.HostModel{
		Vendor: "GenuineIntel", Signature: qemucaps.Signature{Family: 6, Model: 85}, Features: []string{"avx", "avx2", "extra", "spec-ctrl", "sse"},
		Base: "New-IBRS", Added: []string{"extra"}, Removed: []string{"hle"},
	}
	if !reflect.DeepEqual(kvm.HostModel, want) {
		t.Errorf("got  %+v\nwant %+v", kvm.HostModel, want)
	}
	if m, _ := kvm.Model("Newest"); m.Usable || !slices.Equal(m.Missing, []string{"avx9"}) {
		t.Errorf("Newest is %+v", m)
	}
}

func TestAnswers_Invalid(t *testing.T) {
	for name, a := range map[string]Answers{
		"nothing":      {},
		"wrong shapes": {"query-machines": json.RawMessage(`7`), "query-qmp-schema": json.RawMessage(`[]`)},
		"empty":        {"query-machines": json.RawMessage(`[]`), "query-qmp-schema": json.RawMessage(`[]`)},
	} {
		if _, err := a.Capabilities(); err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProbe_ThisHost(t *testing.T) {
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
	if best, ok := c.BestAccelerator(); !ok || best.Name == "kvm" != c.Accelerator("kvm").Usable {
		t.Errorf("the best accelerator is %q", best.Name)
	}
	if c.Accelerator("abacus").Usable {
		t.Error("an accelerator that there is not works")
	}
	stored, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var again qemucaps.Capabilities
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

func TestProbe_NotQEMU(t *testing.T) {
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
