package site

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/experiment"
	"github.com/lodge-kvm/lodge/lab/image"
	"github.com/lodge-kvm/lodge/lab/loop"
	"github.com/lodge-kvm/lodge/lab/native"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/target"
)

// Outside is where roles run outside of a guest: on this host, beside the guests of
// daemons of this host.
type Outside struct {
	beside     []*target.Target
	number     int // among those of a run, behind the daemons
	image      image.Image
	dir        string
	run        string
	at         string // for the places' files
	agent      string
	processors *native.Processors
}

// NewOutside makes one beside the guests of some daemons.
func NewOutside(beside []*target.Target, i image.Image, dir string) *Outside {
	return &Outside{beside: beside, number: len(beside) + 1, image: i, dir: dir}
}

// Describe is empty: there is no daemon.
func (o *Outside) Describe() []record.Target { return nil }

// Lacks says why there can be no places, or why they would say nothing.
func (o *Outside) Lacks(_ context.Context, guests []scenario.Guest) (err error) {
	for _, t := range o.beside {
		if !t.Here() {
			return &experiment.Unavailable{Reason: fmt.Sprintf("target %s is on another host (%s): what runs here outside of a guest says nothing of its guests", t.Name, t.Host)}
		}
	}
	if err := native.Possible(); err != nil {
		return &experiment.Unavailable{Reason: err.Error()}
	}
	if o.processors, err = native.NewProcessors("/"); err != nil {
		return err
	}
	for _, g := range guests {
		if have := o.processors.Count(); g.Count > 0 && g.VCPUs > have {
			return &experiment.Unavailable{Reason: fmt.Sprintf("%s is to have %d processors outside of a guest, and the lab may use %d", g.Role, g.VCPUs, have)}
		}
	}
	return nil
}

// Open begins a directory with the agent.
func (o *Outside) Open(_ context.Context, run string) error {
	o.run, o.at = run, filepath.Join(o.dir, run, fmt.Sprint(o.number))
	if err := o.alone(); err != nil {
		return err
	}
	if err := os.MkdirAll(o.at, 0o755); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot make a directory for what runs outside of guests")
	}
	o.agent = filepath.Join(o.at, "agent")
	return o.image.Agent(o.agent)
}

// subnet holds the addresses of all places.
func (o *Outside) subnet() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, target.Subnet(o.run, o.number)}), 16)
}

// alone sees that nobody has an address there. Those of a run that was killed go a
// moment after it.
func (o *Outside) alone() error {
	for deadline := time.Now().Add(aloneWait); ; <-time.After(50 * time.Millisecond) {
		all, err := net.InterfaceAddrs()
		if err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot tell which addresses this host has")
		}
		taken := slices.IndexFunc(all, func(one net.Addr) bool {
			has, err := netip.ParsePrefix(one.String())
			return err == nil && has.Overlaps(o.subnet())
		})
		if taken < 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fault.New(fault.Busy, fault.Host, "this host has the address %s, and the run wants %s: begin another one", all[taken], o.subnet())
		}
	}
}

// aloneWait bounds the wait for addresses to go.
const aloneWait = 10 * time.Second

// ends are those of a place's network, by its number from 1: the host's and its own,
// in a subnet of four addresses.
func (o *Outside) ends(number int) (host, place netip.Prefix) {
	base := o.subnet().Addr().As4()
	base[2], base[3] = byte(number>>6), byte(number<<2)
	end := func(n byte) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{base[0], base[1], base[2], base[3] | n}), 30)
	}
	return end(1), end(2)
}

// Reach is never in doubt.
func (o *Outside) Reach(context.Context) error { return nil }

// Close takes away what Open made, and every place.
func (o *Outside) Close(context.Context) error {
	if o.at == "" {
		return nil
	}
	err := errors.Join(native.Sweep(o.run+"-"), os.RemoveAll(o.at))
	_ = os.Remove(filepath.Dir(o.at)) // the last of the run's targets leaves it empty
	o.at = ""
	return err
}

// CleanOutside takes away what a run that was killed has left outside of guests.
func CleanOutside(run, dir string) error {
	if err := named(run); err != nil {
		return err
	}
	return errors.Join(native.Sweep(run+"-"), os.RemoveAll(filepath.Join(dir, run)))
}

// outsideStart bounds the start of a place, which copies a root and makes file systems.
const outsideStart = 5 * time.Minute

// Boot makes a place for a role and waits for its agent.
func (o *Outside) Boot(ctx context.Context, spec experiment.Spec) (experiment.Guest, error) {
	ctx, stop := context.WithTimeoutCause(ctx, outsideStart, fault.New(fault.Timeout, fault.Agent, "no answer within %s", outsideStart))
	defer stop()
	p := &place{steered: steered{spec: spec}, of: o, dir: filepath.Join(o.at, spec.Name)}
	if p.cpus = o.processors.Take(spec.VCPUs); p.cpus == nil {
		return nil, fault.New(fault.NoCapacity, fault.Host, "%s is to have %d processors, and the lab may use %d", spec.Name, spec.VCPUs, o.processors.Count())
	}
	if err := p.start(ctx); err != nil {
		return nil, errors.Join(err, p.Close(context.WithoutCancel(ctx)))
	}
	return p, nil
}

