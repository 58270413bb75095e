package image

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A compromised qemu-img writes a backing file of another user into the headers of the images that it was given:
// the daemon follows none of these headers. An honest run of the tool leaves no record.
func TestToolRecord_CompromisedTool(t *testing.T) {
	honest := tool(t)
	dir := t.TempDir()
	secret, forged, script := filepath.Join(dir, "secret"), filepath.Join(dir, "forged"), filepath.Join(dir, "taken")
	if err := os.WriteFile(secret, make([]byte, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(secret, recordAttributes[0], nil, 0); err != nil {
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
		chain, err := OpenChain(t.Context(), scope.Daemon("a test"), top, Qcow2)
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
			if _, below, noted := readRecord(f); noted {
				t.Errorf("%s: %q stays noted", what, below)
			}
		}
		if err := work(taken, chain, f); !fault.Is(err, fault.Failed) {
			t.Errorf("%s: %v", what, err)
		}
		chain.Close()
		_ = f.Close() // opened for the tool
		for _, path := range []string{base, into} {
			chain, err := OpenChain(t.Context(), scope.Daemon("a test"), path, Qcow2)
			chain.Close()
			if !fault.Is(err, fault.Denied) {
				t.Errorf("%s leads on: %v", path, err)
			}
		}
	}
}

// A record that another operation makes while the tool has an image, such as the start of a guest, stays when the
// tool has ended. No operation removes it while the tool has the image, not even another run of the tool.
func TestToolRecord_OtherDaemons(t *testing.T) {
	tool(t)
	disk := filepath.Join(t.TempDir(), "disk")
	qemuImg(t, "create", "-q", "-f", "qcow2", disk, "1M")
	if err := unix.Setxattr(disk, recordAttributes[0], nil, 0); err != nil {
		t.Skip("needs a file system with trusted attributes:", err)
	}
	if err := unix.Removexattr(disk, recordAttributes[0]); err != nil {
		t.Fatal(err)
	}
	isNoted := func(when string, want bool) {
		t.Helper()
		f, err := Open(disk)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, _, noted := readRecord(f); noted != want {
			t.Errorf("%s: noted is %v", when, noted)
		}
	}
	takeBack := func() error { _, err := RemoveRecord(disk, Qcow2); return err }
	run := func(do func() error) {
		t.Helper()
		f, err := Open(disk)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := withRecords([]toolImage{{f, Qcow2}}, do); err != nil {
			t.Error(err)
		}
	}
	lend := func() error {
		chain, err := OpenChain(t.Context(), scope.Daemon("a test"), disk, Qcow2)
		if err != nil {
			return err
		}
		defer chain.Close()
		return chain[0].RecordBacking()
	}
	distrust := func() error {
		f, err := Open(disk)
		if err != nil {
			return err
		}
		defer f.Close()
		return RecordBeforeWrite(f)
	}
	for what, noting := range map[string]func() error{"a guest": lend, "an upload": distrust} {
		run(noting)
		isNoted(what+" that came meanwhile", true)
		run(func() error { return nil })
		isNoted(what+" that was there before", true)
		run(takeBack)
		isNoted(what+" that ended meanwhile", false)
	}
	run(func() error {
		run(func() error { return nil })
		isNoted("while one run goes on", true)
		if err := lend(); err != nil {
			return err
		}
		err := takeBack()
		isNoted("while it goes on without the guest", true)
		return err
	})
	isNoted("after all", false)
	if len(fileLocks.tools) > 0 {
		t.Errorf("%d files are taken for the tool's", len(fileLocks.tools))
	}
}
