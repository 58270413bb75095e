package machine

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/atomicfile"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Domains is the kind of record that holds a persistent guest, by UUID.
var Domains = store.Kind{Name: "domain", Version: 1}

// Record is the permanently stored part of a guest.
type Record struct {
	Name string
	// Submitted is the document as the client sent it. XML is the completed definition that was parsed from
	// it. XML counts; Submitted lets a later version understand more of the document.
	Submitted string
	XML       string
	Autostart bool
	// AutostartOnce is Autostart for the next start of the host only.
	AutostartOnce bool
	ManagedSave   bool
	// Followed are the open operations on the running guest that the stored definition has followed
	// already. They are not applied again, whatever was stored since.
	Followed []string `json:",omitempty"`
	// Template says that the guest is only cloned, and never started.
	Template bool `json:",omitempty"`
	// PathLimits are the path limits: by disk source or path, the folders in which the file and its backing files
	// must lie. They are the folders of the client that brought the path.
	PathLimits map[string][]string `json:"Fences,omitempty"`
}

// Store stores the guest's record, or deletes it if the guest is no longer persistent.
func (g *Guest) Store() error {
	err := g.put()
	if err == nil && g.Unstored != nil {
		g.Unstored.Unstored.Store(nil)
		g.Unstored = nil
	}
	return err
}

// StoreAhead stores the unchanged record, to check that the store takes changes. It also reserves space for
// the record that follows when the guest has changed.
func (g *Guest) StoreAhead() error {
	if err := g.Store(); err != nil {
		return err
	}
	return g.Reg.Store.ReserveSpace(len(g.Record.Submitted) + len(g.Record.XML))
}

func (g *Guest) put() error {
	if g.Inactive == nil {
		return g.Reg.Store.Delete(Domains, g.UUID)
	}
	return g.Reg.Store.Put(Domains, g.UUID, g.Record)
}

// askedMemory is the memory that the guest's user last asked for, in bytes.
func (r *Instance) askedMemory() uint64 {
	if r.AskedMemory > 0 || r.Definition == nil {
		return r.AskedMemory
	}
	return r.Definition.CurrentMemory
}

// FormatForRecord formats a definition of the running guest for the run record.
func (r *Instance) FormatForRecord(d *domain.Definition) (string, error) {
	return domainxml.Format(d, domainxml.Style{Active: true, Secure: true, ID: r.ID})
}

// RunRecord is what a restarted daemon needs to adopt a running guest. It lies in the guest's run
// directory. A reboot of the host empties that directory and ends every QEMU, so the record goes with what
// it describes.
type RunRecord struct {
	Name, UUID string
	ID         int
	XML        string // the active definition
	Submitted  string // the client's document of a transient guest
	PID        int    // 0: QEMU was not launched yet
	StartTime  uint64 // of PID, in clock ticks since boot: detects a reused PID
	State      lifecycle.State
	Since      time.Time
	Started    time.Time
	Updated    bool
	Messages   []string
	NICs       []HeldNIC
	// Taken are the PCI devices that this instance takes from the host's drivers.
	Taken []kernel.PCIAddress `json:",omitempty"`
	// PathLimits are the path limits of the guest. The store has none for a transient guest, which may become
	// persistent.
	PathLimits map[string][]string `json:"Fences,omitempty"`
	// User is the user that QEMU runs as, in a sandbox. Nil: it runs as the daemon, without a sandbox.
	User *sandbox.User `json:",omitempty"`
	// Isolation names the barriers around QEMU at its launch.
	Isolation []string `json:",omitempty"`
	// Surplus says that the guest's control group may allow nodes of devices that it has released, or never
	// got.
	Surplus bool `json:",omitempty"`
	// LastNode is the highest number of a block node of this instance.
	LastNode uint
	// FromManaged says that the guest was restored from its managed save image.
	FromManaged bool
	// Resuming says that the restored guest is about to be resumed, or was just resumed.
	Resuming bool `json:",omitempty"`
	// FullDisks are the paths of full disks for which the guest is paused.
	FullDisks []string `json:"NoRoom"`
	// AskedMemory is the memory that the guest's user last asked its balloon for, in bytes, once the memory arbiter
	// has moved the balloon. 0: it has not; the active definition has the figure.
	AskedMemory uint64 `json:",omitempty"`
	// KeepTPM says that the TPM state is kept although the guest was undefined while it ran.
	KeepTPM bool `json:",omitempty"`
	// MadeNVRAM says that this instance made the guest's UEFI variables, and that no client asked to keep them.
	MadeNVRAM bool `json:",omitempty"`
	// AutoDestroy says that the guest ends with the client that started it, and so with the daemon that
	// this client was connected to.
	AutoDestroy bool
}

