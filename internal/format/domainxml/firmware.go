package domainxml

import (
	"slices"

	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
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

// firmware uses the last value of each feature, as libvirt does.
func (c *completion) firmware() error {
	var kept []domain.FirmwareFeature
	for _, f := range c.d.OS.FirmwareFeatures {
		kept = slices.DeleteFunc(kept, func(k domain.FirmwareFeature) bool { return k.Name == f.Name })
		kept = append(kept, f)
	}
	c.d.OS.FirmwareFeatures = kept
	return nil
}
