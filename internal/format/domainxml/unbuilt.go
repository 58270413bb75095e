package domainxml

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// A refusal names the path of the unsupported part, and the alternative.

// unbuiltValues are values that libvirt knows beside the supported ones, by the path
// of the attribute or element. "*" stands for values that libvirt
// itself refuses as not supported.
var unbuiltValues = map[string]string{
	"domain/@type":                   "*",
	"os/type":                        "*",
	"os/type/@arch":                  "*",
	"os/loader/@format":              "*",
	"os/nvram/@format":               "*",
	"os/nvram/@type":                 "network dir volume nvme vhostuser",
	"on_poweroff":                    "*",
	"on_reboot":                      "*",
	"on_crash":                       "*",
	"on_lockfailure":                 "*",
	"cpu/@mode":                      "*",
	"cpu/feature/@policy":            "*",
	"numatune/memory/@mode":          "*",
	"numatune/memory/@placement":     "*",
	"cpu/model/@fallback":            "*",
	"memoryBacking/access/@mode":     "*",
	"memoryBacking/allocation/@mode": "*",
	"memoryBacking/source/@type":     "*",
	"sound/codec/@type":              "*",
	"secret/@type":                   "*",
	"clock/@offset":                  "*",
	"clock/@basis":                   "*",
	"clock/timer/@name":              "armvtimer",
	"disk/@type":                     "network nvme vhostuser dir",
	"disk/driver/@type":              "*",
	"disk/driver/@name":              "*",
	"disk/driver/@rerror_policy":     "enospace",
	"os/smbios/@mode":                "*",
	"disk/target/@bus":               "xen uml sd",
	"backingStore/@type":             "network nvme vhostuser dir",
	"backingStore/format/@type":      "auto vmdk qed vdi vpc vhdx qcow dmg cloop bochs cow fat iso luks ploop",
	"encryption/@format":             "*",
	"encryption/@engine":             "librbd",
	"controller/@type":               "xenbus isa",
	"interface/@type":                "vhostuser server client mcast internal hostdev udp vdpa null vds",
	"interface/link/@state":          "*",
	"address/@type":                  "*",
	"input/@type":                    "*",
	"input/@bus":                     "*",
	"input/@model":                   "*",
	"tpm/@model":                     "tpm-spapr spapr-tpm-proxy",
	"tpm/backend/@type":              "external",
	"graphics/@type":                 "sdl rdp desktop egl-headless dbus",
	"graphics/@connected":            "*",
	"sound/@model":                   "ich7",
	"audio/@type":                    "alsa coreaudio jack oss pulseaudio sdl file dbus",
	"video/model/@type":              "*",
	"hostdev/@mode":                  "*",
	"hostdev/@type":                  "*",
	"hostdev/driver/@name":           "kvm xen",
	"redirdev/@bus":                  "*",
	"hub/@type":                      "*",
	"watchdog/@model":                "*",
	"watchdog/@action":               "*",
	"memballoon/@model":              "xen",
	"rng/@model":                     "*",
	"rng/backend/@model":             "*",
	"panic/@model":                   "*",
	"memory/@model":                  "nvdimm virtio-pmem virtio-mem sgx-epc",
	"serial/@type":                   "*",
	"parallel/@type":                 "*",
	"console/@type":                  "*",
	"channel/@type":                  "*",
	"redirdev/@type":                 "*",
	"backend/@type":                  "*",
	"target/@type":                   "*",
	"target/model/@name":             "*",
	"protocol/@type":                 "*",
}

