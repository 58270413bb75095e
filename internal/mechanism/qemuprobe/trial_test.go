package qemuprobe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
)

func qemuBinary(t testing.TB) string {
	t.Helper()
	binary, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("needs qemu-system-x86_64")
	}
	return binary
}

func TestTrial_RunsUnderTCG(t *testing.T) {
	got := newTrial("tcg", "max", false)
	if err := got.run(t.Context(), target{binary: qemuBinary(t)}); err != nil {
		t.Fatal(err)
	}
	if want := "RPLEI" + strings.Repeat(".", trialRounds) + "C"; got.letters != want || !got.passed() {
		t.Fatalf("the guest said %q, and the verdict is: %s", got.letters, got)
	}
}

// TestTrial_FindsBrokenGuests runs guests that fail in the ways that bad accelerators
// cause.
func TestTrial_FindsBrokenGuests(t *testing.T) {
	binary := qemuBinary(t)
	say := func(rest ...byte) []byte { return append([]byte{0xb0, 'R', 0xe6, 0xe9}, rest...) } // mov al, 'R'; out 0xe9, al
	wrong := bytes.Replace(trialCode, []byte{0x65, 0x32, 0x10, 0xdb}, []byte{0x66, 0x32, 0x10, 0xdb}, 1)
	for _, c := range []struct {
		name, accelerator, cpu string
		code                   []byte
		want                   string
	}{
		{"triple fault", "tcg", "max", atReset(say(0x0f, 0x01, 0x1e, 0, 0, 0x0f, 0x0b)), "as far as real mode, then the guest's processor gave up"},
		{"dead loop", "tcg", "max", atReset(say(0xeb, 0xfe)), "as far as real mode, then time was up"},
		{"nothing at all", "tcg", "max", atReset([]byte{0xeb, 0xfe}), "no guest code runs with -accel tcg -cpu max: time was up"},
		{"wrong result", "tcg", "max", wrong, "it computed a wrong result"},
		{"no such model", "tcg", "z80", trialCode, "no guest code runs with -accel tcg -cpu z80"},
		{"no such accelerator", "abacus", "max", trialCode, "abacus"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := trial{accelerator: c.accelerator, cpu: c.cpu, code: c.code, timeout: 2 * time.Second}
			if err := got.run(t.Context(), target{binary: binary}); err != nil {
				t.Fatal(err)
			}
			if got.passed() || !strings.Contains(got.String(), c.want) {
				t.Errorf("the verdict is: %s", got)
			}
		})
	}
}

// atReset makes an image of code that fits between the reset vector and 4 GiB.
func atReset(code []byte) []byte { return append(code, make([]byte, 16-len(code))...) }

func TestTrial_Cancelled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	endless := trial{accelerator: "tcg", cpu: "max", code: atReset([]byte{0xeb, 0xfe}), timeout: time.Minute}
	if err := endless.run(ctx, target{binary: qemuBinary(t)}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
}

func TestTrial_SlowProcessors(t *testing.T) {
	slow := trial{accelerator: "kvm", cpu: "host", letters: "RPLEI..", end: "time was up", took: 5 * time.Second}
	if got, want := slow.String(), "it counted 2 of 64 rounds, about 0.7 million instructions a second"; !strings.Contains(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestGist(t *testing.T) {
	printed := "qemu-system-x86_64: warning: host doesn't support\nqemu-system-x86_64: -cpu: no\n\nKVM internal error. Suberror: 1\nextra data[0]: 0x1\nthird\n"
	if got := firstLines(printed); got != "-cpu: no; KVM internal error. Suberror: 1" {
		t.Errorf("got %q", got)
	}
	if got := firstLines(strings.Repeat("x", 1<<16)); len(got) != 200 {
		t.Errorf("%d bytes", len(got))
	}
}

// TestTrial_BinaryMatchesSource compares the embedded bytes with the assembly beside them.
func TestTrial_BinaryMatchesSource(t *testing.T) {
	for _, tool := range []string{"as", "ld"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs binutils")
		}
	}
	dir := t.TempDir()
	object, image := filepath.Join(dir, "trial.o"), filepath.Join(dir, "trial.bin")
	for _, line := range [][]string{
		{"as", "--64", "trial/trial.S", "-o", object},
		{"ld", "-m", "elf_x86_64", "-Ttext", "0xfffff800", "--oformat", "binary", object, "-o", image},
	} {
		if out, err := exec.CommandContext(t.Context(), line[0], line[1:]...).CombinedOutput(); err != nil {
			t.Skipf("this host's binutils do not build for x86_64: %s", out)
		}
	}
	built, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(built, trialCode) {
		t.Error("trial/trial.bin is not what trial/trial.S builds")
	}
}

// TestProbe_InSandbox: a probe that runs QEMU as its own user in a sandbox
// finds the same capabilities.
// Promise: I4
func TestProbe_InSandbox(t *testing.T) {
	house, err := sandbox.NewBuilder("")
	if err != nil {
		t.Skipf("no chambers here: %v", err)
	}
	t.Cleanup(func() { _ = house.Close() })
	users, err := sandbox.ParseUsers(sandbox.DefaultUsers(1 + uint32(os.Getpid())%(1<<14)))
	if err != nil {
		t.Fatal(err)
	}
	of := target{qemuBinary(t), &sandbox.Isolation{Builder: house, Users: users}}
	s, err := startQEMU(t.Context(), of, []string{"-machine", "none"})
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.PID))
	s.kill()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(status), "Uid:\t0") || !strings.Contains(string(status), "CapEff:\t0000000000000000") {
		t.Errorf("a QEMU that is looked at has privileges:\n%s", status)
	}
	got := newTrial("tcg", "max", false)
	if err := got.run(t.Context(), of); err != nil {
		t.Fatal(err)
	}
	if !got.passed() {
		t.Errorf("in a chamber the verdict is: %s", got)
	}
}
