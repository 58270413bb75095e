package experiment

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/tuning"
)

// Journal is what a run has made and changed, written before it does. It lies beside
// the record, and is there only while there may be something to take back.
type Journal struct {
	path  string
	state journalState
}

type journalState struct {
	Targets []record.Target `json:"targets,omitempty"` // where there may be guests of the run
	Outside bool            `json:"outside,omitempty"` // there may be something outside of guests
	Changes []tuning.Change `json:"changes,omitempty"` // of the host's settings, in their order
}

// OpenJournal reads the journal of a run's directory, or begins one.
func OpenJournal(dir string) (*Journal, error) {
	j := &Journal{path: filepath.Join(dir, record.JournalFile)}
	text, err := os.ReadFile(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return j, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &j.state)
	}
	return j, fault.Wrap(err, fault.Invalid, fault.Host, "cannot read what the run in %s may have left", dir)
}

// Left says whether there may be something to take back, and at which targets.
func (j *Journal) Left() ([]record.Target, bool) {
	return j.state.Targets, len(j.state.Targets) > 0 || len(j.state.Changes) > 0 || j.state.Outside
}

// Outside says whether there may be something outside of guests.
func (j *Journal) Outside() bool { return j.state.Outside }

// MadeOutside notes that there will be.
func (j *Journal) MadeOutside() error {
	if j.state.Outside {
		return nil
	}
	j.state.Outside = true
	return j.save()
}

// Made notes that there will be something at a target.
func (j *Journal) Made(t record.Target) error {
	if slices.Contains(j.state.Targets, t) {
		return nil
	}
	j.state.Targets = append(j.state.Targets, t)
	return j.save()
}

// Changed notes what settings will be changed.
func (j *Journal) Changed(changes []tuning.Change) error {
	j.state.Changes = append(j.state.Changes, changes...)
	return j.save()
}

// Restore takes all changes back. What somebody else changed since is left, and
// told.
func (j *Journal) Restore(host tuning.Host) ([]string, error) {
	if len(j.state.Changes) == 0 {
		return nil, nil
	}
	left, err := host.Restore(j.state.Changes)
	if err != nil {
		return left, err
	}
	j.state.Changes = nil
	return left, j.save()
}

// Forget ends the journal: everything is taken back.
func (j *Journal) Forget() error {
	j.state = journalState{}
	if err := os.Remove(j.path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// save replaces the file, and is on disk when it returns: a crash may follow.
func (j *Journal) save() error {
	text, err := json.MarshalIndent(j.state, "", "  ")
	if err != nil {
		return err
	}
	fresh := j.path + ".new"
	f, err := os.Create(fresh)
	if err == nil {
		_, err = f.Write(text)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		err = os.Rename(fresh, j.path)
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot note what the run is about to make")
}
