package provision

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/seclabel"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// labelOf returns the definition's seclabel for the host's model. Nil: it has none.
func labelOf(r *machine.Registry, def *domain.Definition) *domain.SecLabel {
	for i := range def.SecLabels {
		if l := &def.SecLabels[i]; l.Model == r.Labels.Model || l.Model == "" && l.Type == "none" {
			return l
		}
	}
	return nil
}

// CheckLabels refuses a definition with labels that this host cannot provide.
func CheckLabels(r *machine.Registry, def *domain.Definition) error {
	for _, l := range def.SecLabels {
		mandatory := l.Model == seclabel.SELinux || l.Model == seclabel.AppArmor
		switch {
		case !mandatory || l.Type == "none":
		case l.Type == "static" && (r.Labels == nil || r.Labels.Model != l.Model):
			return fault.New(fault.Unsupported, fault.Config, "seclabel/label of model %s is not supported: this host does not label guests by %s", l.Model, l.Model)
		case l.Type == "static" && l.Label == "":
			return fault.New(fault.Invalid, fault.Config, "a seclabel of type static needs a <label>")
		case l.Type != "static" && l.Relabel == device.Off:
			return fault.New(fault.Unsupported, fault.Config, "seclabel/@relabel \"no\" of type dynamic is not supported: files need the label that is generated at each start")
		}
	}
	for _, d := range def.Devices.Disks {
		if err := checkSourceLabel(r, d); err != nil {
			return err
		}
	}
	return nil
}

// checkSourceLabel refuses a disk with a source label that this host cannot provide.
func checkSourceLabel(r *machine.Registry, d *device.Disk) error {
	if d.Source == nil {
		return nil
	}
	for _, l := range d.Source.SecLabels {
		if l.Label == "" {
			continue
		}
		if r.Labels == nil || r.Labels.Model != l.Model {
			return fault.New(fault.Unsupported, fault.Config, "disk/source/seclabel/label of disk %s is not supported: this host does not label guests by %s", d.Target, l.Model)
		}
		if _, err := seclabel.ParseContext(l.Label); err != nil {
			return fmt.Errorf("cannot label disk %s: %w", d.Target, err)
		}
	}
	return nil
}

// LabelRequest returns the label that a starting guest is to get. on is false if it gets none.
func LabelRequest(r *machine.Registry, def *domain.Definition) (w seclabel.Request, on bool, err error) {
	if r.LabelsRequired && r.NoLabels != nil {
		return w, false, fault.New(fault.Unsupported, fault.Host, "guests need labels here (--security-labels=require), and this host cannot provide them: %v", r.NoLabels)
	}
	if err := CheckLabels(r, def); err != nil || r.Labels == nil {
		return w, false, err
	}
	w = seclabel.Request{UUID: def.UUID, Emulated: def.Virt != "kvm"}
	said := labelOf(r, def)
	if said == nil {
		return w, true, nil
	}
	if said.Type == "none" {
		if r.LabelsRequired {
			return w, false, fault.New(fault.Denied, fault.Config, "guests need labels here (--security-labels=require), but the definition has <seclabel type='none'>")
		}
		return w, false, nil
	}
	w.Base = said.BaseLabel
	if said.Type == "static" {
		w.Label, w.Leave = said.Label, said.Relabel != device.On
	}
	return w, true, nil
}

// LabelBarrier names the model among the barriers that isolate guests.
func LabelBarrier(r *machine.Registry) string {
	if r.Labels.Enforcing {
		return r.Labels.Model
	}
	return r.Labels.Model + "-permissive"
}

