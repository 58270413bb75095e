package scenario

import (
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Guest is one role: so many guests that are alike.
type Guest struct {
	Role   string `yaml:"role"`
	Count  int    `yaml:"count"` // of tiles that have one; 1 if nothing is said
	Memory Size   `yaml:"memory"`
	// MaxMemory is what memory can grow to; as much as Memory if nothing is said.
	MaxMemory Size   `yaml:"max_memory"`
	VCPUs     int    `yaml:"vcpus"`     // 1 if nothing is said
	MaxVCPUs  int    `yaml:"max_vcpus"` // that can be added; as many as VCPUs if nothing is said
	CPU       string `yaml:"cpu"`       // host-passthrough, host-model, or nothing for the daemon's own
	Pages     string `yaml:"pages"`     // 2MiB or 1GiB for huge ones
	TBCache   Size   `yaml:"tb_cache"`  // of translated code, where TCG runs; 64MiB if nothing is said
	// Kernel is generic, Debian's with drivers for all machines, or cloud, the one that
	// boots faster; if nothing is said cloud, but generic where a disk is on SATA.
	Kernel string `yaml:"kernel"`
	// Node binds processors and memory: "spread" puts tile after tile on one node
	// after another, a number on that one.
	Node     string    `yaml:"node"`
	Disks    []Disk    `yaml:"disks"`
	Services []Service `yaml:"services"`

	line int
}

// Disk is one beside the root and the shared /usr.
type Disk struct {
	Name     string `yaml:"name"`
	Size     Size   `yaml:"size"`
	Bus      string `yaml:"bus"`      // virtio if nothing is said
	Format   string `yaml:"format"`   // raw if nothing is said
	Allocate string `yaml:"allocate"` // thin, or full
	Cache    string `yaml:"cache"`    // none if nothing is said
	IO       string `yaml:"io"`       // threads if nothing is said
	IOThread bool   `yaml:"iothread"`
	// Store is what it lies on: file, if nothing is said; device, a block device over
	// that file; or the path of a block device of the daemon's host, below /dev, all of
	// which is lost.
	Store string `yaml:"store"`
	// Partition is the part of it that is used: whole, if nothing is said; aligned, a
	// partition from 1 MiB on; misaligned, one from sector 63 on.
	Partition string `yaml:"partition"`
	Scheduler string `yaml:"scheduler"` // the guest's for it; as-found if nothing is said
	Use       string `yaml:"use"`       // swap, or the path in the guest where a file system on it is mounted; nothing leaves it as it is

	line int
}

// Service is what the agent sets up in the guest before anything is measured.
type Service struct {
	Kind   string         `yaml:"kind"`
	Config map[string]any `yaml:"config"`

	line int
}

// UnmarshalYAML reads a role.
func (g *Guest) UnmarshalYAML(node *yaml.Node) error {
	type fields Guest
	*g = Guest{Count: 1, VCPUs: 1, TBCache: 64 * MiB, line: node.Line}
	if err := strict(node, (*fields)(g)); err != nil {
		return err
	}
	if g.MaxVCPUs == 0 {
		g.MaxVCPUs = g.VCPUs
	}
	if g.MaxMemory == 0 {
		g.MaxMemory = g.Memory
	}
	return g.check()
}

// The bounds of a guest.
const (
	maxCount  = 4096
	maxVCPUs  = 4096
	minMemory = 64 * MiB
	maxDisks  = 20
)

func (g *Guest) check() error {
	switch {
	case !isName(g.Role):
		return wrong(g.line, "role %q is no name: small letters and digits are", g.Role)
	case g.Role == hostRole:
		return wrong(g.line, "%q is where the lab runs, and no role of a guest", hostRole)
	case g.Count < 0 || g.Count > maxCount:
		return wrong(g.line, "count of %s is %d: 0 to %d are possible", g.Role, g.Count, maxCount)
	case g.Memory < minMemory:
		return wrong(g.line, "memory of %s is %s: a guest of the lab needs at least %s", g.Role, g.Memory, minMemory)
	case g.MaxMemory < g.Memory:
		return wrong(g.line, "memory of %s is %s, and can grow to %s only", g.Role, g.Memory, g.MaxMemory)
	case g.VCPUs < 1 || g.MaxVCPUs < g.VCPUs || g.MaxVCPUs > maxVCPUs:
		return wrong(g.line, "%s has %d vcpus of at most %d: 1 to %d are possible", g.Role, g.VCPUs, g.MaxVCPUs, maxVCPUs)
	case len(g.Disks) > maxDisks:
		return wrong(g.line, "%s has %d disks: at most %d are possible", g.Role, len(g.Disks), maxDisks)
	}
	if err := oneOf(g.line, "cpu", g.CPU, "", "host-passthrough", "host-model"); err != nil {
		return err
	}
	if err := oneOf(g.line, "pages", g.Pages, "", "2MiB", "1GiB"); err != nil {
		return err
	}
	if err := oneOf(g.line, "kernel", g.Kernel, "", KernelCloud, KernelGeneric); err != nil {
		return err
	}
	return g.checkDisks()
}

// The kernels of guests.
const (
	KernelCloud   = "cloud"
	KernelGeneric = "generic"
)

func (g *Guest) checkDisks() error {
	var names []string
	for _, d := range g.Disks {
		if slices.Contains(names, d.Name) {
			return wrong(d.line, "%s has two disks %q", g.Role, d.Name)
		}
		names = append(names, d.Name)
		if d.Whole() && g.Count > 1 {
			return wrong(d.line, "disk %s is %s, and %d tiles have one: a device is one guest's", d.Name, d.Store, g.Count)
		}
	}
	return nil
}

// UnmarshalYAML reads a disk.
func (d *Disk) UnmarshalYAML(node *yaml.Node) error {
	type fields Disk
	*d = Disk{Bus: "virtio", Format: "raw", Allocate: "thin", Cache: "none", IO: "threads", Store: StoreFile, Partition: "whole", Scheduler: "as-found", line: node.Line}
	if err := strict(node, (*fields)(d)); err != nil {
		return err
	}
	if !isName(d.Name) || d.Name == "root" || d.Name == "usr" {
		return wrong(d.line, "disk %q: small letters and digits are a name, and root and usr are taken", d.Name)
	}
	if d.Size < MiB {
		return wrong(d.line, "disk %s has %s: at least %s are possible", d.Name, d.Size, MiB)
	}
	if d.Use != "" && d.Use != "swap" && !strings.HasPrefix(d.Use, "/") {
		return wrong(d.line, "use of disk %s is %q: swap, or a path in the guest", d.Name, d.Use)
	}
	for _, one := range []struct {
		what, value string
		may         []string
	}{
		{"bus", d.Bus, []string{"virtio", "scsi", "ide", "sata"}},
		{"format", d.Format, []string{"raw", "qcow2"}},
		{"allocate", d.Allocate, []string{"thin", "full"}},
		{"cache", d.Cache, []string{"none", "writethrough", "writeback", "directsync", "unsafe"}},
		{"partition", d.Partition, []string{"whole", "aligned", "misaligned"}},
		{"scheduler", d.Scheduler, []string{"as-found", "none", "mq-deadline", "bfq", "kyber"}},
		{"io", d.IO, []string{"threads", "native", "io_uring"}},
	} {
		if err := oneOf(d.line, one.what, one.value, one.may...); err != nil {
			return err
		}
	}
	return d.checkStore()
}

// What a disk lies on, but for the path of a device.
const (
	StoreFile   = "file"
	StoreDevice = "device"
)

func (d *Disk) checkStore() error {
	switch {
	case d.Store == StoreFile:
		return nil
	case d.Store != StoreDevice && (!strings.HasPrefix(d.Store, "/dev/") || path.Clean(d.Store) != d.Store):
		return wrong(d.line, "store of disk %s is %q: file, device, or the path of a block device below /dev", d.Name, d.Store)
	case d.Format != "raw":
		return wrong(d.line, "disk %s has format %s: what lies on a block device is raw", d.Name, d.Format)
	}
	return nil
}

// Whole tells whether its store is a device of the host's that nobody else may
// have.
func (d *Disk) Whole() bool { return strings.HasPrefix(d.Store, "/dev/") }

// UnmarshalYAML reads a service.
func (s *Service) UnmarshalYAML(node *yaml.Node) error {
	type fields Service
	s.line = node.Line
	if err := strict(node, (*fields)(s)); err != nil {
		return err
	}
	if s.Kind == "" {
		return wrong(s.line, "a service wants its kind")
	}
	return nil
}

func oneOf(line int, what, value string, may ...string) error {
	if slices.Contains(may, value) {
		return nil
	}
	return wrong(line, "%s is %q: %s are possible", what, value, strings.TrimPrefix(strings.Join(may, ", "), ", "))
}

// isName keeps names short: they become parts of names of guests, files and links.
func isName(text string) bool {
	for i, r := range text {
		if (r < 'a' || r > 'z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return text != "" && len(text) <= 12
}
