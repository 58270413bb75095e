// Package early is the start of the first process in each of Lodge's own guests: the kernel's file systems,
// drivers, the loopback interface, ports and devices that are plugged in later.
//
// It holds the code that both the small guest and the lab's guest need. Everything after that is in their own
// packages.
package early

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Arguments splits the kernel's command line.
func Arguments() map[string]string {
	args := map[string]string{}
	for word := range strings.FieldsSeq(Trimmed("/proc/cmdline")) {
		key, value, _ := strings.Cut(word, "=")
		args[key] = value
	}
	return args
}

// Trimmed reads a short file of the kernel; an unreadable one is empty.
func Trimmed(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(text))
}

// Mount makes the kernel's file systems and two scratch places below a root.
func Mount(root string) error {
	for _, m := range []struct{ kind, at, options string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"devtmpfs", "/dev", "mode=0755"},
		{"devpts", "/dev/pts", "mode=0620,ptmxmode=0666"},
		{"tmpfs", "/run", "mode=0755"},
		{"tmpfs", "/tmp", "mode=1777"},
	} {
		if err := os.MkdirAll(root+m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, root+m.at, m.kind, 0, m.options); err != nil {
			return fmt.Errorf("cannot mount %s: %w", m.at, err)
		}
	}
	return nil
}
