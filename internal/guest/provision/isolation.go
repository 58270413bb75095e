package provision

import (
	"fmt"
	"slices"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Isolation describes how guests' QEMUs are isolated from the host and from each other.
type Isolation struct {
	On      bool
	InForce []string // for guests that start now
	Lacking []string // barriers that this host lacks, each with the reason
}

// HostIsolation returns how guests that start now are isolated. The view of a running guest has that of its own
// start.
func HostIsolation(r *machine.Registry) Isolation {
	if r.Isolation == nil {
		return Isolation{Lacking: []string{"all: the daemon was started with --isolation=off"}}
	}
	i := Isolation{On: true, InForce: Barriers(r, &domain.Definition{})}
	if r.Labels != nil {
		i.InForce = append(i.InForce, LabelBarrier(r))
	} else if r.NoLabels != nil {
		i.Lacking = append(i.Lacking, fmt.Sprintf("labels (%v)", r.NoLabels))
	}
	i.Lacking = append(i.Lacking, r.Isolation.Builder.Missing()...)
	absent := r.Cgroups.Absent()
	for _, c := range []kernel.Controller{kernel.DeviceController, kernel.PIDsController, kernel.HugePages} {
		if why, is := absent[c]; is {
			i.Lacking = append(i.Lacking, fmt.Sprintf("the control groups' %s (%s)", c, why))
		}
	}
	return i
}

// callBarrier and ringBarrier name the barriers that keep QEMU from system calls that lead out of its sandbox.
const callBarrier, ringBarrier = "calls", "io_uring"

// Barriers names the barriers around the QEMU of a guest that starts now.
func Barriers(r *machine.Registry, def *domain.Definition) []string {
	all := []string{"user", "root", "capabilities"}
	if !needsNetwork(def) && r.Isolation.Builder.HasNetNS() {
		all = append(all, "network")
	}
	if r.Cgroups.Has(kernel.DeviceController) {
		all = append(all, "devices")
	}
	if r.Cgroups.Has(kernel.PIDsController) {
		all = append(all, "threads")
	}
	if r.Isolation.Builder.HasSeccomp() {
		all = append(all, callBarrier)
		if !needsRings(def) {
			all = append(all, ringBarrier)
		}
	}
	if r.Isolation.Builder.HasCoreScheduling() {
		all = append(all, "cores")
	}
	return all
}

// Label adds to the definition of a starting guest the user that it runs as, as libvirt's driver dac does.
// Files are not relabelled, because QEMU is passed descriptors.
func Label(r *machine.Instance) {
	if slices.ContainsFunc(r.Definition.SecLabels, func(l domain.SecLabel) bool { return l.Model == dac && l.Type != "dynamic" }) {
		return
	}
	others := slices.DeleteFunc(slices.Clone(r.Definition.SecLabels), func(l domain.SecLabel) bool { return l.Model == dac })
	r.Definition.SecLabels = append(others, domain.SecLabel{
		Type: "dynamic", Model: dac, Relabel: device.Off, Label: fmt.Sprintf("+%d:+%d", r.User.UID, r.User.GID),
	})
}

// dac is the name of the security model that separates guests by user.
const dac = "dac"

// SecurityModel is one way to separate guests.
type SecurityModel struct {
	Name, DOI string
	// Base maps types of guests to the labels that theirs are made from. It may be empty.
	Base map[string]string
}

// SecurityModels returns the models of guests that start now. The host's mandatory access control comes
// first.
func SecurityModels(r *machine.Registry) []SecurityModel {
	if r.Isolation == nil {
		return nil
	}
	models := []SecurityModel{{Name: dac, DOI: "0"}}
	if r.Labels != nil {
		models = append([]SecurityModel{{Name: r.Labels.Model, DOI: r.Labels.DOI(), Base: r.Labels.Base()}}, models...)
	}
	return models
}

// SecurityLabel is the label of a running guest's QEMU, by one model.
type SecurityLabel struct {
	Model, Label string
	Enforcing    bool
}

// SecurityLabels returns the labels of a guest, in the order of the models. It is empty if the guest does
// not run, or runs as the daemon.
func SecurityLabels(r *machine.Registry, v *machine.View) []SecurityLabel {
	if v.Active == nil {
		return nil
	}
	var all []SecurityLabel
	for _, l := range v.Active.SecLabels {
		if l.Label != "" && l.Type != "none" {
			all = append(all, SecurityLabel{l.Model, l.Label, l.Model == dac || r.Labels != nil && r.Labels.Enforcing})
		}
	}
	return all
}
