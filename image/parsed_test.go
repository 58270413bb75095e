package image

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/fault"
)

// A qemu-img that an image has taken over writes into the headers of what it was handed that a file of others lies
// below: nobody is led there by them. Of the tool itself nothing stays noted.
func TestAToolThatWasTakenOverLeadsNobodyElsewhere(t *testing.T) {
	honest := tool(t)
	dir := t.TempDir()
	secret, forged, script := filepath.Join(dir, "secret"), filepath.Join(dir, "forged"), filepath.Join(dir, "taken")
	if err := os.WriteFile(secret, make([]byte, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(secret, lentMarks[0], nil, 0); err != nil {
		t.Skip("needs a file system with trusted attributes:", err)
	}
	qemuImg(t, "create", "-q", "-f", "qcow2", "-b", secret, "-F", "raw", forged)
	if err := os.WriteFile(script, []byte("#!/bin/sh\nfor n in 3 4; do dd if="+forged+" of=/proc/self/fd/$n conv=notrunc status=none || exit 1; done\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	taken := &Tool{path: script, log: slog.New(slog.DiscardHandler)}
	works := map[string]func(*Tool, Chain, *os.File) error{
		"resize": func(tool *Tool, c Chain, top *os.File) error {
			return tool.Resize(t.Context(), top, Qcow2, Growth{Size: 2 * mib, Below: c[1:]})
		},
		"convert": func(tool *Tool, c Chain, into *os.File) error {
			return tool.Convert(t.Context(), Copy{From: c[1:], Into: into, Format: Qcow2})
		},
	}
	for what, work := range works {
		base, top, into := filepath.Join(dir, what+"-base"), filepath.Join(dir, what+"-top"), filepath.Join(dir, what)
		qemuImg(t, "create", "-q", "-f", "qcow2", base, "1M")
		qemuImg(t, "create", "-q", "-f", "qcow2", "-b", base, "-F", "qcow2", top)
		if what == "convert" {
			qemuImg(t, "create", "-q", "-f", "qcow2", into, "1M")
		} else {
			into = top
		}
		chain, err := OpenChain(t.Context(), top, Qcow2)
		if err != nil {
			t.Fatal(err)
		}
		f, err := OpenAs(into, unix.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		if err := work(honest, chain, f); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		for _, f := range []*os.File{f, chain[1].File} {
			if _, below, noted := lentAs(f); noted {
				t.Errorf("%s: %q stays noted", what, below)
			}
		}
		if err := work(taken, chain, f); !fault.Is(err, fault.Failed) {
			t.Errorf("%s: %v", what, err)
		}
		chain.Close()
		_ = f.Close() // opened for the tool
		for _, path := range []string{base, into} {
			chain, err := OpenChain(t.Context(), path, Qcow2)
			chain.Close()
			if !fault.Is(err, fault.Denied) {
				t.Errorf("%s leads on: %v", path, err)
			}
		}
	}
}
