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

// isolate prepares what guests' QEMUs, and other programs that read what may be
// hostile, run in and as; nothing where that is turned off.
func (d *Daemon) isolate() error {
	d.findLabels()
	if !d.config.Isolated {
		d.log.Warn("guests are not isolated: each QEMU may do what this daemon may")
		return nil
	}
	users, err := sandbox.ParseUsers(cmp.Or(d.config.Users, sandbox.DefaultUsers(number(d.Instance))))
	if err == nil {
		err = users.ReserveInUse(nil) // of guests that run already
	}
	if err != nil {
		return err
	}
	house, err := sandbox.NewBuilder(d.labels.Content())
	if err != nil {
		return fmt.Errorf("%w; --isolation=off runs guests without", err)
	}
	d.onClose(house.Close)
	if absent := house.Missing(); len(absent) > 0 {
		d.log.Warn("this kernel lacks parts of what isolates guests", "absent", strings.Join(absent, ", "))
	}
	if d.config.Cores {
		if err := house.EnableCoreScheduling(); err != nil {
			d.log.Warn("guests may run on one core at the same time", "cause", err)
		}
	}
	if why, absent := d.Groups.Absent()[kernel.DeviceController]; absent {
		d.log.Warn("this host does not control devices by group: guests are kept from those that are not theirs by their chambers alone", "cause", why)
	}
	d.quarters = &sandbox.Isolation{Builder: house, Users: users}
	return nil
}

// Labels are a way in which guests get labels of SELinux or AppArmor.
type Labels int

// LabelsAuto gives labels where the host enforces one, LabelsRequired has no guest start without.
const (
	LabelsAuto Labels = iota
	LabelsRequired
	LabelsOff
)

// findLabels finds out how guests are labelled, or why they are not.
func (d *Daemon) findLabels() {
	switch {
	case d.config.Labels == LabelsOff:
		d.noLabels = errors.New("the daemon was started with --security-labels=off")
		return
	case !d.config.Isolated:
		d.noLabels = errors.New("the daemon was started with --isolation=off")
		return
	}
	required := d.config.Labels == LabelsRequired
	host, without := seclabel.Find(cmp.Or(d.config.Security, d.config.Kernel), d.Instance)
	switch {
	case without != nil && required:
		d.log.Error("guests have no labels here, and start only with them", "cause", without)
	case host != nil && !host.Enforcing:
		d.log.Warn("guests have labels, and the kernel only logs what they forbid", "model", host.Model)
		if required {
			without = fmt.Errorf("%s is permissive", host.Model)
		}
	case host != nil:
		d.log.Info("guests have labels", "model", host.Model)
	}
	d.labels, d.noLabels = host, without
}