// place is a role outside of a guest.
type place struct {
	steered
	of      *Outside
	dir     string
	cpus    []int
	address netip.Addr
	native  *native.Place // nil as long as it does not run
}

func (p *place) start(ctx context.Context) (err error) {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot make a directory for %s", p.spec.Name)
	}
	host, own := p.of.ends(p.spec.Number)
	p.address = own.Addr()
	p.native, err = native.Start(ctx, native.How{
		Name: p.spec.Name, Image: p.of.image, Agent: p.of.agent, Dir: p.dir, CPUs: p.cpus, Memory: int64(p.spec.Memory), Host: host, Address: own,
	})
	if err != nil {
		return err
	}
	p.session = p.native.Session
	for _, d := range p.spec.Disks {
		if err := p.disk(ctx, d); err != nil {
			return fmt.Errorf("cannot use disk %s: %w", d.Name, err)
		}
	}
	return nil
}

// disk mounts one where a guest has it: a file system in a file of the same size, or
// on the same device. It by-passes the host's page cache, because the place's own is
// that already. The device of a file goes when it is not mounted any more.
func (p *place) disk(ctx context.Context, d scenario.Disk) error {
	if d.Whole() {
		if err := target.Free(d.Store); err != nil {
			return err
		}
		return p.mount(ctx, d.Name, d.Store, d.Use)
	}
	backing, err := os.OpenFile(filepath.Join(p.dir, d.Name+".raw"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer backing.Close()
	if err := backing.Truncate(int64(d.Size)); err != nil {
		return err
	}
	if d.Allocate == "full" {
		if err := unix.Fallocate(int(backing.Fd()), 0, 0, int64(d.Size)); err != nil {
			return err
		}
	}
	device, err := loop.Attach(backing, os.O_RDWR, unix.LO_FLAGS_DIRECT_IO)
	if err != nil {
		return err
	}
	defer device.Close()
	return p.mount(ctx, d.Name, device.Name(), d.Use)
}

// Address is that of its network.
func (p *place) Address() string { return p.address.String() }

// Definition says what the place is.
func (p *place) Definition() string {
	type disk struct {
		Name  string `json:"name"`
		Bytes uint64 `json:"bytes"`
		Store string `json:"store"`
		Use   string `json:"use"`
	}
	told := struct {
		What       string `json:"what"`
		Name       string `json:"name"`
		Image      string `json:"image"`
		Processors []int  `json:"processors"`
		Memory     uint64 `json:"memory_bytes"`
		Address    string `json:"address"`
		Disks      []disk `json:"disks,omitempty"`
	}{"outside of a guest: name spaces and a control group", p.spec.Name, p.of.image.Digest, p.cpus, uint64(p.spec.Memory), p.Address(), nil}
	for _, d := range p.spec.Disks {
		told.Disks = append(told.Disks, disk{d.Name, uint64(d.Size), d.Store, d.Use})
	}
	text, _ := json.MarshalIndent(told, "", "  ")
	return string(text) + "\n"
}

// Serving says why the place, or a service in it, does not serve any more.
func (p *place) Serving(ctx context.Context) error {
	return p.serving(ctx, func() string { return "what ran outside of a guest is lost" })
}

// Counters are what the kernel counts of the place alone: not what it counts of the
// whole host, of which its files in /proc tell.
func (p *place) Counters(ctx context.Context) (map[string]float64, error) {
	u, err := p.native.Usage()
	if err != nil {
		return nil, err
	}
	all := map[string]float64{"cpus": float64(len(p.cpus)), "memory_available_bytes": float64(u.Available), "memory_total_bytes": float64(u.Memory)}
	if u.User > 0 {
		all["cpu_user_s"], all["cpu_system_s"] = u.User.Seconds(), u.System.Seconds()
	}
	ctx, stop := soon(ctx)
	defer stop()
	sample, err := p.session.Sample(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range sample.Nets { // of its own network name space
		all["net_in_bytes"] += float64(n.InBytes)
		all["net_out_bytes"] += float64(n.OutBytes)
	}
	return all, nil
}

// Change does nothing: what is done to guests is done by their daemon.
func (p *place) Change(_ context.Context, e scenario.Event) (map[string]float64, error) {
	return nil, &experiment.Unavailable{Reason: e.Do + " is done to guests, and this is outside of one"}
}

// Close ends the place with all that runs in it, and its files.
func (p *place) Close(context.Context) error {
	var err error
	if p.native != nil {
		err = p.native.Close()
	}
	p.of.processors.Give(p.cpus)
	return errors.Join(err, os.RemoveAll(p.dir))
}
