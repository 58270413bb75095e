// Package domain holds the model of a guest: its definition
// (Definition), its present state (State and Reason), the job that runs on it
// (Job), and the rules that make a definition valid on its own.
//
// It has plain values and pure rules only. A Definition is never serialised directly:
// package domainxml turns it into libvirt's XML and back. Memory is in bytes
// unless a field says otherwise; strings of enumerated fields have libvirt's
// spelling, and empty means "not given".
package domain

import (
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// Definition is the user's definition of one guest, completed with the values that Lodge
// chose. Values are shared by reference: Clone one before you change it if
// another goroutine may hold it.
type Definition struct {
	Virt        string // kvm or qemu
	Name        string
	UUID        string // lower-case, with dashes
	GenID       string // vmgenid: a UUID; "auto", in old definitions, for one that is made at each start; or empty
	Title       string
	Description string
	// Metadata is the verbatim inner XML of <metadata>.
	Metadata string

	Memory        uint64 // at start, with the modules among the devices; the balloon gives no more
	CurrentMemory uint64 // that the balloon leaves to the guest
	// MaxMemory is the limit of memory with all modules. There can be MemorySlots
	// modules; both are 0 if none can be plugged in.
	MaxMemory   uint64
	MemorySlots uint
	Backing     MemoryBacking

	VCPUs     VCPUs
	IOThreads uint // ids 1..IOThreads
	Tune      CPUTune
	NUMA      NUMATune
	Blkio     BlkioTune
	MemTune   MemTune
	Partition string // resource partition (cgroup) asked for

	OS       OS
	Features Features
	CPU      CPU
	Clock    Clock
	SysInfo  *SysInfo

	OnPoweroff, OnReboot, OnCrash string // destroy, restart, preserve, rename-restart, coredump-*
	OnLockFailure                 string // poweroff, restart, pause, ignore; kept only
	SuspendToMem, SuspendToDisk   device.Switch

	Devices device.Set

	// SecLabels of type static are refused where the host does not enforce their model.
	SecLabels []SecLabel

	// QEMUArgs and QEMUEnv are the user's own additions (qemu:commandline).
	QEMUArgs []string
	QEMUEnv  []EnvVar
}

// EnvVar is one variable of qemu:commandline.
type EnvVar struct{ Name, Value string }

// SecLabel is a security label of a definition.
type SecLabel struct {
	Type    string // none, static, dynamic
	Model   string
	Relabel device.Switch
	Label   string // of a static one, or that a running guest was given
	// ImageLabel is the label of the files of a running guest. The guest's label is made
	// from BaseLabel.
	ImageLabel, BaseLabel string
}

// MemoryBacking says where guest memory comes from.
type MemoryBacking struct {
	HugePages    []HugePages
	HasHugePages bool
	NoSharePages bool
	Locked       bool
	Source       string // anonymous, file, memfd
	Access       string // shared, private
	Allocation   string // immediate, ondemand
	AllocThreads uint
	Discard      bool
}

// HugePages is one page size, for some of the guest's NUMA cells or for all.
type HugePages struct {
	Size  uint64          // bytes; 0: the host's default size
	Nodes topology.CPUSet // guest cells; empty: all
}

// VCPUs is the guest's processor count.
type VCPUs struct {
	Max       uint
	Current   uint
	Placement string          // static, auto
	CPUs      topology.CPUSet // host processors that the guest may use; empty: all
}

// CPUTune pins and weighs the guest's threads. Periods and quotas are in microseconds;
// a quota of -1 is unlimited, and 0 is unset everywhere.
type CPUTune struct {
	VCPUPins     map[uint]topology.CPUSet
	EmulatorPin  topology.CPUSet
	IOThreadPins map[uint]topology.CPUSet
	Shares       uint64

	Period, GlobalPeriod, EmulatorPeriod, IOThreadPeriod uint64
	Quota, GlobalQuota, EmulatorQuota, IOThreadQuota     int64
}

// NUMATune binds guest memory to the host's nodes.
type NUMATune struct {
	Mode      string // strict, preferred, interleave, restrictive; empty: no <memory>
	Placement string // static, auto
	Nodes     topology.CPUSet
	Cells     []CellTune
}

// CellTune binds the memory of one guest cell.
type CellTune struct {
	Cell  uint
	Mode  string
	Nodes topology.CPUSet
}

// BlkioTune weighs the guest's disk traffic; 0 is unset.
type BlkioTune struct{ Weight uint }

// MemTune bounds the guest's memory on the host, in bytes; 0 is unset.
type MemTune struct{ HardLimit, SoftLimit, SwapHardLimit, MinGuarantee uint64 }

// OS is how the guest boots.
type OS struct {
	Arch, Machine string // x86_64; pc, q35, microvm or a versioned name
	// Firmware: "efi" or "bios" picks one of the host's; empty: Loader or SeaBIOS.
	Firmware         string
	FirmwareFeatures []FirmwareFeature
	Loader           Loader
	NVRAM            NVRAM

	Kernel, Initrd, Cmdline, DTB string

	BootDevices []string // hd, cdrom, network, fd
	BootMenu    device.Switch
	// BootMenuTimeout is in milliseconds; 0: the firmware's own.
	BootMenuTimeout uint
	BIOSSerial      device.Switch
	// RebootTimeout is in milliseconds; -1: never reboots automatically; nil: unset.
	RebootTimeout *int
	SMBIOSMode    string // emulate, host, sysinfo
}

// FirmwareFeature is a feature asked of an automatically chosen firmware.
type FirmwareFeature struct {
	Name    string
	Enabled device.Switch
}

// Loader is a firmware image.
type Loader struct {
	Path     string
	ReadOnly device.Switch
	Type     string // rom, pflash
	Secure   device.Switch
	Format   string
	// Stateless firmware keeps no variables.
	Stateless device.Switch
}

// NVRAM is the firmware's variable store.
type NVRAM struct {
	Path, Template, Format string
	// Type is file or block where the path is said as a disk's source is; empty: it is the element's text.
	Type      string
	SecLabels []device.SourceLabel
}

// Features are the machine's switches.
type Features struct {
	ACPI, PAE                        bool
	APIC                             bool
	APICEOI                          device.Switch
	HAP                              device.Switch
	ViridianSet                      bool
	PrivNet                          bool
	KVMHidden                        device.Switch
	KVMSet                           bool
	KVMHintDedicated, KVMPollControl device.Switch
	PVSpinlock                       device.Switch
	PMU                              device.Switch
	VMPort                           device.Switch
	SMM                              device.Switch
	IOAPIC                           string // qemu, kvm
	VMCoreInfo                       device.Switch
	HyperV                           *HyperV
	// TCGTBCache is the translation cache of TCG, in bytes; 0: QEMU's own.
	TCGTBCache uint64
}

// HyperV are the enlightenments for Windows guests.
type HyperV struct {
	Mode                                            string // custom, passthrough
	Relaxed, VAPIC, VPIndex, Runtime, SynIC, STimer device.Switch
	STimerDirect                                    device.Switch
	Reset, Frequencies, Reenlightenment, TLBFlush   device.Switch
	IPI, EVMCS, AVIC                                device.Switch
	Spinlocks                                       device.Switch
	SpinlockRetries                                 uint
	VendorID                                        device.Switch
	VendorIDValue                                   string
}

// CPU is the processor the guest sees.
type CPU struct {
	Mode       string // host-model, host-passthrough, maximum, custom or empty
	Match      string // exact, minimum, strict
	Check      string // none, partial, full
	Migratable device.Switch
	Model      string
	Fallback   string // allow, forbid
	VendorID   string
	Vendor     string
	Features   []CPUFeature
	Topology   *CPUTopology
	Cache      *CPUCache
	Cells      []Cell
	// MaxPhysBits of guest addresses; PhysMode: emulate, passthrough.
	MaxPhysMode string
	MaxPhysBits uint
}

// CPUFeature is a feature with its policy: force, require, optional, disable, forbid.
type CPUFeature struct{ Name, Policy string }

// CPUTopology divides the guest's maximum of processors.
type CPUTopology struct{ Sockets, Dies, Clusters, Cores, Threads uint }

// CPUCache is the cache the guest is shown.
type CPUCache struct {
	Level int    // -1: unset
	Mode  string // emulate, passthrough, disable
}

// Cell is one NUMA node of the guest.
type Cell struct {
	ID        uint
	CPUs      topology.CPUSet
	Memory    uint64
	MemAccess string // shared, private
	Discard   device.Switch
	// Distances to other cells by id; absent: 10 to itself, 20 to others.
	Distances []Distance
}

// Distance to another guest cell, as ACPI's SLIT counts.
type Distance struct{ Cell, Value uint }

// Clock is the guest's time.
type Clock struct {
	Offset     string // utc, localtime, timezone, variable, absolute
	Basis      string // utc, localtime (variable)
	Adjustment string // seconds, or "reset"
	Timezone   string
	Start      uint64
	Timers     []Timer
}

// Timer is one of the guest's clock devices.
type Timer struct {
	Name       string // rtc, pit, hpet, kvmclock, hypervclock, tsc, platform
	Present    device.Switch
	TickPolicy string // delay, catchup, merge, discard
	Track      string
	Frequency  uint64
	Mode       string
	CatchUp    *CatchUp
}

// CatchUp bounds how a timer makes good lost ticks.
type CatchUp struct{ Threshold, Slew, Limit uint }

// SysInfo is SMBIOS data shown to the guest; each group maps names to values in order.
type SysInfo struct {
	BIOS, System, Chassis []SysInfoEntry
	BaseBoards            [][]SysInfoEntry
	OEMStrings            []string
	// FWCfg are "fwcfg" entries: a name with a value or a file.
	FWCfg []FWCfgEntry
}

// SysInfoEntry is one SMBIOS field, by libvirt's name ("manufacturer").
type SysInfoEntry struct{ Name, Value string }

// FWCfgEntry is one entry of the firmware configuration device.
type FWCfgEntry struct{ Name, Value, File string }
