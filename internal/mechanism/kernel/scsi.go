package kernel

import (
	"fmt"
	"strings"
)

// SCSIHost is one adapter, real or emulated.
type SCSIHost struct {
	// Name is the kernel's, such as host0.
	Name, Path string
	Number     uint
	// UniqueID is the driver's number for it, or -1.
	UniqueID int
	// WWNN, WWPN and FabricWWN are set on Fibre Channel adapters, without 0x.
	WWNN, WWPN, FabricWWN string
}

// SCSITarget is one device on a SCSI bus, with its units below it.
type SCSITarget struct {
	// Name is the kernel's, such as target0:0:0.
	Name, Path string
}

// SCSIUnit is one logical unit.
type SCSIUnit struct {
	// Name is the kernel's, such as 0:0:0:0.
	Name, Path             string
	Host, Bus, Target, LUN int
	// Kind is the word for the unit's peripheral type: disk, cdrom, tape, ...
	Kind, Driver string
}

// SCSI is everything on SCSI buses, each list by the kernel's names.
type SCSI struct {
	Hosts   []SCSIHost
	Targets []SCSITarget
	Units   []SCSIUnit
}

// scsiKinds are the peripheral types by their numbers.
var scsiKinds = map[int]string{
	0: "disk", 1: "tape", 2: "printer", 3: "processor", 4: "worm", 5: "cdrom", 6: "scanner", 7: "mod", 8: "changer",
	9: "comms", 12: "raid", 13: "enclosure",
}

// SCSI reads the SCSI buses. ATA and USB disks are on them too.
func (r Root) SCSI() SCSI {
	const dir = "sys/bus/scsi/devices"
	var s SCSI
	for _, name := range r.list(dir) {
		path := r.resolve(dir, name)
		switch {
		case strings.HasPrefix(name, "target"):
			s.Targets = append(s.Targets, SCSITarget{name, path})
		case strings.HasPrefix(name, "host"):
			if number := sortedNumbers([]string{name}, "host"); len(number) == 1 {
				s.Hosts = append(s.Hosts, r.scsiHost(name, path, uint(number[0])))
			}
		default:
			u := SCSIUnit{Name: name, Path: path, Driver: r.link(dir, name, "driver")}
			if _, err := fmt.Sscanf(name, "%d:%d:%d:%d", &u.Host, &u.Bus, &u.Target, &u.LUN); err != nil {
				continue
			}
			u.Kind = scsiKinds[r.number(-1, dir, name, "type")]
			s.Units = append(s.Units, u)
		}
	}
	return s
}

func (r Root) scsiHost(name, path string, number uint) SCSIHost {
	channel := func(attr string) string {
		return strings.TrimPrefix(r.attr("sys/class/fc_host", name, attr), "0x")
	}
	return SCSIHost{
		Name: name, Path: path, Number: number,
		UniqueID: r.number(-1, "sys/class/scsi_host", name, "unique_id"),
		WWNN:     channel("node_name"), WWPN: channel("port_name"), FabricWWN: channel("fabric_name"),
	}
}

// DRMDevice is one face of a graphics adapter.
type DRMDevice struct {
	// Name is the kernel's: card0 for the primary face, renderD128 for rendering.
	Name, Path string
	// Kind is primary or render.
	Kind string
	Node string
}

// DRMDevices reads the graphics adapters; connectors are not among them.
func (r Root) DRMDevices() []DRMDevice {
	const dir = "sys/class/drm"
	var devices []DRMDevice
	names := r.list(dir)
	for _, face := range []struct{ kind, prefix string }{{"primary", "card"}, {"render", "renderD"}} {
		for _, n := range sortedNumbers(names, face.prefix) {
			name := fmt.Sprintf("%s%d", face.prefix, n)
			devices = append(devices, DRMDevice{name, r.resolve(dir, name), face.kind, "/dev/dri/" + name})
		}
	}
	return devices
}
