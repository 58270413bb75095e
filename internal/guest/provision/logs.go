package provision

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
)

// OpenLog opens the guest's log and writes the command line with its purpose, so that an administrator can
// run it by hand. A full or read-only disk does not keep the guest from starting: its output is lost then.
func OpenLog(r *machine.Registry, name, purpose, emulator string, c *qemu.Command) (*os.File, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", LogTime(time.Now()), purpose)
	for _, e := range c.Env {
		variable, value, _ := strings.Cut(e, "=")
		fmt.Fprintf(&b, "%s=%s \\\n", variable, fault.Word(value))
	}
	b.WriteString(emulator)
	for _, a := range c.Args {
		fmt.Fprintf(&b, " \\\n%s", fault.Word(a))
	}
	b.WriteByte('\n')
	f, err := AppendLog(r, name)
	if err == nil {
		_, err = f.WriteString(b.String())
	}
	if err != nil {
		r.Log.Warn("cannot write the guest's log; guest starts without it", "domain", name, "error", err)
	}
	if f == nil {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	return f, nil
}

// AppendLog opens the guest's log for appending.
func AppendLog(r *machine.Registry, name string) (*os.File, error) {
	path := filepath.Join(r.LogDir(), machine.FileStem(name)+".log")
	if err := rotate(path); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot rotate the log of domain %q", name)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return f, fault.Wrap(err, fault.Failed, fault.Host, "cannot open the log of domain %q", name)
}

// LogTime formats a time as libvirt does in a guest's log.
func LogTime(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05.000+0000") }

// MaxLog is the size in bytes at which a guest's log is rotated; one older log is kept. QEMU writes the
// log, and the guest can make it write. It must not fill the host's disk.
const MaxLog = 4 << 20

// rotate renames a log that has reached MaxLog.
func rotate(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() < MaxLog {
		return nil
	}
	return os.Rename(path, path+".0")
}

// StderrTail returns the end of QEMU's output, for an error that says why QEMU ended.
func StderrTail(r *machine.Registry, name string, p *qemuprocess.Process) string {
	words := readTail(filepath.Join(r.LogDir(), machine.FileStem(name)+".log"))
	if i := strings.LastIndex(words, ": starting\n"); i >= 0 {
		words = afterCommand(words[i:])
	}
	words = strings.TrimSpace(withoutNotices(words))
	if words == "" {
		return "it wrote nothing (" + p.Exit().String() + ")"
	}
	return words
}

// withoutNotices removes QEMU's line for each terminal that it opens: such a line explains no end.
func withoutNotices(text string) string {
	var rest strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "char device redirected to ") {
			rest.WriteString(line)
		}
	}
	return rest.String()
}

// afterCommand skips the logged command line: its lines end in a backslash.
func afterCommand(text string) string {
	_, rest, _ := strings.Cut(text, "\n")
	for {
		line, after, found := strings.Cut(rest, "\n")
		if !found {
			return ""
		}
		rest = after
		if !strings.HasSuffix(line, "\\") {
			return rest
		}
	}
}

// readTail returns the end of a log, at most tailSize bytes. It is empty if the log cannot be read.
func readTail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	b := make([]byte, tailSize)
	n, err := f.ReadAt(b, max(0, info.Size()-tailSize))
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return string(b[:n])
}
