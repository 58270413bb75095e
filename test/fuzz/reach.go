package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// function is one of Lodge's that a target enters.
type function struct {
	file, name  string
	first, last int // lines
	of, reached int // statements
}

func (f function) left() int { return f.of - f.reached }

// extent is the coverage of a target's seeds and kept inputs: the covered share of the statements in all functions
// that it enters. A target that enters few functions may have a high share without being deep. A small share most
// likely means that an early check stops the target.
type extent struct {
	entered []function
	strange int // kept inputs that the target does not take any more
}

func (e extent) sum() (reached, of int) {
	for _, f := range e.entered {
		reached += f.reached
		of += f.of
	}
	return reached, of
}

// shownLeft is how many functions with the most uncovered statements are named.
const shownLeft = 5

// measureReach prints how far each target reaches.
func measureReach(ctx context.Context, out io.Writer, targets []target) error {
	module, err := exec.CommandContext(ctx, "go", "list", "-m").Output()
	if err != nil {
		return fmt.Errorf("cannot find the module: %w", err)
	}
	scratch, err := os.MkdirTemp("", "fuzz-reach")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	built := ""
	program := filepath.Join(scratch, "program")
	for _, t := range targets {
		if t.Package != built { // they are in order
			build := exec.CommandContext(ctx, "go", "test", "-c", "-cover", "-coverpkg", "./...", "-o", program, "./"+t.Package)
			if said, err := build.CombinedOutput(); err != nil {
				return fmt.Errorf("cannot build the tests of %s: %w\n%s", t.Package, err, said)
			}
			built = t.Package
		}
		e, err := t.reach(ctx, program, strings.TrimSpace(string(module)), scratch)
		if err != nil {
			return err
		}
		e.print(out, t)
	}
	return nil
}

func (e extent) print(out io.Writer, t target) {
	reached, of := e.sum()
	fmt.Fprintf(out, "%s: %d of %d statements, %d %%\n", t, reached, of, 100*reached/max(of, 1))
	if e.strange > 0 {
		fmt.Fprintf(out, "    %d inputs of its archive are of other values than it takes\n", e.strange)
	}
	slices.SortFunc(e.entered, func(a, b function) int { return cmp.Or(b.left()-a.left(), strings.Compare(a.name, b.name)) })
	for _, f := range e.entered[:min(len(e.entered), shownLeft)] {
		if f.left() > 0 {
			fmt.Fprintf(out, "    %s:%d %s: %d of %d\n", f.file, f.first, f.name, f.reached, f.of)
		}
	}
}

// reach runs a target's inputs once, in a copy of its package's folder that has the kept
// ones among the seeds.
func (t target) reach(ctx context.Context, program, module, scratch string) (e extent, err error) {
	folder, err := os.MkdirTemp(scratch, "package")
	if err != nil {
		return e, err
	}
	inputs := filepath.Join(folder, "testdata", "fuzz", t.Name)
	if err := errors.Join(linkAll(t.Package, folder, "testdata"), linkAll(filepath.Join(t.Package, "testdata"), filepath.Join(folder, "testdata"), "fuzz"),
		linkAll(filepath.Join(t.Package, "testdata", "fuzz", t.Name), inputs, ""), unpack(filepath.Join(corpusFolder, t.archive()), inputs)); err != nil {
		return e, err
	}
	if e.strange, err = t.dropStrange(inputs); err != nil {
		return e, err
	}
	profile := filepath.Join(folder, "profile")
	run := exec.CommandContext(ctx, program, "-test.run", "^"+t.Name+"$", "-test.coverprofile", profile)
	run.Dir = folder
	if said, err := run.CombinedOutput(); err != nil {
		return e, fmt.Errorf("cannot run %s: %w\n%s", t, err, shown(said))
	}
	text, err := os.Open(profile)
	if err != nil {
		return e, err
	}
	defer text.Close()
	e.entered, err = readProfile(text, module)
	return e, err
}

// linkAll makes links to all in a folder but one, if the folder is there.
func linkAll(from, to, but string) error {
	entries, err := os.ReadDir(from)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		from, err = filepath.Abs(from)
	}
	if err == nil {
		err = os.MkdirAll(to, 0o755)
	}
	for _, one := range entries {
		if err == nil && one.Name() != but {
			err = os.Symlink(filepath.Join(from, one.Name()), filepath.Join(to, one.Name()))
		}
	}
	return err
}

// readProfile gives the functions of a profile of Go's that were entered. Of each block
// it has a line with file, beginning, end, statements and whether it was reached.
func readProfile(profile io.Reader, module string) ([]function, error) {
	files := map[string][]function{}
	lines := bufio.NewScanner(profile)
	for lines.Scan() {
		place, counts, found := strings.Cut(lines.Text(), " ")
		file, span, _ := strings.Cut(place, ":")
		if !found || file == "mode" {
			continue
		}
		var statements, times int
		if _, err := fmt.Sscan(counts, &statements, &times); err != nil {
			return nil, fmt.Errorf("a profile's line %q: %w", lines.Text(), err)
		}
		line, _, _ := strings.Cut(span, ".")
		at, err := strconv.Atoi(line)
		if err != nil {
			return nil, fmt.Errorf("a profile's line %q: %w", lines.Text(), err)
		}
		if _, known := files[file]; !known {
			if files[file], err = functionsOf(strings.TrimPrefix(file, module+"/")); err != nil {
				return nil, err
			}
		}
		for i, f := range files[file] {
			if f.first <= at && at <= f.last {
				files[file][i].of += statements
				files[file][i].reached += statements * min(times, 1)
				break
			}
		}
	}
	var entered []function
	for _, all := range files {
		entered = append(entered, slices.DeleteFunc(all, func(f function) bool { return f.reached == 0 })...)
	}
	return entered, lines.Err()
}

// functionsOf are the functions of a file.
func functionsOf(path string) ([]function, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var all []function
	for _, d := range file.Decls {
		if f, is := d.(*ast.FuncDecl); is {
			all = append(all, function{file: path, name: f.Name.Name, first: set.Position(f.Pos()).Line, last: set.Position(f.End()).Line})
		}
	}
	return all, nil
}