// RestartsAfterCrash reports whether a guest has crashed and is to be started again if its QEMU ends in state
// s. A guest that ends with its client is not started again: it would run without its client.
func (r *RunRecord) RestartsAfterCrash(s lifecycle.State) bool {
	return s.EndFor == "" && lifecycle.RestartsOnCrash(s.Policy.OnCrash) && !r.AutoDestroy
}

// HeldNIC is a host interface that outlives QEMU and must be removed.
type HeldNIC struct {
	Alias, IfName, Bridge string
	// User is the user of the program that serves a NIC of type user. Nil: there is none.
	User *sandbox.User `json:",omitempty"`
}

// ReleaseName names the interface in the list of releases.
func (n *HeldNIC) ReleaseName() string {
	if n.User != nil {
		return "user network of " + n.Alias
	}
	return "interface " + n.IfName
}

// RecordFile is the name of an instance's record in its directory.
const RecordFile = "run.json"

// WriteRecord replaces the record atomically: a daemon killed at any moment leaves the old or the new
// one.
func WriteRecord(dir string, r *RunRecord) error {
	if err := atomicfile.WriteJSON(filepath.Join(dir, RecordFile), r); err != nil {
		return fmt.Errorf("cannot write the run record of %q: %w", r.Name, err)
	}
	return nil
}

// ReadRecord reads the record of a run directory. It returns nil if there is none.
func ReadRecord(dir string) (*RunRecord, error) {
	return atomicfile.ReadJSON[RunRecord](filepath.Join(dir, RecordFile))
}

// WriteInstance updates the running guest's record. If that fails, for example on a full disk, it is repeated
// until it succeeds: see writeLater.
func (g *Guest) WriteInstance() {
	if err := g.WriteInstanceNow(); err != nil {
		g.writeLater(err)
	}
}

// WriteInstanceNow is WriteInstance for a change that must not happen unless the next daemon will know of it: it
// returns the error and does not repeat the write.
func (g *Guest) WriteInstanceNow() error {
	r := g.Instance
	if r == nil {
		return nil
	}
	r.State, r.Since, r.PathLimits, r.LastNode = g.State, g.Since, g.Record.PathLimits, r.Nodes.newest()
	if err := WriteRecord(r.Dir, &r.RunRecord); err != nil {
		return err
	}
	r.written()
	return nil
}

// WriteActive stores the active definition for the next daemon.
func (g *Guest) WriteActive() {
	if err := g.WriteActiveNow(); err != nil {
		g.writeLater(err)
	}
}

// WriteActiveNow is WriteActive for a change that must not happen unless the next daemon will know of it: it
// returns the error and does not repeat the write.
func (g *Guest) WriteActiveNow() error {
	text, err := g.Instance.FormatForRecord(g.Instance.Definition)
	if err != nil {
		return err
	}
	g.Instance.XML = text
	return g.WriteInstanceNow()
}

// ActivePhase maps QEMU's run state to a phase and its reason.
func ActivePhase(status string) (domain.State, domain.Reason) {
	switch status {
	case "running":
		return domain.Running, domain.ReasonUnknown
	case "suspended":
		return domain.PMSuspended, domain.ReasonUnknown
	case "shutdown":
		return domain.ShuttingDown, domain.ReasonUnknown
	case "io-error":
		return domain.Paused, domain.ReasonIOError
	case "watchdog":
		return domain.Paused, domain.ReasonWatchdog
	case "guest-panicked":
		return domain.Paused, domain.ReasonPanicked
	case "postmigrate", "save-vm":
		return domain.Paused, domain.ReasonSave
	case "inmigrate", "finish-migrate", "prelaunch", "restore-vm":
		return domain.Paused, domain.ReasonStartingUp
	default:
		return domain.Paused, domain.ReasonUnknown
	}
}
