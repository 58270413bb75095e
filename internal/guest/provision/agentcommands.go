package provision

import (
	"context"
	"encoding/base64"
	"strings"
	"time"
	"unicode"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// freezeLimit is how long freezing and trimming may take. Both wait for the guest's disks.
const freezeLimit = 60 * time.Second

// MaxAgentNames bounds the length of a list from an agent. MaxPrintable bounds a text, in bytes: longer ones are
// cut.
const (
	MaxAgentNames = 1024
	MaxPrintable  = 4096
)

// Printable returns a text from an agent without control characters, which could steer the terminal of the
// client.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text[:min(len(text), MaxPrintable)], "?"))
}

// Freeze makes the guest hold back writes to the file systems at these mount points, or to all of them. It
// returns how many it froze.
func Freeze(ctx context.Context, g *machine.Guest, sc scope.Scope, mountPoints []string) (frozen int, err error) {
	if len(mountPoints) == 0 {
		err = Agent(ctx, g, sc, "guest-fsfreeze-freeze", nil, &frozen, freezeLimit)
		return frozen, err
	}
	err = Agent(ctx, g, sc, "guest-fsfreeze-freeze-list", map[string]any{"mountpoints": mountPoints}, &frozen, freezeLimit)
	return frozen, err
}

// Thaw lets the guest write again. It returns how many file systems it thawed.
func Thaw(ctx context.Context, g *machine.Guest, sc scope.Scope) (thawed int, err error) {
	err = Agent(ctx, g, sc, "guest-fsfreeze-thaw", nil, &thawed, freezeLimit)
	return thawed, err
}

// Trim makes the guest discard the unused extents of its file systems, of at least minimum bytes each.
func Trim(ctx context.Context, g *machine.Guest, sc scope.Scope, minimum uint64) error {
	return Agent(ctx, g, sc, "guest-fstrim", map[string]any{"minimum": minimum}, nil, freezeLimit)
}

// Time returns the guest's time.
func Time(ctx context.Context, g *machine.Guest, sc scope.Scope) (time.Time, error) {
	var nanoseconds int64
	err := Agent(ctx, g, sc, "guest-get-time", nil, &nanoseconds, 0)
	return time.Unix(0, nanoseconds), err
}

// SetTime sets the guest's time. Nil sets it from the guest's hardware clock.
func SetTime(ctx context.Context, g *machine.Guest, sc scope.Scope, to *time.Time) error {
	if to == nil {
		return Agent(ctx, g, sc, "guest-set-time", nil, nil, 0)
	}
	return Agent(ctx, g, sc, "guest-set-time", map[string]any{"time": to.UnixNano()}, nil, 0)
}

// SetPassword sets the password of a user in the guest. crypted says that password is a hash already.
func SetPassword(ctx context.Context, g *machine.Guest, sc scope.Scope, user, password string, crypted bool) error {
	return Agent(ctx, g, sc, "guest-set-user-password", map[string]any{
		"username": user, "password": base64.StdEncoding.EncodeToString([]byte(password)), "crypted": crypted,
	}, nil, 0)
}

// AgentHostname asks the agent for the guest's host name.
func AgentHostname(ctx context.Context, g *machine.Guest, sc scope.Scope) (string, error) {
	var answer struct {
		Name string `json:"host-name"`
	}
	err := Agent(ctx, g, sc, "guest-get-host-name", nil, &answer, 0)
	return Printable(answer.Name), err
}

