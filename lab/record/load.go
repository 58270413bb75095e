package record

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Run is all that a directory holds.
type Run struct {
	Header
	Dir        string
	Samples    []Sample
	Histograms []Histogram
	Telemetry  []Telemetry
	Events     []Event
}

// maxLine bounds a line of a record: a histogram of a long window is tens of
// kilobytes.
const maxLine = 4 << 20

// Load reads a run, and refuses one that was changed after it had ended. Of one
// that has not, it gives the turns that have. Any of the files of lines may be
// packed, with .gz behind its name.
func Load(dir string) (*Run, error) {
	header, err := readHeader(dir)
	if err != nil {
		return nil, err
	}
	if err := checkSums(dir); err != nil {
		return nil, err
	}
	mark, partial, err := readCheckpoint(dir)
	if err != nil {
		return nil, err
	}
	partial = partial || header.Outcome == ""
	r := &Run{Header: header, Dir: dir}
	limit := func(name string) int64 {
		if !partial {
			return -1
		}
		return max(mark.Sizes[name], 0)
	}
	err = errors.Join(
		lines(dir, samplesFile, limit(samplesFile), &r.Samples),
		lines(dir, histogramsFile, limit(histogramsFile), &r.Histograms),
		lines(dir, telemetryFile, limit(telemetryFile), &r.Telemetry),
		lines(dir, eventsFile, limit(eventsFile), &r.Events),
	)
	for i := range r.Events {
		r.Events[i].complete()
	}
	return r, err
}

// Peek reads what a run is, without its values.
func Peek(dir string) (Header, error) { return readHeader(dir) }

// Command gives a text that was kept.
func (r *Run) Command(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(r.Dir, commandsDir, filepath.Base(name)))
	return string(text), fault.Wrap(err, fault.NotFound, fault.Host, "cannot read a text of the run")
}

func readHeader(dir string) (h Header, err error) {
	text, err := os.ReadFile(filepath.Join(dir, headerFile))
	if err != nil {
		return h, fault.Wrap(err, fault.NotFound, fault.Host, "%s holds no run", dir)
	}
	if err := json.Unmarshal(text, &h); err != nil {
		return h, fault.Wrap(err, fault.Invalid, fault.Host, "cannot read %s in %s", headerFile, dir)
	}
	if h.Schema != Schema && !h.Older() {
		return h, fault.New(fault.Invalid, fault.Host, "the run in %s has schema %q, and %s and %s are understood", dir, h.Schema, Schema, olderSchema)
	}
	return h, nil
}

// readCheckpoint says what counts of a run that has not ended.
func readCheckpoint(dir string) (mark checkpoint, there bool, err error) {
	text, err := os.ReadFile(filepath.Join(dir, checkpointFile))
	if errors.Is(err, fs.ErrNotExist) {
		return mark, false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &mark)
	}
	return mark, true, fault.Wrap(err, fault.Invalid, fault.Host, "cannot tell which turns of the run in %s count", dir)
}

// lines reads a file of lines, its first limit bytes, or all for -1.
func lines[T any](dir, name string, limit int64, into *[]T) error {
	in, closer, err := open(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) && limit <= 0 {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, fault.Invalid, fault.Host, "cannot read %s", name)
	}
	defer closer.Close()
	if limit >= 0 {
		in = io.LimitReader(in, limit)
	}
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, maxLine)
	number := 0
	for scanner.Scan() {
		number++
		var value T
		if err := json.Unmarshal(scanner.Bytes(), &value); err != nil {
			return fault.Wrap(err, fault.Invalid, fault.Host, "%s line %d", name, number)
		}
		*into = append(*into, value)
	}
	return fault.Wrap(scanner.Err(), fault.Invalid, fault.Host, "%s after line %d", name, number)
}

// open opens a file, or its packed form.
func open(path string) (io.Reader, io.Closer, error) {
	f, err := os.Open(path)
	if err == nil {
		return f, f, nil
	}
	packed, failure := os.Open(path + ".gz")
	if failure != nil {
		return nil, nil, err
	}
	in, err := gzip.NewReader(packed)
	if err != nil {
		_ = packed.Close()
		return nil, nil, err
	}
	return in, packed, nil
}

// Pack makes the files of lines of a run that has ended small, for keeping.
func Pack(dir string) error {
	header, err := readHeader(dir)
	if err != nil {
		return err
	}
	if header.Outcome != Complete {
		return fault.New(fault.WrongState, fault.Host, "the run in %s is not complete", dir)
	}
	if err := checkSums(dir); err != nil {
		return err
	}
	for _, name := range streamFiles {
		if err := pack(filepath.Join(dir, name)); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot pack %s", name)
		}
	}
	return writeSums(dir)
}

func pack(path string) error {
	in, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // packed already
	}
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(path + ".gz")
	if err != nil {
		return err
	}
	packed, _ := gzip.NewWriterLevel(out, gzip.BestCompression)
	_, err = io.Copy(packed, in)
	if err = errors.Join(err, packed.Close(), out.Close()); err != nil {
		return err
	}
	return os.Remove(path)
}
