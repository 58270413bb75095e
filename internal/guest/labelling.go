package guest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/seclabel"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// labelOf returns the definition's seclabel for the host's model. Nil: it has none.
func (r *Registry) labelOf(def *domain.Definition) *domain.SecLabel {
	for i := range def.SecLabels {
		if l := &def.SecLabels[i]; l.Model == r.Labels.Model || l.Model == "" && l.Type == "none" {
			return l
		}
	}
	return nil
}

// checkLabels refuses a definition with labels that this host cannot provide.
func (r *Registry) checkLabels(def *domain.Definition) error {
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
		if err := r.checkSourceLabel(d); err != nil {
			return err
		}
	}
	return nil
}

// checkSourceLabel refuses a disk with a source label that this host cannot provide.
func (r *Registry) checkSourceLabel(d *device.Disk) error {
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

// wishOf returns the label that a starting guest is to get. on is false if it gets none.
func (r *Registry) wishOf(def *domain.Definition) (w seclabel.Wish, on bool, err error) {
	if r.LabelsRequired && r.NoLabels != nil {
		return w, false, fault.New(fault.Unsupported, fault.Host, "guests need labels here (--security-labels=require), and this host cannot provide them: %v", r.NoLabels)
	}
	if err := r.checkLabels(def); err != nil || r.Labels == nil {
		return w, false, err
	}
	w = seclabel.Wish{UUID: def.UUID, Emulated: def.Virt != "kvm"}
	said := r.labelOf(def)
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

// takeLabel gives the guest a label of its own if the host enforces labels.
func (l *launching) takeLabel(context.Context) error {
	r := l.g.reg
	w, on, err := r.wishOf(l.run.def)
	if err != nil || !on {
		return err
	}
	named, err := r.Labels.Name(w)
	if err != nil {
		return err
	}
	labels := r.newLabels(l.run.UUID, named, l.run.log)
	l.run.labels = labels
	l.run.hold("label", labels.end)
	l.run.showLabels(named)
	l.run.Isolation = append(l.run.Isolation, r.labelBarrier())
	if named.Own == "" {
		return nil
	}
	own, err := os.Open(l.run.ownPath())
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot label the guest's own directory")
	}
	defer own.Close()
	return kernel.SetFileLabel(own, named.Own) // it is removed with the guest
}

// labelBarrier names the model among the barriers that isolate guests.
func (r *Registry) labelBarrier() string {
	if r.Labels.Enforcing {
		return r.Labels.Model
	}
	return r.Labels.Model + "-permissive"
}

// showLabels adds the guest's label to the definition of a starting guest.
func (r *run) showLabels(g seclabel.Guest) {
	shown := domain.SecLabel{Type: "dynamic", Model: g.Model, Relabel: device.On}
	i := slices.IndexFunc(r.def.SecLabels, func(l domain.SecLabel) bool { return l.Model == g.Model })
	if i >= 0 {
		if said := r.def.SecLabels[i]; said.Type != "" {
			shown = said
			if shown.Type == "dynamic" {
				shown.Relabel = device.On
			}
		}
		r.def.SecLabels = slices.Delete(slices.Clone(r.def.SecLabels), i, i+1)
	}
	shown.Label, shown.ImageLabel = g.Process, g.Image
	if g.Model == seclabel.AppArmor {
		shown.ImageLabel = g.Process
	}
	if shown.Type == "static" && shown.Relabel != device.On {
		shown.ImageLabel = ""
	}
	r.def.SecLabels = append([]domain.SecLabel{shown}, r.def.SecLabels...)
}

// diskWants returns the labels that the images of a disk need. A writable image gets the guest's own label.
// A shareable one gets the lowest level, which all guests may write. A read-only one is labelled as
// content.
func (l *labels) diskWants(d *device.Disk, a device.DiskAttachment) []loan {
	if l == nil || l.Model != seclabel.SELinux {
		return nil
	}
	var all []loan
	numbers := d.Nodes()
	for i, layer := range a.Layers {
		need := l.Content
		switch {
		case i > 0 || d.ReadOnly:
		case d.Shareable:
			need = l.Shared
		default:
			need = l.Image
		}
		if i == 0 {
			for _, said := range d.Source.SecLabels {
				if said.Model == l.Model && said.Relabel == device.Off {
					need = ""
				} else if said.Model == l.Model && said.Label != "" {
					need = said.Label
				}
			}
		}
		all = append(all, loan{layer.File, need, imageOwner(numbers[i])})
	}
	return all
}

// imageOwner names images of disks by their numbers. A device alias would not do: images may outlive a
// change of medium, and a block job may remove one image of a disk.
func imageOwner(numbers ...uint) string {
	names := make([]string, len(numbers))
	for i, n := range numbers {
		names[i] = fmt.Sprintf("image %d", n)
	}
	return strings.Join(names, ",")
}

// ownerOf names a device as the user of labels and rules, for as long as the guest has it.
func ownerOf(dev device.Device) string {
	if d, is := dev.(*device.Disk); is {
		return imageOwner(d.Nodes()...)
	}
	return dev.Common().Alias
}

// owners splits a name into those that it stands for.
func owners(by string) []string { return strings.Split(by, ",") }

// labelFiles labels the files that the guest is passed or shown.
func (l *launching) labelFiles(ctx context.Context) error {
	labels := l.run.labels
	if labels == nil || labels.Model != seclabel.SELinux {
		return nil
	}
	var all []loan
	for _, d := range l.run.def.Devices.Disks {
		all = append(all, labels.diskWants(d, l.plan.Disks[d.Alias])...)
	}
	code := l.run.def.OS.Loader
	for path, f := range l.plan.Files {
		need := labels.Image
		if path == code.Path && code.ReadOnly != device.Off {
			need = labels.Content
		}
		if !ofTheHost(path) {
			all = append(all, loan{f, need, ""})
		}
	}
	if l.from != nil {
		all = append(all, loan{l.from.file, labels.Content, ""})
	}
	for _, path := range readFiles(l.run.def) {
		f, err := openNamed(ctx, l.sc, path, os.O_RDONLY)
		if err != nil {
			continue // the code that shows the file reports the error
		}
		defer f.Close()
		all = append(all, loan{f, labels.Content, ""})
	}
	if log, err := l.g.reg.appendLog(l.run.def.Name); err == nil { // otherwise it starts without a log
		defer log.Close()
		all = append(all, loan{log, labels.Own, ""})
	}
	remarks, err := labels.lend(ctx, all)
	l.run.Messages = append(l.run.Messages, remarks...)
	return err
}

// ofTheHost reports whether a file belongs to the host's programs. Every guest may read these by policy,
// and they are not relabelled.
func ofTheHost(path string) bool { return strings.HasPrefix(filepath.Clean(path), "/usr/") }

// giveBackLimit bounds the wait for a file's own label.
const giveBackLimit = 30 * time.Second

// lendImage labels a file that QEMU writes or reads while it moves the guest's memory. The returned
// function restores the label.
func (l *labels) lendImage(ctx context.Context, f *os.File) (func(), error) {
	if l == nil || l.host == nil {
		return func() {}, nil
	}
	const by = "memory"
	back := func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), giveBackLimit)
		defer stop()
		if err := l.giveBack(ctx, by); err != nil {
			l.log.Error("cannot restore the label of a file", "path", f.Name(), "error", err)
		}
	}
	if _, err := l.lend(ctx, []loan{{f, l.Image, by}}); err != nil {
		back()
		return nil, err
	}
	if l.Profile == nil {
		return back, nil
	}
	err := l.inTurn(ctx, func() error {
		l.allow(by, nil, []*os.File{f})
		return l.load(ctx)
	})
	if err != nil {
		back()
		return nil, err
	}
	return back, nil
}

// lendDir labels one of the daemon's own directories, and the files in it.
func (l *labels) lendDir(ctx context.Context, dir, by string) error {
	if l == nil || l.Model != seclabel.SELinux {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot label a directory of the guest")
	}
	defer f.Close()
	_, err = l.lend(ctx, []loan{{f, l.Own, by}})
	return err
}
