package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// The files of a run, and those that are there only until it has ended.
const (
	headerFile     = "run.json"
	samplesFile    = "samples.ndjson"
	histogramsFile = "histograms.ndjson"
	telemetryFile  = "telemetry.ndjson"
	eventsFile     = "events.ndjson"
	commandsDir    = "commands"
	sumsFile       = "SHA256SUMS"
	checkpointFile = "checkpoint.json"
)

// JournalFile is where a run notes what it has made. It goes when all that is taken
// back, which may be after the end of the record.
const JournalFile = "journal.json"

var streamFiles = []string{samplesFile, histogramsFile, telemetryFile, eventsFile}

// Writer adds to a run. It is safe for concurrent use, and one process at a time
// has one of a directory.
type Writer struct {
	dir    string
	lock   *os.File
	Header Header // not to be changed, but through Describe

	mu      sync.Mutex
	streams map[string]*stream
	done    []Turn
}

// stream is one file of lines.
type stream struct {
	file *os.File
	out  *bufio.Writer
	size int64 // with what is not flushed yet
	mark int64 // what the turns that have ended make of it
}

// checkpoint says how much of each file the turns that have ended make.
type checkpoint struct {
	Done  []Turn           `json:"done"`
	Sizes map[string]int64 `json:"sizes"`
}

// Create begins a run in a directory that must not hold one.
func Create(dir string, header Header) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make the run's directory")
	}
	if _, err := os.Stat(filepath.Join(dir, headerFile)); err == nil {
		return nil, fault.New(fault.Exists, fault.Host, "%s holds a run already: resume it, or name another directory", dir)
	}
	header.Schema = Schema
	w := &Writer{dir: dir, Header: header, streams: map[string]*stream{}}
	err := w.hold()
	if err == nil {
		err = w.open(checkpoint{})
	}
	if err == nil {
		err = w.save()
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// Resume goes on with a run that has not ended, after its last turn that has.
func Resume(dir string) (*Writer, error) {
	header, err := readHeader(dir)
	if err != nil {
		return nil, err
	}
	if header.Outcome == Complete {
		return nil, fault.New(fault.WrongState, fault.Host, "the run in %s is complete: there is nothing to resume", dir)
	}
	if header.Older() {
		return nil, fault.New(fault.WrongState, fault.Host, "the run in %s was begun by an older lab, which counts otherwise: begin a new one", dir)
	}
	w := &Writer{dir: dir, Header: header, streams: map[string]*stream{}}
	err = w.hold()
	var mark checkpoint
	if err == nil {
		mark, _, err = readCheckpoint(dir)
	}
	if err == nil {
		err = w.open(mark)
	}
	if err == nil {
		w.Header.Ended, w.Header.Outcome = nil, ""
		err = errors.Join(removeIfThere(filepath.Join(dir, sumsFile)), w.save())
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// Hold keeps every process from the run in a directory, and fails while one has it.
func Hold(dir string) (release func(), err error) {
	w := &Writer{dir: dir}
	if err := w.hold(); err != nil {
		w.Close()
		return nil, err
	}
	return w.Close, nil
}

// hold makes this process the only one that writes here, until it ends or closes
// the run.
func (w *Writer) hold() (err error) {
	if w.lock, err = os.Open(w.dir); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot lock the run")
	}
	if err := unix.Flock(int(w.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fault.Wrap(err, fault.Busy, fault.Host, "another process runs %s", w.dir)
	}
	return nil
}

// open opens all files and cuts off what belongs to no turn that has ended.
func (w *Writer) open(mark checkpoint) error {
	w.done = mark.Done
	for _, name := range streamFiles {
		file, err := os.OpenFile(filepath.Join(w.dir, name), os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot open the run's values")
		}
		s := &stream{file: file, out: bufio.NewWriter(file), size: mark.Sizes[name], mark: mark.Sizes[name]}
		w.streams[name] = s
		if err := file.Truncate(s.size); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot cut %s to what counts", name)
		}
		if _, err := file.Seek(s.size, 0); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot go on with %s", name)
		}
	}
	return nil
}

// Dir is where the run lies.
func (w *Writer) Dir() string { return w.dir }

// Finished lists the turns that need not be done again.
func (w *Writer) Finished() []Turn {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Turn(nil), w.done...)
}

