// Command fuzz runs the project's fuzz targets one after the other, on idle processor time. Interesting inputs are
// kept in test/corpus, one archive a target. docs/fuzzing.md records the time and the result of each target. So
// both outlive the machine that ran the fuzzing.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	corpusFolder = "test/corpus"
	ledgerPage   = "docs/fuzzing.md"
	// cacheFolder is where Go's fuzzer reads and adds inputs. It holds all inputs that this machine has found; the
	// archives hold the best part of them.
	cacheFolder = ".cache/fuzz/corpus"
)

func main() {
	total := flag.Bool("total", false, "DURATION is that of all targets together: who had the least time so far gets the most of it")
	reach := flag.Bool("reach", false, "fuzz nothing: tell how far the seeds and kept inputs of each target reach")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: scripts/fuzz [-total] DURATION [PATTERN]\n       scripts/fuzz -reach [PATTERN]")
	}
	flag.Parse()
	args := flag.Args()
	if *reach {
		args = append([]string{""}, args...)
	}
	if len(args) < 1 || len(args) > 2 {
		flag.Usage()
		os.Exit(2)
	}
	// Cut off, it still counts and keeps what the target that runs has learnt.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	pattern := strings.Join(args[1:], "")
	var err error
	if *reach {
		err = runReach(ctx, pattern)
	} else {
		err = run(ctx, args[0], pattern, *total)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// choose gives all targets, and those that the pattern chooses.
func choose(pattern string) (all, chosen []target, err error) {
	match, err := regexp.Compile(pattern)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot choose targets by %q: %w", pattern, err)
	}
	if all, err = findTargets("."); err != nil {
		return nil, nil, err
	}
	for _, t := range all {
		if match.MatchString(t.String()) {
			chosen = append(chosen, t)
		}
	}
	if len(chosen) == 0 {
		return nil, nil, fmt.Errorf("no target's PACKAGE.NAME matches %q", pattern)
	}
	return all, chosen, nil
}

func runReach(ctx context.Context, pattern string) error {
	_, chosen, err := choose(pattern)
	if err != nil {
		return err
	}
	return measureReach(ctx, os.Stdout, chosen)
}

// run fuzzes the targets that the pattern chooses, each for the duration or all
// together for it. It goes on behind one that breaks, and says so at the end.
func run(ctx context.Context, duration, pattern string, total bool) error {
	length, err := time.ParseDuration(duration)
	if err != nil || length <= 0 {
		return fmt.Errorf("cannot fuzz for %q: a duration is a number with a unit, as in 30s or 1h", duration)
	}
	targets, chosen, err := choose(pattern)
	if err != nil {
		return err
	}
	turns := make([]turn, 0, len(chosen))
	for _, t := range chosen {
		turns = append(turns, turn{target: t, length: length})
	}
	if total {
		page, err := os.ReadFile(ledgerPage)
		if err != nil {
			return err
		}
		if turns, err = campaign(length, turns, string(page)); err != nil {
			return err
		}
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

	broken := 0
	for _, t := range turns {
		if ctx.Err() != nil {
			break
		}
		inputs, archive := filepath.Join(cache, t.Package, t.Name), filepath.Join(corpusFolder, t.archive())
		if err := unpack(archive, inputs); err != nil {
			return err
		}
		measured, err := t.fuzz(ctx, t.length, filepath.Dir(inputs), scratch)
		if err != nil {
			return err
		}
		if measured.kept, err = pack(archive, inputs, archiveBound(len(targets))); err != nil {
			return err
		}
		if err := record(ledgerPage, targets, t.target, measured); err != nil {
			return err
		}
		fmt.Fprintf(os.Stdout, "%s: %s\n", t.target, measured)
		if measured.broken {
			broken++
		}
	}
	if broken > 0 {
		return fmt.Errorf("%d targets broke: commit the input that each left in its testdata/fuzz with the mend", broken)
	}
	return nil
}