// ShowLabels adds the guest's label to the definition of a starting guest.
func ShowLabels(r *machine.Instance, g seclabel.Guest) {
	shown := domain.SecLabel{Type: "dynamic", Model: g.Model, Relabel: device.On}
	i := slices.IndexFunc(r.Definition.SecLabels, func(l domain.SecLabel) bool { return l.Model == g.Model })
	if i >= 0 {
		if said := r.Definition.SecLabels[i]; said.Type != "" {
			shown = said
			if shown.Type == "dynamic" {
				shown.Relabel = device.On
			}
		}
		r.Definition.SecLabels = slices.Delete(slices.Clone(r.Definition.SecLabels), i, i+1)
	}
	shown.Label, shown.ImageLabel = g.Process, g.Image
	if g.Model == seclabel.AppArmor {
		shown.ImageLabel = g.Process
	}
	if shown.Type == "static" && shown.Relabel != device.On {
		shown.ImageLabel = ""
	}
	r.Definition.SecLabels = append([]domain.SecLabel{shown}, r.Definition.SecLabels...)
}

func labelDir(r *machine.Registry) string { return filepath.Join(r.DataDir, "labels") }

// NewLabels makes the labels of a guest that starts; nil: the host enforces none.
func NewLabels(r *machine.Registry, uuid string, g seclabel.Guest, log *slog.Logger) *filelabel.Labels {
	l := &filelabel.Labels{
		Host: r.Labels, Leases: &r.LabelLeases, Log: log, UUID: uuid, Path: filepath.Join(labelDir(r), uuid+filelabel.LabelSuffix),
		Turn: make(chan struct{}, 1), Labelled: filelabel.Labelled{Guest: g}, Root: r.Kernel,
	}
	if l.Host != nil {
		l.Root = l.Host.Root
	}
	l.Turn <- struct{}{}
	return l
}

// LoadLabels reads the journals of earlier daemons before any guest is adopted. Running guests and guests
// that have ended may share files.
func LoadLabels(r *machine.Registry) {
	paths, err := filepath.Glob(filepath.Join(labelDir(r), "*"+filelabel.LabelSuffix))
	if err != nil {
		return // only a malformed pattern fails
	}
	r.LeftLabels = map[string]*filelabel.Labels{}
	for _, path := range paths {
		uuid := strings.TrimSuffix(filepath.Base(path), filelabel.LabelSuffix)
		l, err := ReadLabels(r, uuid, path)
		if err != nil {
			r.Log.Error("cannot read a label journal; files may keep a guest's label", "journal", path, "error", err)
			continue
		}
		for _, f := range l.Files {
			r.LabelLeases.Restore(f.FileID, l.LeaseUser(f.For), f.Before, f.After)
		}
		if r.Labels != nil {
			r.Labels.Reserve(l.Guest, uuid)
		}
		r.LeftLabels[uuid] = l
	}
}

// ReadLabels reads the journal of a guest's labels, of at most filelabel.MaxJournal bytes.
func ReadLabels(r *machine.Registry, uuid, path string) (*filelabel.Labels, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > filelabel.MaxJournal {
		err = errors.New("it is too large")
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(path)
	}
	l := NewLabels(r, uuid, seclabel.Guest{}, r.Log.With("uuid", uuid))
	if err == nil {
		err = json.NewDecoder(bytes.NewReader(text)).Decode(&l.Labelled)
	}
	return l, err
}

// ReholdLabels lets an adopted guest keep its labels, and pushes their release.
func ReholdLabels(r *machine.Registry, run *machine.Instance) {
	if run.Labels = r.LeftLabels[run.UUID]; run.Labels != nil {
		run.PushRelease("label", run.Labels.End)
	}
}

// SweepLabels restores the labels of guests that a reboot ended, or that ended before anything else was
// recorded. It runs after all adoptions.
func SweepLabels(r *machine.Registry) {
	ctx, stop := context.WithTimeout(r.Life, machine.ReleaseLimit)
	defer stop()
	for uuid, l := range r.LeftLabels {
		if g := r.GuestsByUUID[uuid]; g != nil && g.Instance != nil && g.Instance.Labels == l {
			continue
		}
		if pid, err := EmulatorIn(r, r.GuestDir(uuid)); pid != 0 || err != nil {
			continue
		}
		if err := l.End(ctx); err != nil {
			l.Log.Error("cannot restore the labels of an ended guest's files", "error", err)
		}
	}
	r.LeftLabels = nil
}
