package kernel

import (
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// DMI is the firmware's description of the machine. Only root can read serial numbers
// and the UUID; they are empty for others.
type DMI struct {
	BIOSVendor, BIOSVersion, BIOSDate, BIOSRelease                string
	Vendor, Product, Version, Serial, UUID, SKU, Family           string
	BoardVendor, BoardName, BoardVersion, BoardSerial, BoardAsset string
	ChassisVendor, ChassisVersion, ChassisSerial, ChassisAsset    string
}

// DMI reads the firmware's identification; NotFound on a machine without it.
func (r Root) DMI() (DMI, error) {
	const dir = "sys/class/dmi/id"
	if !r.exists(dir) {
		return DMI{}, fault.New(fault.NotFound, fault.Host, "this host's firmware has no SMBIOS tables")
	}
	var d DMI
	for name, into := range map[string]*string{
		"bios_vendor": &d.BIOSVendor, "bios_version": &d.BIOSVersion, "bios_date": &d.BIOSDate, "bios_release": &d.BIOSRelease,
		"sys_vendor": &d.Vendor, "product_name": &d.Product, "product_version": &d.Version, "product_serial": &d.Serial,
		"product_uuid": &d.UUID, "product_sku": &d.SKU, "product_family": &d.Family,
		"board_vendor": &d.BoardVendor, "board_name": &d.BoardName, "board_version": &d.BoardVersion,
		"board_serial": &d.BoardSerial, "board_asset_tag": &d.BoardAsset,
		"chassis_vendor": &d.ChassisVendor, "chassis_version": &d.ChassisVersion,
		"chassis_serial": &d.ChassisSerial, "chassis_asset_tag": &d.ChassisAsset,
	} {
		*into = r.attr(dir, name)
	}
	return d, nil
}

// MachineID is the installation's identity, 32 hexadecimal digits, or "".
func (r Root) MachineID() string { return r.attr("etc/machine-id") }

// BootID names this boot of the kernel as a UUID, or is "".
func (r Root) BootID() string { return r.attr("proc/sys/kernel/random/boot_id") }

// Arch is the host's architecture in the words of uname, such as x86_64.
func Arch() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Machine[:])
}
