package network

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// Pauses before a dnsmasq that keeps ending is started again. One that ran for longer than the longest pause
// is restarted at once.
const (
	firstWait   = time.Second
	longestWait = time.Minute
)

// startService starts a network's dnsmasq if it needs one. The caller has the turn.
func (n *Network) startService(ctx context.Context, d *Definition) error {
	content, needed := d.dnsmasqContent()
	if !needed {
		return nil
	}
	if err := new(kernel.Root).RoomForInotify(); err != nil {
		return err
	}
	// Leases are stored there. The folder is made again if it was removed; dnsmasq reports other errors.
	_ = os.Mkdir(n.networks.Data, 0o755)
	service, err := hostnet.StartDnsmasq(ctx, n.dnsmasqFiles(), content)
	if err != nil {
		return err
	}
	n.watch(service)
	return nil
}

// watch makes a process the network's dnsmasq and restarts it when it ends.
func (n *Network) watch(service *hostnet.Dnsmasq) {
	n.service = service
	n.networks.workers.Go(func() { n.keepServing(service) })
}

// stopService ends the dnsmasq, also one that an earlier daemon left without a record. The caller has the
// turn.
func (n *Network) stopService(ctx context.Context) error {
	service := n.service
	if service == nil {
		if service, _ = hostnet.AdoptDnsmasq(n.dnsmasqFiles(), nil); service == nil {
			return n.dnsmasqFiles().Clear(ctx)
		}
	}
	n.service = nil // tells keepServing that this end is intended
	err := service.Stop(ctx)
	if err != nil {
		select {
		case <-service.Ended(): // some of its files are there
		default:
			n.service = service
		}
	}
	return err
}

// keepServing restarts dnsmasq when it ends unintentionally. It returns when the network stops serving, has
// another dnsmasq, or the daemon closes.
func (n *Network) keepServing(service *hostnet.Dnsmasq) {
	wait := firstWait
	for began := time.Now(); ; {
		select {
		case <-service.Ended():
		case <-n.networks.work.Done():
			service.Release()
			return
		}
		if n.wasStopped(service) {
			return
		}
		if time.Since(began) > longestWait {
			wait = 0
		}
		if !n.networks.sleep(wait) {
			service.Release()
			return
		}
		began = time.Now()
		if n.replaceService(service) {
			return
		}
		wait = min(max(2*wait, firstWait), longestWait)
	}
}

// wasStopped says whether a dnsmasq was told to end.
func (n *Network) wasStopped(service *hostnet.Dnsmasq) (over bool) {
	err := n.change(n.networks.work, func() error {
		over = n.service != service
		return nil
	})
	return over || errors.Is(err, errGone)
}

// sleep waits, and returns false when the daemon ends.
func (s *Networks) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.work.Done():
		return false
	}
}

// replaceService starts a new dnsmasq in place of one that has ended. done says that the old one needs no more
// care.
func (n *Network) replaceService(old *hostnet.Dnsmasq) (done bool) {
	log := n.networks.Log.With("network", n.name)
	err := n.change(n.networks.work, func() error {
		v := n.View()
		if done = n.service != old || v == nil || v.Live == nil; done { // of a failed start that could not end it
			return nil
		}
		if err := n.startService(n.networks.work, v.Live); err != nil {
			return err
		}
		done = true
		old.Release()
		log.Warn("dnsmasq ended unexpectedly; restarted", "pid", n.service.Process().PID)
		return n.recordRunning(v.Live, v.chosenBridge)
	})
	switch {
	case err == nil:
	case errors.Is(err, errGone): // destroyed and undefined meanwhile
		return true
	case done:
		log.Error("new dnsmasq not recorded", "error", err)
	default:
		log.Error("dnsmasq ended unexpectedly and cannot be restarted yet; guests get no addresses", "error", err)
	}
	return done
}

// Lease is an address that a network has given to a guest.
type Lease struct {
	hostnet.Lease
	Bits   int    // of the network's prefix
	Bridge string // the interface that it was given on
}

// Leases returns the valid leases of a network; with mac set, those of that NIC. They are read from dnsmasq's
// lease file.
func (n *Network) Leases(mac string) ([]Lease, error) {
	d := n.View().current()
	all, err := hostnet.ReadLeases(n.dnsmasqFiles().Leases)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var out []Lease
	for _, l := range all {
		if mac != "" && l.MAC != mac || !l.Expiry.IsZero() && l.Expiry.Before(now) {
			continue
		}
		out = append(out, Lease{Lease: l, Bits: d.bitsFor(l.Address), Bridge: d.Bridge.Name})
	}
	return out, nil
}

// bitsFor returns the prefix length of the subnet that an address is in.
func (d *Definition) bitsFor(a netip.Addr) int {
	for _, ip := range d.IPs {
		if ip.Prefix().Contains(a) {
			return ip.Bits
		}
	}
	return a.BitLen()
}
