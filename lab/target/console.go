package target

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// The bounds of a console's last words.
const (
	lastLines = 8
	lastBytes = 4096
)

func (g *Guest) consoleName() string { return filepath.Base(g.console) }

// openConsole makes the file that the guest's serial port writes to. It is there
// before the daemon opens it, so that it is the lab's own to read, whoever runs
// QEMU.
func (g *Guest) openConsole(ctx context.Context) error {
	if g.at.Away() {
		_, err := g.site.volume(ctx, g.consoleName(), "raw", consoleSize, false, "")
		if err == nil {
			g.disks = append(g.disks, g.consoleName())
		}
		return err
	}
	f, err := os.OpenFile(g.console, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot make the file for %s's console", g.Name)
	}
	return f.Close()
}

// Console gives the last lines that the guest has written to its serial port, which
// is where a kernel says why it does not boot. The words are the guest's own, without
// what would steer a terminal.
func (g *Guest) Console(ctx context.Context) []string {
	text := g.consoleEnd(ctx)
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(strings.Map(printable, line)); line != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-lastLines):]
}

// consoleEnd is as much of it as is read; nothing where it cannot be.
func (g *Guest) consoleEnd(ctx context.Context) []byte {
	if g.at.Away() {
		text, _ := g.at.lastOf(ctx, g.site.files, g.consoleName(), lastBytes)
		return text
	}
	f, err := os.Open(g.console)
	if err != nil {
		return nil
	}
	defer f.Close()
	if s, err := f.Stat(); err == nil && s.Size() > lastBytes {
		_, _ = f.Seek(-lastBytes, io.SeekEnd)
	}
	text, _ := io.ReadAll(io.LimitReader(f, lastBytes))
	return text
}

func printable(r rune) rune {
	if r != utf8.RuneError && unicode.IsPrint(r) {
		return r
	}
	return -1
}
