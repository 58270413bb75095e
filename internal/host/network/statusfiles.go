package network

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
)

// Programs on the host find guests by two JSON files for each bridge, in libvirt's format: BRIDGE.status has
// the leases, BRIDGE.macs the guests' addresses. The host's name service (libnss-libvirt) and scripts read
// them in libvirt's own folder.
const (
	statusSuffix = ".status"
	macsSuffix   = ".macs"
)

// statusPause collects changes before a write: leases and guests come in bursts.
const statusPause = 100 * time.Millisecond

// statusWriter writes the files of all networks in one goroutine, so that the last state wins and no verb
// waits for it.
type statusWriter struct {
	folder string
	wake   chan struct{} // signals a change

	mu      sync.Mutex
	changed map[*Network]bool

	written map[string]string // by UUID, the bridge with files; used only by the goroutine
}

func newStatusWriter(folder string) *statusWriter {
	return &statusWriter{folder: folder, wake: make(chan struct{}, 1), changed: map[*Network]bool{}, written: map[string]string{}}
}

// schedule schedules a write of a network's files.
func (w *statusWriter) schedule(n *Network) {
	w.mu.Lock()
	w.changed[n] = true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *statusWriter) takeChanged() map[*Network]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	due := w.changed
	w.changed = map[*Network]bool{}
	return due
}

// writeStatus keeps the files up to date until the daemon ends.
func (s *Networks) writeStatus() {
	w := s.status
	if err := os.MkdirAll(w.folder, 0o755); err != nil {
		s.Log.Warn("the host's name service does not find guests", "error", err)
		return
	}
	for ended := false; !ended; {
		select {
		case <-w.wake:
			ended = !s.sleep(statusPause)
		case <-s.work.Done():
			ended = true
		}
		for n := range w.takeChanged() {
			if err := w.write(n); err != nil {
				s.Log.Warn("the host's name service has old addresses of guests", "network", n.name, "error", err)
			}
		}
	}
}

// dropStatus removes the status files of inactive networks that a killed daemon left. In a folder that is not
// the daemon's own, files may belong to another program's networks; there adopt removes the daemon's own.
func (s *Networks) dropStatus() {
	if s.Status != "" {
		return
	}
	running := map[string]bool{}
	for _, n := range s.List() {
		if v := n.View(); v != nil && v.Live != nil && v.Live.Managed() {
			running[v.Live.Bridge.Name] = true
		}
	}
	for _, suffix := range []string{statusSuffix, macsSuffix} {
		found, _ := filepath.Glob(filepath.Join(s.status.folder, "*"+suffix)) // fails for a pattern that is wrong only
		for _, path := range found {
			if !running[strings.TrimSuffix(filepath.Base(path), suffix)] {
				_ = os.Remove(path) // the next daemon tries again
			}
		}
	}
}

// watchLeases notices leases that dnsmasq writes.
func (s *Networks) watchLeases(watch *hostnet.FolderWatch) {
	defer watch.Close()
	stop := context.AfterFunc(s.work, watch.Close)
	defer stop()
	for {
		names, all, err := watch.Next()
		if err != nil {
			return
		}
		if all {
			for _, n := range s.List() {
				s.status.schedule(n)
			}
		}
		for _, name := range names {
			id, is := strings.CutSuffix(name, ".leases")
			if n, err := s.ByUUID(id); is && err == nil {
				s.status.schedule(n)
			}
		}
	}
}

// write makes a network's files match its state: they exist while it runs. A change of a removed network may
// be processed after those of its successor, which counts.
func (w *statusWriter) write(n *Network) error {
	bridge, old := "", w.written[n.uuid]
	if now, err := n.networks.ByUUID(n.uuid); err == nil {
		n = now
		switch v := n.View(); {
		case v.Live != nil && v.Live.Managed():
			bridge = v.Live.Bridge.Name
		case old == "" && v.Config != nil && v.Config.Managed():
			old = v.Config.Bridge.Name // a killed daemon may have left some
		}
	}
	var errs []error
	if old != "" && old != bridge {
		errs = append(errs, w.remove(old))
		delete(w.written, n.uuid)
	}
	if bridge == "" {
		return errors.Join(errs...)
	}
	w.written[n.uuid] = bridge
	leases, err := hostnet.ReadLeases(n.dnsmasqFiles().Leases)
	if err == nil {
		err = w.replace(bridge+statusSuffix, statusOf(leases))
	}
	return errors.Join(append(errs, err, w.replace(bridge+macsSuffix, macsOf(n.Ports())))...)
}

// remove removes the files of a bridge.
func (w *statusWriter) remove(bridge string) error {
	var errs []error
	for _, suffix := range []string{statusSuffix, macsSuffix} {
		if err := os.Remove(filepath.Join(w.folder, bridge+suffix)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// replace writes a file atomically. The folder may belong to a user, so links are not followed.
func (w *statusWriter) replace(name string, content any) error {
	body, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(w.folder, name+".new-*")
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot write %s", name)
	}
	_, err = f.Write(append(body, '\n'))
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(w.folder, name))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot write %s", name)
}

// leaseStatus is one lease, with libvirt's words.
type leaseStatus struct {
	IAID     string `json:"iaid,omitempty"`
	Address  string `json:"ip-address"`
	MAC      string `json:"mac-address"`
	Hostname string `json:"hostname,omitempty"`
	ClientID string `json:"client-id,omitempty"`
	Expiry   int64  `json:"expiry-time"` // seconds since 1970; 0 for one without end
}

// statusOf leaves out leases without a MAC address, as libvirt does: readers treat a file with such a lease as
// damaged.
func statusOf(leases []hostnet.Lease) []leaseStatus {
	status := []leaseStatus{}
	for _, l := range leases {
		if l.MAC == "" {
			continue
		}
		s := leaseStatus{IAID: l.IAID, Address: l.Address.String(), MAC: l.MAC, Hostname: l.Hostname, ClientID: l.ClientID}
		if !l.Expiry.IsZero() {
			s.Expiry = l.Expiry.Unix()
		}
		status = append(status, s)
	}
	return status
}

// guestMACs are the addresses of one guest on a network.
type guestMACs struct {
	Guest string   `json:"domain"`
	MACs  []string `json:"macs"`
}

// macsOf groups ports by guest, in the order of their interfaces.
func macsOf(ports []Port) []guestMACs {
	guests := []guestMACs{}
	at := map[string]int{}
	for _, p := range ports {
		i, there := at[p.Owner]
		if !there {
			i = len(guests)
			at[p.Owner] = i
			guests = append(guests, guestMACs{Guest: p.Owner})
		}
		guests[i].MACs = append(guests[i].MACs, p.MAC)
	}
	return guests
}