// Sample adds a value.
func (w *Writer) Sample(s Sample) error { return w.add(samplesFile, s) }

// Histogram adds a distribution.
func (w *Writer) Histogram(h Histogram) error { return w.add(histogramsFile, h) }

// Telemetry adds what something did in a second.
func (w *Writer) Telemetry(t Telemetry) error { return w.add(telemetryFile, t) }

// Event adds what happened.
func (w *Writer) Event(e Event) error { return w.add(eventsFile, e) }

func (w *Writer) add(name string, value any) error {
	text, err := encode(value)
	if err != nil {
		return fault.Wrap(err, fault.Internal, fault.Host, "cannot write a line of %s", name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.streams[name]
	if s == nil {
		return fault.New(fault.WrongState, fault.Host, "the run in %s is closed", w.dir)
	}
	n, err := s.out.Write(text)
	s.size += int64(n)
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot write %s", name)
}

func encode(value any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(value)
	return b.Bytes(), err
}

// Command keeps an exact text, such as a guest's definition, under a name.
func (w *Writer) Command(name, text string) error {
	if name == "" || strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, ".") {
		return fault.New(fault.Invalid, fault.Host, "%q is no name for a file in a run", name)
	}
	dir := filepath.Join(w.dir, commandsDir)
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot keep %s", name)
}

// Describe changes the header and writes it.
func (w *Writer) Describe(change func(*Header)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.Header)
	return w.save()
}

func (w *Writer) save() error {
	text, err := json.MarshalIndent(w.Header, "", "  ")
	if err == nil {
		err = replace(filepath.Join(w.dir, headerFile), append(text, '\n'))
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot write %s", headerFile)
}

// Finish marks a turn as ended: from here on it counts, whatever happens.
func (w *Writer) Finish(turn Turn) error {
	if err := w.Event(Event{Time: time.Now(), Turn: turn, Kind: Done}); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = append(w.done, turn)
	return w.mark()
}

// mark makes what is written so far what counts; with the lock held.
func (w *Writer) mark() error {
	mark := checkpoint{Done: w.done, Sizes: map[string]int64{}}
	for name, s := range w.streams {
		if err := errors.Join(s.out.Flush(), s.file.Sync()); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot write %s", name)
		}
		mark.Sizes[name], s.mark = s.size, s.size
	}
	text, err := encode(mark)
	if err == nil {
		err = replace(filepath.Join(w.dir, checkpointFile), text)
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot mark the end of a turn")
}

// Seal ends the run with sums over all of it and closes it. Of a turn
// that has not ended, which may be done again, only what was said is kept, such as why
// the run stops.
func (w *Writer) Seal(outcome Outcome) error {
	now := time.Now()
	err := w.Describe(func(h *Header) { h.Ended, h.Outcome = &now, outcome })
	w.mu.Lock()
	if err == nil && outcome != Complete {
		err = w.cut()
	}
	if err == nil {
		err = w.mark()
	}
	w.mu.Unlock()
	if err == nil && outcome == Complete {
		err = removeIfThere(filepath.Join(w.dir, checkpointFile))
	}
	if err == nil {
		err = writeSums(w.dir)
	}
	w.Close()
	return err
}

// cut takes away the values of a turn that has not ended; with the lock held.
func (w *Writer) cut() error {
	for name, s := range w.streams {
		if name == eventsFile {
			continue
		}
		err := errors.Join(s.out.Flush(), s.file.Truncate(s.mark))
		if err == nil {
			_, err = s.file.Seek(s.mark, 0)
		}
		if err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot cut %s to what counts", name)
		}
		s.size = s.mark
	}
	return nil
}

// Close leaves the run as it is. It can be resumed.
func (w *Writer) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.streams {
		_ = s.out.Flush()
		_ = s.file.Close()
	}
	clear(w.streams)
	if w.lock != nil {
		_ = w.lock.Close()
		w.lock = nil
	}
}

// replace puts a whole file where the old one was, or leaves the old one.
func replace(path string, text []byte) error {
	fresh := path + ".new"
	f, err := os.Create(fresh)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
