package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/mechanism/seclabel"
)

// openIsolation prepares users and sandboxes for guests' QEMUs and for other programs that read
// hostile data; it does nothing if isolation is off.
func (d *Daemon) openIsolation() error {
	d.findLabels()
	if !d.config.Isolated {
		d.log.Warn("guests not isolated; each QEMU has this daemon's rights")
		return nil
	}
	users, err := sandbox.ParseUsers(cmp.Or(d.config.Users, sandbox.DefaultUsers(instanceNumber(d.Instance))))
	if err == nil {
		err = users.ReserveInUse(nil) // of guests that run already
	}
	if err != nil {
		return err
	}
	builder, err := sandbox.NewBuilder(d.labels.Content())
	if err != nil {
		return fmt.Errorf("%w; start with --isolation=off to run guests without it", err)
	}
	d.onClose(builder.Close)
	if absent := builder.Missing(); len(absent) > 0 {
		d.log.Warn("this kernel lacks parts of what isolates guests", "absent", strings.Join(absent, ", "))
	}
	if d.config.Cores {
		if err := builder.EnableCoreScheduling(); err != nil {
			d.log.Warn("guests may run on one core at the same time", "cause", err)
		}
	}
	if why, absent := d.Groups.Absent()[kernel.DeviceController]; absent {
		d.log.Warn("device control groups not available; only sandboxes keep guests from devices of others", "cause", why)
	}
	d.isolation = &sandbox.Isolation{Builder: builder, Users: users}
	return nil
}

// Labels selects how guests get labels of SELinux or AppArmor.
type Labels int

// LabelsAuto uses labels if the host enforces one; with LabelsRequired no guest starts without one.
const (
	LabelsAuto Labels = iota
	LabelsRequired
	LabelsOff
)

// findLabels finds out how guests are labelled, or why they are not.
func (d *Daemon) findLabels() {
	switch {
	case d.config.Labels == LabelsOff:
		d.noLabelsReason = errors.New("the daemon was started with --security-labels=off")
		return
	case !d.config.Isolated:
		d.noLabelsReason = errors.New("the daemon was started with --isolation=off")
		return
	}
	required := d.config.Labels == LabelsRequired
	host, without := seclabel.Find(cmp.Or(d.config.Security, d.config.Kernel), d.Instance)
	switch {
	case without != nil && required:
		d.log.Error("security labels required but not available; guests do not start", "cause", without)
	case host != nil && !host.Enforcing:
		d.log.Warn("security labels not enforced; the kernel only logs violations", "model", host.Model)
		if required {
			without = fmt.Errorf("%s is permissive", host.Model)
		}
	case host != nil:
		d.log.Info("security labels in use", "model", host.Model)
	}
	d.labels, d.noLabelsReason = host, without
}
