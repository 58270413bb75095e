package launch

import (
	"context"
	"os"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/seclabel"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// takeLabel gives the guest a label of its own if the host enforces labels.
func (l *Launch) takeLabel(context.Context) error {
	r := l.Guest.Reg
	w, on, err := provision.LabelRequest(r, l.Instance.Definition)
	if err != nil || !on {
		return err
	}
	named, err := r.Labels.AssignLabel(w)
	if err != nil {
		return err
	}
	labels := provision.NewLabels(r, l.Instance.UUID, named, l.Instance.Log)
	l.Instance.Labels = labels
	l.Instance.PushRelease("label", labels.End)
	provision.ShowLabels(l.Instance, named)
	l.Instance.Isolation = append(l.Instance.Isolation, provision.LabelBarrier(r))
	if named.Own == "" {
		return nil
	}
	own, err := os.Open(provision.OwnPath(l.Instance))
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot label the guest's own directory")
	}
	defer own.Close()
	return kernel.SetFileLabel(own, named.Own) // it is removed with the guest
}

// labelFiles labels the files that the guest is passed or shown.
func (l *Launch) labelFiles(ctx context.Context) error {
	labels := l.Instance.Labels
	if labels == nil || labels.Model != seclabel.SELinux {
		return nil
	}
	var all []filelabel.FileLabel
	for _, d := range l.Instance.Definition.Devices.Disks {
		all = append(all, labels.DiskLabels(d, l.plan.Disks[d.Alias])...)
	}
	code := l.Instance.Definition.OS.Loader
	for path, f := range l.plan.Files {
		need := labels.Image
		if path == code.Path && code.ReadOnly != device.Off {
			need = labels.Content
		}
		if !filelabel.IsHostFile(path) {
			all = append(all, filelabel.FileLabel{File: f, Label: need, By: ""})
		}
	}
	if l.From != nil {
		all = append(all, filelabel.FileLabel{File: l.From.File, Label: labels.Content, By: ""})
	}
	for _, path := range provision.ReadFiles(l.Instance.Definition) {
		f, err := machine.OpenNamed(ctx, l.Sc, path, os.O_RDONLY)
		if err != nil {
			continue // the code that shows the file reports the error
		}
		defer f.Close()
		all = append(all, filelabel.FileLabel{File: f, Label: labels.Content, By: ""})
	}
	if log, err := provision.AppendLog(l.Guest.Reg, l.Instance.Definition.Name); err == nil { // otherwise it starts without a log
		defer log.Close()
		all = append(all, filelabel.FileLabel{File: log, Label: labels.Own, By: ""})
	}
	remarks, err := labels.Lend(ctx, all)
	l.Instance.Messages = append(l.Instance.Messages, remarks...)
	return err
}
