package guest

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

// domains is the kind of record that keeps a persistent guest, by UUID.
var domains = store.Kind{Name: "domain", Version: 1}

// record is what is kept of a guest for good.
type record struct {
	Name string
	// Submitted is the document as the client gave it; XML is what was
	// understood of it, completed. XML is what counts; Submitted allows a later
	// version to understand more.
	Submitted string
	XML       string
	Autostart bool
	// AutostartOnce is Autostart for the next start of the host only.
	AutostartOnce bool
	ManagedSave   bool
	// Followed are the operations on the running guest that the definition has followed, of those that
	// are open: for it they are done, whatever was stored since.
	Followed []string `json:",omitempty"`
	// Template says that the guest is there to be cloned, and is not started.
	Template bool `json:",omitempty"`
	// Fences are the folders out of which an image and what lies below it must not
	// lead, by the source of the disk: those that the client was held to who gave it.
	Fences map[string][]string `json:",omitempty"`
}

// keep stores the guest's record, or removes it when the guest is no longer
// persistent.
func (g *Guest) keep() error {
	err := g.put()
	if err == nil && g.unstored != nil {
		g.unstored.unstored.Store(nil)
		g.unstored = nil
	}
	return err
}

// keepAhead stores the record as it is, to learn whether the store takes changes, and has it keep
// room for one that follows when the guest has changed.
func (g *Guest) keepAhead() error {
	if err := g.keep(); err != nil {
		return err
	}
	return g.reg.store.Reserve(len(g.record.Submitted) + len(g.record.XML))
}

func (g *Guest) put() error {
	if g.inactive == nil {
		return g.reg.store.Delete(domains, g.uuid)
	}
	return g.reg.store.Put(domains, g.uuid, g.record)
}

// text is a definition of the running guest as it is kept for the next daemon.
func (r *run) text(d *domain.Definition) (string, error) {
	return domainxml.Format(d, domainxml.Style{Active: true, Secure: true, ID: r.ID})
}

// runRecord is what a restarted daemon needs to adopt a running guest. It lies
// in the guest's run directory, which a reboot of the host empties, as it ends
// every QEMU: what the record tells is then gone with what it told of.
type runRecord struct {
	Name, UUID string
	ID         int
	XML        string // the active definition
	Submitted  string // of a transient guest: what its client gave
	PID        int    // 0: QEMU had not been launched when this was written
	StartTime  uint64 // of PID, in clock ticks since boot: tells a reused PID
	State      lifecycle.State
	Since      time.Time
	Started    time.Time
	Updated    bool
	Messages   []string
	NICs       []heldNIC
	// Taken are PCI devices that this run takes from the host's drivers.
	Taken []kernel.PCIAddress `json:",omitempty"`
	// Fences are those of the guest: the store has none of a transient one, which may become persistent.
	Fences map[string][]string `json:",omitempty"`
	// User is who QEMU runs as, in a chamber; nil: as the daemon, without one.
	User *sandbox.User `json:",omitempty"`
	// Isolation names what QEMU was kept within when it was launched.
	Isolation []string `json:",omitempty"`
	// Surplus says that the guest's control group may let it open nodes of devices
	// that it has let go, or never came to have.
	Surplus bool `json:",omitempty"`
	// LastNode is the highest number that a block node of this run has had.
	LastNode uint
	// FromManaged says that the guest came from its managed save image.
	FromManaged bool
	// Resuming says that the guest, which came from an image, is about to be let run, or just was.
	Resuming bool `json:",omitempty"`
	// NoRoom are disks for which the host had no room, and for which the guest is paused.
	NoRoom []string
	// KeepTPM says that the state of the TPM stays although the guest was undefined as it ran.
	KeepTPM bool `json:",omitempty"`
	// MadeNVRAM says that this run made the guest's UEFI variables, and that nobody asked to keep
	// them.
	MadeNVRAM bool `json:",omitempty"`
	// AutoDestroy says that the guest ends with the client that started it, and so
	// with the daemon that this client was connected to.
	AutoDestroy bool
}

// revives says that a guest whose QEMU ends in a state has crashed, and is to be started again. One that was to end with
// its client would have none then.
func (r *runRecord) revives(s lifecycle.State) bool {
	return s.EndFor == "" && lifecycle.Revives(s.Policy.OnCrash) && !r.AutoDestroy
}

// heldNIC is a host interface that outlives QEMU and must be taken down.
type heldNIC struct {
	Alias, IfName, Bridge string
	// User is who a program runs as that serves a network of type user; nil: there is none.
	User *sandbox.User `json:",omitempty"`
}

// what names it among what a run holds.
func (n *heldNIC) what() string {
	if n.User != nil {
		return "user network of " + n.Alias
	}
	return "interface " + n.IfName
}

const runRecordFile = "run.json"

// writeRunRecord replaces the record in one step, so that a daemon killed at
// any moment leaves either the old or the new one.
func writeRunRecord(dir string, r *runRecord) error {
	if err := atomicfile.WriteJSON(filepath.Join(dir, runRecordFile), r); err != nil {
		return fmt.Errorf("cannot write the run record of %q: %w", r.Name, err)
	}
	return nil
}

// readRunRecord reads the record of a run directory; nil when there is none.
func readRunRecord(dir string) (*runRecord, error) {
	return atomicfile.ReadJSON[runRecord](filepath.Join(dir, runRecordFile))
}

// keepRun brings the running guest's record up to date. Where that cannot be done, because
// there is no room, say, it is tried again until it is: see writeLate.
func (g *Guest) keepRun() {
	if err := g.journal(); err != nil {
		g.writeLater(err)
	}
}

// journal is keepRun for what must not be done unless the next daemon will know of it.
func (g *Guest) journal() error {
	r := g.run
	if r == nil {
		return nil
	}
	r.State, r.Since, r.Fences, r.LastNode = g.state, g.since, g.record.Fences, r.nodes.newest()
	if err := writeRunRecord(r.dir, &r.runRecord); err != nil {
		return err
	}
	r.written()
	return nil
}

// keepActive keeps the active definition for the next daemon.
func (g *Guest) keepActive() {
	if err := g.journalActive(); err != nil {
		g.writeLater(err)
	}
}

// journalActive is keepActive for what must not be done unless the next daemon will know of it.
func (g *Guest) journalActive() error {
	text, err := g.run.text(g.run.def)
	if err != nil {
		return err
	}
	g.run.XML = text
	return g.journal()
}

// activePhase is the phase that QEMU's own word for its run state stands for.
func activePhase(status string) (domain.State, domain.Reason) {
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
