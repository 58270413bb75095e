package record

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// writeSums puts the sum of every file into one, as sha256sum does.
func writeSums(dir string) error {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		if err != nil || entry.IsDir() || name == sumsFile || name == checkpointFile || name == JournalFile {
			return err
		}
		sum, err := sumOf(path)
		fmt.Fprintf(&b, "%s  %s\n", sum, name)
		return err
	})
	if err == nil {
		err = replace(filepath.Join(dir, sumsFile), []byte(b.String()))
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot write the run's sums")
}

func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// checkSums refuses a run that was changed after it had ended. One that has not
// ended has no sums.
func checkSums(dir string) error {
	f, err := os.Open(filepath.Join(dir, sumsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot read the run's sums")
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		want, name, ok := strings.Cut(lines.Text(), "  ")
		if !ok || !filepath.IsLocal(name) {
			return fault.New(fault.Invalid, fault.Host, "%s has a line that is none: %q", sumsFile, lines.Text())
		}
		got, err := sumOf(filepath.Join(dir, name))
		if err != nil {
			return fault.Wrap(err, fault.Invalid, fault.Host, "the run in %s is not whole", dir)
		}
		if got != want {
			return fault.New(fault.Invalid, fault.Host, "%s of the run in %s was changed after the run: its sum is not that in %s", name, dir, sumsFile)
		}
	}
	return lines.Err()
}
