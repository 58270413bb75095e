package machine

import (
	"encoding/json"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// HostDefaults returns the facts about a QEMU on which the defaults of a definition depend.
func HostDefaults(c *qemucaps.Capabilities) *domainxml.Host {
	canonical := func(machine string) string {
		if m, known := c.Machine(machine); known {
			return m.Name
		}
		return machine
	}
	h := &domainxml.Host{Canonical: canonical, Emulator: c.Binary.Path}
	for _, m := range c.Machines {
		if m.Default {
			h.CPUModel = strings.TrimSuffix(m.DefaultCPUType, "-"+c.Arch+"-cpu")
		}
	}
	return h
}

// MarkUpdated records that the next start will differ from the running guest.
func (g *Guest) MarkUpdated() {
	if g.Instance != nil {
		g.Instance.Updated = true
		g.WriteInstance()
	}
}

// Policy returns the settings of a definition that decide the life cycle.
func Policy(d *domain.Definition) lifecycle.Policy {
	return lifecycle.Policy{OnPoweroff: d.OnPoweroff, OnReboot: d.OnReboot, OnCrash: d.OnCrash}
}

// Affect says which definitions a change is for. Neither means the live one of a running guest, or else the
// stored one.
type Affect struct{ Live, Config bool }

// Decode parses an event's data. It logs a failure once per instance.
func (g *Guest) Decode(name string, data json.RawMessage, into any) bool {
	if err := json.Unmarshal(data, into); err != nil {
		if !g.Instance.badEventLogged {
			g.Log.Warn("QEMU sent an event that does not parse; further ones are not logged", "event", name, "error", err)
		}
		g.Instance.badEventLogged = true
		return false
	}
	return true
}

// SetActive changes the active definition. It changes a copy, because readers may hold the present one. It
// runs in the loop.
func (g *Guest) SetActive(change func(*domain.Definition)) {
	if g.Instance == nil {
		return
	}
	def := g.Instance.Definition.Clone()
	change(def)
	g.Instance.Definition = def
	g.Publish()
}

// LeftoverKind is the kind of record that holds, by UUID, the name of a forgotten guest if its secrets were
// kept: its TPM state or its UEFI variables.
var LeftoverKind = store.Kind{Name: "left", Version: 1}

// Definition returns the definition that a reader asks for.
func (g *Guest) Definition(a Affect) (*domain.Definition, error) {
	v := g.View()
	switch {
	case a.Live && v.Active == nil:
		return nil, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	case a.Config && v.Inactive == nil:
		return nil, fault.New(fault.WrongState, fault.Domain, "transient domains do not have any persistent config")
	case a.Config:
		return v.Inactive, nil
	case v.Current() == nil: // its first definition is in progress
		return nil, ErrGone(v.Name)
	}
	return v.Current(), nil
}

// MaxVCPUs is more than QEMU's largest machine takes.
const MaxVCPUs = 4096