// instead names the alternative to an unsupported part, by the beginning of its
// path below devices or the domain. The longest match counts. A value can have an entry of
// its own as path=value.
var instead = map[string]string{
	"disk/@type":               "use a source of type file, block or volume",
	"disk/@type=network":       "attach the storage on the host (iscsiadm --login, rbd map, nbd-client, or a mount for gluster, http and ssh) and use a source of type block or file",
	"disk/@type=nvme":          "leave the drive to the host's nvme driver and use a source of type block (/dev/nvme0n1), or give the guest the device as <hostdev type='pci'>",
	"disk/@type=dir":           "make an image of the folder and use a source of type file, or share the folder over the network",
	"disk/driver/@type":        "convert the image: qemu-img convert -O qcow2",
	"backingStore":             "convert the image: qemu-img convert -O qcow2",
	"disk/source/reservations": "leave it out",
	"disk/geometry":            "leave it out: guests use logical block addresses",
	"disk/mirror":              "leave it out: it tells of a copy that runs",
	"disk/auth":                "use a source of type file, block or volume",
	"filesystem":               "share files over the network, as by NFS, or give the guest a disk",
	"memory/@model":            "use model dimm",
	"interface/@type":          "use type network, bridge, direct, user or ethernet",
	"interface/filterref":      "isolate guests with <port isolated='yes'/> or by networks of their own",
	"interface/vlan":           "use a bridge that is tagged already",
	"interface/virtualport":    "use a Linux bridge",
	"interface/script":         "leave it out and use type bridge",
	"interface/source":         "use a source of type network, bridge or direct",
	"graphics/@type":           "use type vnc or spice",
	"audio/@type":              "use type none or spice",
	"audio":                    "use type none or spice",
	"hostdev/@type":            "use type pci or usb, or a disk of type block",
	"hostdev/@mode":            "use mode subsystem",
	"hostdev/driver":           "use vfio",
	"tpm/backend/encryption":   "leave it out: keep the host's disk encrypted",
	"tpm/@model":               "use model tpm-tis or tpm-crb",
	"tpm/backend/@type":        "use type emulator",
	"smartcard":                "pass the reader to the guest as <hostdev type='usb'> or <redirdev>",
	"shmem":                    "connect the guests over a network or vsock",
	"iommu":                    "leave it out: at most 255 vcpus and no nested passthrough need none",
	"iothreadids":              "use <iothreads>, which numbers them from 1",
	"defaultiothread":          "leave it out",
	"vcpus":                    "use vcpu/@current",
	"cputune/vcpusched":        "use cputune/shares or pin the vcpus",
	"cputune/cachetune":        "pin the vcpus with cputune/vcpupin",
	"cputune/memorytune":       "pin the vcpus with cputune/vcpupin",
	"blkiotune/device":         "limit the disk with <iotune>",
	"launchSecurity":           "leave it out",
	"bootloader":               "use <os> with a loader, a kernel or boot devices",
	"cpu/match":                "use exact",
	"os/type/@arch":            "use x86_64",
	"override":                 "leave it out, or use <qemu:commandline>",
	"capabilities":             "leave it out, or use <qemu:commandline>",
}

// indexes matches the positions of siblings in a path.
var indexes = regexp.MustCompile(`\[[0-9]+\]`)

// plainPath returns a path as it is in the tables.
func plainPath(path string) string {
	path = strings.TrimPrefix(indexes.ReplaceAllString(path, ""), "devices/")
	if strings.HasPrefix(path, "@") {
		return "domain/" + path
	}
	return path
}

// adviceOn returns the remedy for a part that is not built.
func adviceOn(path string) string {
	for p := plainPath(path); p != ""; {
		if advice := instead[p]; advice != "" {
			return advice
		}
		cut := strings.LastIndex(p, "/")
		if cut < 0 {
			break
		}
		p = p[:cut]
	}
	return "leave it out"
}

// ofQEMU are the elements of a domain in QEMU's namespace.
var ofQEMU = []string{"commandline", "override", "capabilities", "deprecation"}

// mostPaths is the number of parts that one refusal names.
const mostPaths = 10

// errUnbuilt refuses parts that libvirt has and Lodge has not built.
func errUnbuilt(base string, paths []string) error {
	var advice []string
	for i, p := range paths {
		p = strings.TrimPrefix(base+"/"+p, "/")
		paths[i] = p
		if a := adviceOn(p); !slices.Contains(advice, a) {
			advice = append(advice, a)
		}
		if root, _, _ := strings.Cut(p, "/"); slices.Contains(ofQEMU, root) {
			paths[i] = "qemu:" + p
		}
	}
	more := ""
	if len(paths) > mostPaths {
		more = " and others"
		paths = paths[:mostPaths]
	}
	return fault.New(fault.Unsupported, fault.Config, "not supported: %s%s; %s",
		strings.Join(paths, ", "), more, strings.Join(advice, ", or "))
}

// oneOf refuses a value that is not one of the words. Without words every value is allowed.
func (n *node) oneOf(attr, value string, words []string) {
	if value == "" || len(words) == 0 || slices.Contains(words, value) {
		return
	}
	path := n.at(attr)
	if !libvirtKnows(plainPath(path), value) {
		n.invalid(attr, "%q is not one of %s", value, strings.Join(words, ", "))
		return
	}
	advice := cmp.Or(instead[plainPath(path)+"="+value], instead[plainPath(path)])
	if advice == "" {
		advice = "use " + strings.Join(words, ", ")
	}
	n.fail(fault.New(fault.Unsupported, fault.Config, "%s %q is not supported; %s", path, value, advice))
}

// libvirtKnows reports whether a value is one of libvirt's. The key may be the last
// parts of the path, if several elements have the attribute.
func libvirtKnows(path, value string) bool {
	for {
		if words, known := unbuiltValues[path]; known {
			return strings.HasPrefix(words, "*") || slices.Contains(strings.Fields(words), value)
		}
		_, rest, more := strings.Cut(path, "/")
		if !more {
			return false
		}
		path = rest
	}
}
