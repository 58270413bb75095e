package device

import (
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// driveUnits are the sizes that map the names of disks to addresses, by bus: how many units a bus of a
// controller has, and how many buses a controller has. SCSI has seven units with every model of controller,
// because the names must give the addresses that libvirt gives, and guests keep them.
var driveUnits = map[string]struct{ buses, units uint }{
	"scsi": {1, 7}, "sata": {1, 6}, "ide": {2, 2}, "fdc": {1, 2},
}

// targetPrefixes are the beginnings of the names of disks.
var targetPrefixes = []string{"fd", "hd", "sd", "vd", "xvd", "ubd"}

// TargetIndex counts the letters of a disk's name: vda is 0, vdz 25, vdaa 26. Digits at the end do not
// count.
func TargetIndex(target string) (uint, bool) {
	letters, ok := "", false
	for _, prefix := range targetPrefixes {
		if letters, ok = strings.CutPrefix(target, prefix); ok {
			break
		}
	}
	letters = strings.TrimRight(letters, "0123456789")
	if !ok || letters == "" || len(letters) > 5 {
		return 0, false
	}
	index := uint(0)
	for _, r := range letters {
		if r < 'a' || r > 'z' {
			return 0, false
		}
		index = index*26 + uint(r-'a') + 1
	}
	return index - 1, true
}

// DriveAt returns the address that belongs to a disk's name on a bus. Only buses with controllers for drives
// have such addresses.
func DriveAt(bus, target string) (Drive, bool) {
	per, onController := driveUnits[bus]
	index, named := TargetIndex(target)
	if !onController || !named {
		return Drive{}, false
	}
	all := per.buses * per.units
	return Drive{Controller: index / all, Bus: index % all / per.units, Unit: index % per.units}, true
}

// defaultSCSI is the model of a SCSI controller without a model.
const defaultSCSI = "lsilogic"

// MissingControllers returns the controllers that a disk needs and the set does not have, in the order in
// which they are to be added: that of the disk, and those of lower indexes. A running guest gets SCSI
// controllers of the model of its last one. A definition gets the default model, as with libvirt.
func (s *Set) MissingControllers(d *Disk, running bool) ([]*Controller, error) {
	at, ok := d.Address.(Drive)
	if !ok {
		return nil, nil
	}
	if at.Controller > maxIndex {
		return nil, fault.New(fault.Invalid, fault.XML, "there cannot be a %s controller %d", d.Bus, at.Controller)
	}
	model, there := "", map[uint]bool{}
	if d.Bus == "scsi" {
		model = defaultSCSI
	}
	for _, c := range s.Controllers {
		if c.Type != d.Bus {
			continue
		}
		there[c.Index] = true
		if running && c.Model != "" {
			model = c.Model
		}
	}
	var missing []*Controller
	for index := range at.Controller + 1 {
		if !there[index] {
			missing = append(missing, &Controller{Type: d.Bus, Index: index, Model: model})
		}
	}
	return missing, nil
}
