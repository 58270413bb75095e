package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"
)

const (
	// inputBound excludes large inputs from the archives. Small inputs reach as much code, and run more often.
	inputBound = 4 << 10
	// All archives together stay below wholeBound, and none is above eachBound.
	eachBound  = 64 << 10
	wholeBound = 2 << 20
)

func archiveBound(targets int) int { return min(eachBound, wholeBound/max(targets, 1)) }

// input is a file of Go's fuzzer: text, named by its digest.
type input struct {
	content []byte
	learnt  time.Time // when the fuzzer found it; orders them only
}

// kinds lists the types of the values in an input: the text before the parenthesis of each line except the first.
func (i input) kinds() string {
	var kinds strings.Builder
	_, values, _ := bytes.Cut(i.content, []byte("\n"))
	for line := range bytes.Lines(values) {
		kind, _, _ := bytes.Cut(line, []byte("("))
		kinds.Write(bytes.TrimSpace(kind))
		kinds.WriteByte('\n')
	}
	return kinds.String()
}

// name is the one that Go's fuzzer gives a file of this content. An archive's own
// names are not asked, and so cannot lead anywhere.
func (i input) name() string { return fmt.Sprintf("%x", sha256.Sum256(i.content))[:16] }

// unpack puts an archive's inputs into the folder that the fuzzer reads, beside
// those that are there. A missing archive is an empty one.
func unpack(archive, folder string) error {
	packed, err := os.Open(archive)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer packed.Close()
	inputs, err := readArchive(packed)
	if err != nil {
		return fmt.Errorf("cannot unpack %s: %w", archive, err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, i := range inputs {
		path := filepath.Join(folder, i.name())
		if _, err := os.Stat(path); err == nil {
			continue // learnt here, or unpacked before
		}
		if err := os.WriteFile(path, i.content, 0o644); err != nil {
			return err
		}
		if err := os.Chtimes(path, i.learnt, i.learnt); err != nil {
			return err
		}
	}
	return nil
}

// readArchive gives the inputs newest first, as they lie in the archive. Their
// times, which it does not hold, count down to the beginning of time, so that all
// that is learnt later is newer.
func readArchive(packed io.Reader) ([]input, error) {
	plain, err := gzip.NewReader(packed)
	if err != nil {
		return nil, err
	}
	files := tar.NewReader(plain)
	var inputs []input
	for {
		_, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(io.LimitReader(files, inputBound+1))
		if err != nil {
			return nil, err
		}
		if len(content) > inputBound {
			return nil, fmt.Errorf("an input is larger than %d bytes", inputBound)
		}
		inputs = append(inputs, input{content: content})
	}
	for n := range inputs {
		inputs[n].learnt = time.Unix(int64(len(inputs)-n), 0)
	}
	return inputs, nil
}

// pack rebuilds the archive from the folder, newest inputs first, up to the bound. It returns the number of
// inputs. The same inputs in the same order give the same bytes.
func pack(archive, folder string, bound int) (int, error) {
	inputs, err := readFolder(folder)
	if err != nil || len(inputs) == 0 {
		return 0, err
	}
	// What a target took before it was given other values is of no use to it.
	kinds := inputs[0].kinds()
	inputs = slices.DeleteFunc(inputs, func(i input) bool { return i.kinds() != kinds })
	// One more input never makes an archive noticeably smaller.
	count := sort.Search(len(inputs), func(n int) bool { return len(writeArchive(inputs[:n+1])) > bound })
	packed := writeArchive(inputs[:count])
	if was, err := os.ReadFile(archive); err == nil && bytes.Equal(was, packed) {
		return count, nil
	}
	beside := archive + ".new"
	if err := os.WriteFile(beside, packed, 0o644); err != nil {
		return 0, err
	}
	return count, os.Rename(beside, archive)
}

func readFolder(folder string) ([]input, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var inputs []input
	for _, entry := range entries {
		about, err := entry.Info()
		if err != nil {
			return nil, err
		}
		if !about.Mode().IsRegular() || about.Size() > inputBound {
			continue
		}
		content, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, input{content: content, learnt: about.ModTime()})
	}
	slices.SortFunc(inputs, func(a, b input) int {
		return cmp.Or(b.learnt.Compare(a.learnt), cmp.Compare(a.name(), b.name()))
	})
	return inputs, err
}

func writeArchive(inputs []input) []byte {
	var packed bytes.Buffer
	plain, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // fails for other levels only
	files := tar.NewWriter(plain)
	for _, i := range inputs {
		header := tar.Header{Name: i.name(), Mode: 0o644, Size: int64(len(i.content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		// Nothing fails on the way into memory.
		_ = files.WriteHeader(&header)
		_, _ = files.Write(i.content)
	}
	_ = files.Close()
	_ = plain.Close()
	return packed.Bytes()
}