// LeaseHostname returns the host name that the guest sent with its DHCP request.
func LeaseHostname(g *machine.Guest) (string, error) {
	v := g.View()
	if v.Active == nil {
		return "", fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	for _, n := range v.Active.Devices.NICs {
		if n.Type != "network" {
			continue
		}
		net, err := g.Reg.Networks.ByName(n.Network)
		if err != nil {
			continue // the network is gone since
		}
		leases, err := net.Leases(n.MAC)
		if err != nil {
			return "", err
		}
		for _, l := range leases {
			if l.Hostname != "" {
				return l.Hostname, nil
			}
		}
	}
	return "", fault.New(fault.NotFound, fault.Call, "no hostname found for domain %s: none of its leases has one", v.Name)
}

// AgentVCPU is a vCPU as the guest sees it.
type AgentVCPU struct {
	ID         uint `json:"logical-id"`
	Online     bool `json:"online"`
	CanOffline bool `json:"can-offline"`
}

// FileSystem is a file system that is mounted in the guest.
type FileSystem struct {
	Name, MountPoint, Type string
	Total, Used            *uint64 // bytes; nil: the agent does not report it
	Disks                  []FileSystemDisk
}

// FileSystemDisk is a disk below a file system.
type FileSystemDisk struct {
	Target         string // of the definition; empty: the disk is not in it
	Serial, Device string // as the guest knows them
}

// AgentDisk is the position of a disk, as an agent reports it.
type AgentDisk struct {
	BusType string `json:"bus-type"`
	Bus     uint   `json:"bus"`
	Unit    uint   `json:"unit"`
	Target  uint   `json:"target"`
	PCI     struct {
		Domain, Bus, Slot, Function int64
	} `json:"pci-controller"`
	Serial, Dev string
}

// FileSystems asks the agent for the file systems that are mounted in the guest.
func FileSystems(ctx context.Context, g *machine.Guest, sc scope.Scope) ([]FileSystem, error) {
	var answer []struct {
		Name, MountPoint, Type string
		Total                  *uint64 `json:"total-bytes"`
		Used                   *uint64 `json:"used-bytes"`
		Disk                   []AgentDisk
	}
	if err := Agent(ctx, g, sc, "guest-get-fsinfo", nil, &answer, 0); err != nil {
		return nil, err
	}
	if len(answer) > MaxAgentNames {
		return nil, fault.New(fault.Failed, fault.Agent, "the agent reports %d file systems, more than Lodge accepts", len(answer))
	}
	def := g.View().Current()
	all := make([]FileSystem, 0, len(answer))
	for _, a := range answer {
		f := FileSystem{Name: Printable(a.Name), MountPoint: Printable(a.MountPoint), Type: Printable(a.Type), Total: a.Total, Used: a.Used}
		for _, d := range a.Disk[:min(len(a.Disk), MaxAgentNames)] {
			f.Disks = append(f.Disks, FileSystemDisk{Target: d.TargetName(def), Serial: Printable(d.Serial), Device: Printable(d.Dev)})
		}
		all = append(all, f)
	}
	return all, nil
}

// TargetName returns the definition's name of the disk that an agent reports. def is nil if the guest has ended
// meanwhile.
func (a AgentDisk) TargetName(def *domain.Definition) string {
	if def == nil {
		return ""
	}
	for _, d := range def.Devices.Disks {
		switch at := d.Address.(type) {
		case device.PCI:
			if int64(at.Domain) == a.PCI.Domain && int64(at.Bus) == a.PCI.Bus && int64(at.Slot) == a.PCI.Slot && int64(at.Function) == a.PCI.Function {
				return d.Target
			}
		case device.Drive:
			if strings.EqualFold(a.BusType, d.Bus) && at.Bus == a.Bus && at.Target == a.Target && at.Unit == a.Unit {
				return d.Target
			}
		}
	}
	return ""
}

// User is a user with a session in the guest.
type User struct {
	Name   string  `json:"user"`
	Domain string  `json:"domain"`
	Login  float64 `json:"login-time"` // seconds since 1970
}

// Users asks the agent for the users who are logged in.
func Users(ctx context.Context, g *machine.Guest, sc scope.Scope) ([]User, error) {
	var all []User
	err := Agent(ctx, g, sc, "guest-get-users", nil, &all, 0)
	all = all[:min(len(all), MaxAgentNames)]
	for i := range all {
		all[i].Name, all[i].Domain = Printable(all[i].Name), Printable(all[i].Domain)
	}
	return all, err
}

// OSInfo asks the agent for the guest's operating system. The keys are the agent's.
func OSInfo(ctx context.Context, g *machine.Guest, sc scope.Scope) (map[string]string, error) {
	var info map[string]string
	if err := Agent(ctx, g, sc, "guest-get-osinfo", nil, &info, 0); err != nil {
		return nil, err
	}
	if len(info) > MaxAgentNames {
		return nil, fault.New(fault.Failed, fault.Agent, "the agent reports %d values about its system, more than Lodge accepts", len(info))
	}
	words := map[string]string{}
	for name, text := range info {
		words[Printable(name)] = Printable(text)
	}
	return words, nil
}

// Timezone returns the name of the guest's time zone, which may be empty, and its offset from UTC.
func Timezone(ctx context.Context, g *machine.Guest, sc scope.Scope) (name string, ahead time.Duration, err error) {
	var answer struct {
		Zone   string
		Offset int64
	}
	if err = Agent(ctx, g, sc, "guest-get-timezone", nil, &answer, 0); err != nil {
		return "", 0, err
	}
	if day := int64(24 * 60 * 60); answer.Offset > day || answer.Offset < -day {
		return "", 0, fault.New(fault.Failed, fault.Agent, "the agent reports a time zone %d seconds ahead of UTC, which does not exist", answer.Offset)
	}
	return Printable(answer.Zone), time.Duration(answer.Offset) * time.Second, nil
}
