package guest

import (
	"fmt"
	"slices"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/kernel"
)

// Isolation is what keeps guests' QEMUs from the host and from each other.
type Isolation struct {
	On      bool
	InForce []string // for guests that start now
	Lacking []string // what this host does not have of it, with the reason
}

// Isolation tells how guests are isolated that start now. What it means for one
// that runs is in its view.
func (r *Registry) Isolation() Isolation {
	if r.Quarters == nil {
		return Isolation{Lacking: []string{"all: the daemon was started with --isolation=off"}}
	}
	i := Isolation{On: true, InForce: r.barriers(&domain.Definition{})}
	i.Lacking = append(i.Lacking, r.Quarters.House.Absent()...)
	absent := r.Cgroups.Absent()
	for _, c := range []kernel.Controller{kernel.DeviceController, kernel.PIDsController} {
		if why, is := absent[c]; is {
			i.Lacking = append(i.Lacking, fmt.Sprintf("the control groups' %s (%s)", c, why))
		}
	}
	return i
}

// barriers names what a guest's QEMU is kept within that starts now.
func (r *Registry) barriers(def *domain.Definition) []string {
	all := []string{"user", "root", "capabilities"}
	if !needsNetwork(def) && r.Quarters.House.ParsNetwork() {
		all = append(all, "network")
	}
	if r.Cgroups.Has(kernel.DeviceController) {
		all = append(all, "devices")
	}
	if r.Cgroups.Has(kernel.PIDsController) {
		all = append(all, "threads")
	}
	if r.Quarters.House.SharesNoCore() {
		all = append(all, "cores")
	}
	return all
}

// label shows in the definition of a guest that starts which user it runs as, as
// libvirt's driver dac does. Files are not relabelled: they are handed over.
func (r *run) label() {
	if slices.ContainsFunc(r.def.SecLabels, func(l domain.SecLabel) bool { return l.Model == dac && l.Type != "dynamic" }) {
		return
	}
	others := slices.DeleteFunc(slices.Clone(r.def.SecLabels), func(l domain.SecLabel) bool { return l.Model == dac })
	r.def.SecLabels = append(others, domain.SecLabel{
		Type: "dynamic", Model: dac, Relabel: device.Off, Label: fmt.Sprintf("+%d:+%d", r.User.UID, r.User.GID),
	})
}

// dac is the name of the security model that tells users apart.
const dac = "dac"

// SecurityLabel is who a running guest's QEMU is to the kernel, in the words of the
// model dac; empty: it has no user of its own.
func (v *View) SecurityLabel() string {
	if v.Active == nil {
		return ""
	}
	for _, l := range v.Active.SecLabels {
		if l.Model == dac {
			return l.Label
		}
	}
	return ""
}
