package domainxml

import (
	"slices"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/fault"
)

func describeFirmware(n *node, o *domain.OS) {
	n.in("firmware", func(n *node) {
		if n.reading() && n.e.Attr("type") == o.Firmware {
			n.ignore("type") // an old spelling of the attribute of os
		}
		each(n, "feature", &o.FirmwareFeatures, func(n *node, f *domain.FirmwareFeature) {
			n.yes("enabled", &f.Enabled)
			n.str("name", &f.Name, "secure-boot", "enrolled-keys")
			if n.strict && f.Name == "" {
				n.invalid("", "attribute name is missing")
			}
			if n.strict && f.Enabled == device.Unset {
				n.invalid("", "attribute enabled is missing")
			}
		})
	})
	n.in("loader", func(n *node) {
		n.yes("readonly", &o.Loader.ReadOnly)
		n.yes("secure", &o.Loader.Secure)
		n.str("type", &o.Loader.Type, "rom", "pflash")
		n.yes("stateless", &o.Loader.Stateless)
		n.str("format", &o.Loader.Format, "raw", "qcow2")
		n.text(&o.Loader.Path)
	})
	n.in("nvram", func(n *node) { describeNVRAM(n, &o.NVRAM) })
}

// describeNVRAM describes where the firmware's variables are: in the text, or in a
// source as disks have it.
func describeNVRAM(n *node, v *domain.NVRAM) {
	n.str("template", &v.Template)
	n.str("type", &v.Type, "file", "block")
	n.str("format", &v.Format, "raw", "qcow2")
	if v.Type == "" {
		n.text(&v.Path)
		return
	}
	n.in("source", func(n *node) {
		n.str(map[string]string{"file": "file", "block": "dev"}[v.Type], &v.Path)
		each(n, "seclabel", &v.SecLabels, func(n *node, l *device.SourceLabel) {
			if describeSourceLabel(n, l); n.reading() && l.Model == "selinux" {
				n.refuse("model", "labels of the model %s are not given to UEFI variables; leave the seclabel out", l.Model)
			}
		})
	})
	if n.reading() && v.Path == "" {
		n.invalid("", "the source is missing")
	}
}

// firmware refuses what contradicts itself about the firmware, whatever the host has.
func (c *completion) firmware() error {
	o := &c.d.OS
	o.FirmwareFeatures = lastOfEach(o.FirmwareFeatures)
	enabled := map[string]device.Switch{}
	for _, f := range o.FirmwareFeatures {
		enabled[f.Name] = f.Enabled
	}
	hasNVRAM := o.NVRAM.Path != "" || o.NVRAM.Template != ""
	switch {
	case enabled["enrolled-keys"] == device.On && enabled["secure-boot"] == device.Off:
		return invalid("os/firmware: enrolled-keys needs secure-boot, which is switched off")
	case o.Firmware == "" && len(enabled) > 0:
		return invalid("os/firmware: features choose firmware where os has firmware='efi'; add it")
	case o.Firmware == "" && o.Loader.Path == "" && (hasNVRAM || o.Loader != (domain.Loader{})):
		return invalid("os/loader: it has no path; add one, or firmware='efi' to os")
	case o.Firmware == "bios" && hasNVRAM:
		return invalid("os/nvram: only firmware of type efi has variables")
	case o.Loader.Stateless == device.On && hasNVRAM:
		return invalid("os/nvram: a loader that is stateless has no variables; leave nvram out")
	case o.Loader.Stateless == device.Off && o.Firmware != "efi" && o.Loader.Type != "pflash":
		return invalid("os/loader/@stateless: only a loader of type pflash has variables")
	case o.Firmware == "efi" && o.Loader.Path == "" && o.Loader.ReadOnly == device.Off:
		return invalid("os/loader/@readonly: firmware that is chosen is shared, and only read; leave it out")
	case o.Loader.Secure == device.On && c.chipset != q35:
		return fault.New(fault.Unsupported, fault.Config, "os/loader/@secure: Secure Boot needs a machine of type q35, not %s", o.Machine)
	case o.Loader.Secure == device.On && o.Loader.Path != "" && c.d.Features.SMM == device.Off:
		return fault.New(fault.Unsupported, fault.Config, "os/loader/@secure: Secure Boot needs SMM; take <smm state='off'/> out of features")
	}
	if o.Loader.Secure == device.On && o.Loader.Path != "" {
		c.d.Features.SMM = device.On
	}
	return nil
}

// lastOfEach keeps of each feature what is said last, as libvirt does.
func lastOfEach(features []domain.FirmwareFeature) []domain.FirmwareFeature {
	var kept []domain.FirmwareFeature
	for _, f := range features {
		kept = slices.DeleteFunc(kept, func(k domain.FirmwareFeature) bool { return k.Name == f.Name })
		kept = append(kept, f)
	}
	return kept
}
