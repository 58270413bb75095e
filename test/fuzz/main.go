// Command fuzz runs the project's fuzz targets one after the other, on the time
// of the processors that nobody else wants. What each learns is kept in
// test/corpus, one archive a target, and how long and to what end each was run is
// told by docs/fuzzing.md: both outlive the machine that fuzzed.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

const (
	corpusFolder = "test/corpus"
	ledgerPage   = "docs/fuzzing.md"
	// cacheFolder is where Go's fuzzer reads and adds inputs: all that this
	// machine ever learnt, of which the archives are the best part.
	cacheFolder = ".cache/fuzz/corpus"
)

func main() {
	if len(os.Args) < 2 || len(os.Args) > 3 {
		fmt.Fprintln(os.Stderr, "usage: scripts/fuzz DURATION [PATTERN]")
		os.Exit(2)
	}
	pattern := ""
	if len(os.Args) == 3 {
		pattern = os.Args[2]
	}
	// Cut off, it still counts and keeps what the target that runs has learnt.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1], pattern); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run fuzzes the targets that the pattern chooses, each for the duration. It goes
// on behind one that breaks, and says so at the end.
func run(ctx context.Context, duration, pattern string) error {
	if _, err := time.ParseDuration(duration); err != nil {
		return fmt.Errorf("cannot fuzz for %q: a duration is a number with a unit, as in 30s or 1h", duration)
	}
	chosen, err := regexp.Compile(pattern)
	if err != nil {
		return fmt.Errorf("cannot choose targets by %q: %w", pattern, err)
	}
	targets, err := findTargets(".")
	if err != nil {
		return err
	}
	cache, err := filepath.Abs(cacheFolder)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "fuzz")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()

	broken, none := 0, true
	for _, t := range targets {
		if ctx.Err() != nil {
			break
		}
		if !chosen.MatchString(t.String()) {
			continue
		}
		none = false
		inputs, archive := filepath.Join(cache, t.Package, t.Name), filepath.Join(corpusFolder, t.archive())
		if err := unpack(archive, inputs); err != nil {
			return err
		}
		measured, err := t.fuzz(ctx, duration, filepath.Dir(inputs), scratch)
		if err != nil {
			return err
		}
		if measured.kept, err = pack(archive, inputs, archiveBound(len(targets))); err != nil {
			return err
		}
		if err := record(ledgerPage, targets, t, measured); err != nil {
			return err
		}
		fmt.Fprintf(os.Stdout, "%s: %s\n", t, measured)
		if measured.broken {
			broken++
		}
	}
	switch {
	case broken > 0:
		return fmt.Errorf("%d targets broke: commit the input that each left in its testdata/fuzz with the mend", broken)
	case none:
		return fmt.Errorf("no target's PACKAGE.NAME matches %q", pattern)
	}
	return nil
}
