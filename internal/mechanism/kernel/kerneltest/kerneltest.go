// Package kerneltest gives tests a host that is not the one they run on: small
// trees of /sys, /proc and udev's records, written below a temporary folder.
//
// The package holds the trees, each with the kind of host it stands for, and the code
// that writes them. Only tests import it.
package kerneltest

import (
	"embed"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// The trees.
const (
	// Server has two packages of two nodes each, two cores a node and two threads
	// a core; huge pages of both sizes, a NIC with virtual functions on node 1, an
	// NVMe disk on node 2 and a Fibre Channel adapter.
	Server = "server"
	// Laptop has one node with four cores of two threads; a SATA disk and a CD
	// drive known to udev, USB devices, a radio, graphics and SMBIOS data.
	Laptop = "laptop"
	// Memory is a host that merges pages by KSM's advisor, swaps to a disk through zswap and to a
	// file, and has two nodes with huge pages. Process 7 is a QEMU and 37 is ksmd. It has nothing
	// else of a host.
	Memory = "memory"
	// SELinux and AppArmor are hosts that enforce one, and nothing else of a host.
	SELinux  = "selinux"
	AppArmor = "apparmor"
)

//go:embed *.tree
var trees embed.FS

// Host writes a tree out and gives its root.
func Host(t testing.TB, tree string) kernel.Root {
	t.Helper()
	return kernel.At(Dir(t, tree))
}

// Dir writes a tree out and gives its folder, for tests that change it.
func Dir(t testing.TB, tree string) string {
	t.Helper()
	text, err := trees.ReadFile(tree + ".tree")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	Write(t, dir, string(text))
	return dir
}

// Write makes files below dir from lines of four forms. The first three are one
// entry each; the fourth starts a file that runs until the next blank line. Blank
// lines and lines that start with # are skipped.
//
//	PATH = one line
//	PATH := bytes in hexadecimal
//	PATH -> target of a symbolic link
//	PATH:
func Write(t testing.TB, dir, text string) {
	t.Helper()
	open := ""
	for line := range strings.Lines(text) {
		switch {
		case open != "" && strings.TrimSpace(line) != "":
			appendFile(t, filepath.Join(dir, open), []byte(line))
		case open != "":
			open = ""
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
		default:
			open = writeEntry(t, dir, strings.TrimSuffix(line, "\n"))
		}
	}
}

// writeEntry makes the entry of one line. It returns the path of a file if the
// following lines are the content of that file.
func writeEntry(t testing.TB, dir, line string) (open string) {
	t.Helper()
	if path, ok := strings.CutSuffix(line, ":"); ok && !strings.Contains(line, " ") {
		return path
	}
	path, rest, _ := strings.Cut(line, " ")
	kind, value, _ := strings.Cut(rest, " ")
	at := filepath.Join(dir, path)
	switch kind {
	case "=":
		appendFile(t, at, []byte(value+"\n"))
	case ":=":
		content, err := hex.DecodeString(strings.ReplaceAll(value, " ", ""))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		appendFile(t, at, content)
	case "->":
		makeParent(t, at)
		if err := os.Symlink(value, at); err != nil {
			t.Fatal(err)
		}
	default:
		t.Fatalf("cannot understand the line %q", line)
	}
	return ""
}

func appendFile(t testing.TB, path string, content []byte) {
	t.Helper()
	makeParent(t, path)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func makeParent(t testing.TB, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
}
