package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// target is one fuzz target.
type target struct {
	Package string // its folder, from the root of the project
	Name    string
}

// levels is what a folder below internal has in front of the room that it belongs to.
var levels = regexp.MustCompile(`^internal/((edge|control|host|mechanism|format|decision|word|base)/)?`)

func (t target) String() string { return levels.ReplaceAllString(t.Package, "") + "." + t.Name }

// archive is the name of the file that keeps its inputs.
func (t target) archive() string { return strings.ReplaceAll(t.String(), "/", "-") + ".tar.gz" }

var declared = regexp.MustCompile(`(?m)^func (Fuzz\w*)\(`)

// findTargets gives the fuzz targets of the tree, in order of their names.
func findTargets(root string) ([]target, error) {
	var found []target
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata"):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		for _, m := range declared.FindAllSubmatch(source, -1) {
			found = append(found, target{Package: folder, Name: string(m[1])})
		}
		return err
	})
	slices.SortFunc(found, func(a, b target) int { return strings.Compare(a.String(), b.String()) })
	return found, err
}

// measured is what one run of a target came to.
type measured struct {
	began   time.Time
	seconds int // of processor time, of all its workers: on a busy host others mean nothing
	tried   int
	fresh   int // inputs that reached what none before them did
	kept    int // inputs in its archive
	broken  bool
}

func (m measured) String() string {
	result := "held"
	if m.broken {
		result = "BROKEN"
	}
	return fmt.Sprintf("%d s of processor time, %d inputs tried, %d new, %d kept, %s", m.seconds, m.tried, m.fresh, m.kept, result)
}

// minimizing bounds how often Go's fuzzer tries to make an input smaller that it has
// learnt something from. It tries as often as the square of its length, and for a
// minute when nothing is said: all of a short run, and none of that is counted.
const minimizing = "500x"

// fuzz runs the target with the inputs below corpus. An input that breaks the target is left in its package's
// testdata/fuzz, and the output is shown.
func (t target) fuzz(ctx context.Context, length time.Duration, corpus, scratch string) (measured, error) {
	program := filepath.Join(scratch, "program")
	only := "^" + t.Name + "$"
	build := exec.CommandContext(ctx, "go", "test", "-c", "-fuzz", only, "-o", program, "./"+t.Package)
	if said, err := build.CombinedOutput(); err != nil {
		return measured{}, fmt.Errorf("cannot build %s: %w\n%s", t, err, said)
	}
	// Who else works here goes first, in other sessions too: the kernel weighs those
	// as wholes where it groups them.
	command := exec.CommandContext(ctx, "sh", "-c", `{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec chrt -i 0 "$@"`, "sh", program, "-test.run", "^$", "-test.fuzz", only,
		"-test.fuzztime", length.String(), "-test.fuzzminimizetime", minimizing, "-test.fuzzcachedir", corpus, "-test.parallel", "2")
	command.Dir = t.Package
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// Targets that need files have them in memory, where nothing waits for a disk.
	if files, err := os.MkdirTemp("/dev/shm", "fuzz"); err == nil {
		defer func() { _ = os.RemoveAll(files) }()
		command.Env = append(os.Environ(), "TMPDIR="+files)
	}
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = time.Minute
	began := time.Now()
	said, err := command.CombinedOutput()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) && ctx.Err() == nil {
		return measured{}, fmt.Errorf("cannot run %s: %w", t, err)
	}
	// A target that is interrupted during the kept inputs also fails, without an input that breaks it.
	cutOff := ctx.Err() != nil && !bytes.Contains(said, []byte("Failing input written"))
	m := measured{began: began, broken: failed != nil && !onlyLate(said) && !cutOff}
	m.tried, m.fresh = counts(said)
	if done := command.ProcessState; done != nil {
		m.seconds = int((done.UserTime() + done.SystemTime()).Seconds())
	}
	if m.broken {
		fmt.Fprintf(os.Stdout, "%s", shown(said))
	}
	return m, nil
}

// onlyLate says whether a run failed for nothing but that its time was over while an
// input was being tried: Go's fuzzer calls that a failure.
func onlyLate(said []byte) bool {
	return bytes.Contains(said, []byte("context deadline exceeded\nFAIL")) && !bytes.Contains(said, []byte("Failing input written"))
}

var progress = regexp.MustCompile(`, execs: (\d+) .*, new interesting: (\d+) `)

// counts reads from the fuzzer's output how many inputs it tried, and how many of them
// were new to it.
func counts(said []byte) (tried, fresh int) {
	all := progress.FindAllSubmatch(said, -1)
	if len(all) == 0 {
		return 0, 0
	}
	last := all[len(all)-1]
	tried, _ = strconv.Atoi(string(last[1]))
	fresh, _ = strconv.Atoi(string(last[2]))
	return tried, fresh
}

// shown is the output without its progress, cut to what a screen takes.
func shown(said []byte) string {
	var kept []string
	for row := range strings.Lines(string(said)) {
		if !strings.HasPrefix(row, "fuzz: elapsed") && len(kept) < 60 {
			kept = append(kept, row)
		}
	}
	return strings.Join(kept, "")
}
