package fleet

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Seed is the user's data for a clone's cloud-init at its first boot. The clone also gets meta-data and
// vendor-data. The user's data are passed on unchanged; either may be empty.
type Seed struct {
	// UserData is cloud-init's user-data: #cloud-config, a script, ...
	UserData string
	// NetworkConfig is cloud-init's network-config.
	NetworkConfig string
}

// Bounds of a seed.
const (
	maxUserData = 1 << 20
	// randomBytes is the size of systemd's random seed file, in bytes.
	randomBytes = 512
)

// seedLabel is the volume label of cloud-init's data source NoCloud. All versions accept it in lower case.
const seedLabel = "cidata"

// vendorData makes cloud-init create what no two guests may share. The user's own data are applied later and
// may override it. cloud-init makes new SSH host keys for every instance unless that was turned off. A machine
// ID in the image is replaced once: systemd takes the guest's UUID if KVM shows it one.
const vendorData = `#cloud-config
ssh_deletekeys: true
bootcmd:
- [cloud-init-per, instance, lodge-machine-id, sh, -c, "command -v systemd-machine-id-setup >/dev/null || exit 0; rm -f /etc/machine-id; [ -L /var/lib/dbus/machine-id ] || rm -f /var/lib/dbus/machine-id; systemd-machine-id-setup"]
`

func (s *Seed) check() error {
	if s == nil {
		return nil
	}
	if size := len(s.UserData) + len(s.NetworkConfig); size > maxUserData {
		return fault.New(fault.Invalid, fault.Call, "user data and network configuration have %d bytes together; the maximum is %d", size, maxUserData)
	}
	return nil
}

// disc makes the CD image for one clone, with its own random bytes.
func (s *Seed) disc(name, uuid string, now time.Time) ([]byte, error) {
	random := make([]byte, randomBytes)
	if _, err := rand.Read(random); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read random bytes")
	}
	// cloud-init reads YAML, of which JSON is a subset.
	metaData, err := json.MarshalIndent(map[string]string{
		"instance-id": uuid, "local-hostname": hostName(name), "random_seed": base64.StdEncoding.EncodeToString(random),
	}, "", "  ")
	if err != nil {
		return nil, err
	}
	userData := s.UserData
	if userData == "" {
		userData = "#cloud-config\n{}\n"
	}
	files := []image.CDFile{
		{Name: "meta-data", Data: append(metaData, '\n')}, {Name: "user-data", Data: []byte(userData)}, {Name: "vendor-data", Data: []byte(vendorData)},
	}
	if s.NetworkConfig != "" {
		files = append(files, image.CDFile{Name: "network-config", Data: []byte(s.NetworkConfig)})
	}
	return image.CD(seedLabel, files, now)
}

// hostName makes a valid host name from a guest's name.
func hostName(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	if name = strings.Trim(name[:min(len(name), 63)], "-"); name == "" {
		return "guest"
	}
	return name
}

// seedAlias marks the drive of a seed, so that the clone of a clone replaces it.
const seedAlias = "ua-lodge-seed"

// seedDrive adds a drive for a seed, or replaces the one of an earlier clone. It is on the bus of the guest's
// own disk, because the guest has a driver for that: Debian's cloud kernel has none for SATA, and cloud-init
// would silently skip the seed.
func seedDrive(d *domain.Definition) *device.Disk {
	d.Devices.Disks = slices.DeleteFunc(d.Devices.Disks, func(disk *device.Disk) bool { return disk.Alias == seedAlias })
	drive := &device.Disk{Info: device.Info{Alias: seedAlias}, Device: "cdrom", Bus: "sata", Format: "raw", ReadOnly: true}
	bus, letters := "", "sd"
	if own := slices.IndexFunc(d.Devices.Disks, func(disk *device.Disk) bool { return disk.Device == "disk" }); own >= 0 {
		bus = d.Devices.Disks[own].Bus
	}
	switch machine := d.OS.Machine; {
	case bus == "virtio", strings.HasPrefix(machine, "microvm"): // these have no CD drives
		drive.Device, drive.Bus, letters = "disk", "virtio", "vd"
	case bus == "scsi":
		drive.Bus = bus
	case !strings.Contains(machine, "q35"):
		drive.Bus, letters = "ide", "hd"
	}
	taken := map[string]bool{}
	for _, disk := range d.Devices.Disks {
		taken[disk.Target] = true
	}
	for letter := 'a'; letter <= 'z'; letter++ {
		if drive.Target = letters + string(letter); !taken[drive.Target] {
			break
		}
	}
	d.Devices.Disks = append(d.Devices.Disks, drive)
	return drive
}
