package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/scenario"
)

// Guest is one that runs.
type Guest struct {
	Name    string
	Address string // on the run's network
	XML     string // that it was made from

	site    *Site   // that has its files
	at      *Target // where it runs: elsewhere, once it was moved
	domain  xdr.Domain
	disks   []string   // names of its volumes
	devices []*os.File // made of some of them
	console string     // the file that its serial port writes to
}

// Start makes a guest's disks and starts it. Number is its own in the run, from 1;
// tile is that it belongs to, from 1. If it fails nothing of it stays.
func (s *Site) Start(ctx context.Context, name string, number, tile int, spec scenario.Guest) (g *Guest, err error) {
	g = &Guest{Name: name, Address: s.address(number), site: s, at: s.target, console: filepath.Join(s.dir, name+".console")}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.dropFiles(context.WithoutCancel(ctx)))
		}
	}()
	p := plan{name: name, number: number, spec: spec, sources: map[string]source{}, console: g.console}
	if p.cell, err = s.target.cell(spec.Node, tile); err != nil {
		return g, err
	}
	if err = g.makeDisks(ctx, p); err != nil {
		return g, err
	}
	if err = g.openConsole(ctx); err != nil {
		return g, err
	}
	if g.XML, err = s.definition(p); err != nil {
		return g, err
	}
	var ret xdr.DomainCreateXMLRet
	if err = s.target.call(ctx, xdr.ProcDomainCreateXML, &xdr.DomainCreateXMLArgs{XML: g.XML}, &ret); err != nil {
		return g, errors.Join(skip(err), s.target.unmade(context.WithoutCancel(ctx), name, err))
	}
	g.domain = ret.Domain
	return g, nil
}

// unmade destroys a guest that came up after nobody waited for it any more.
func (t *Target) unmade(ctx context.Context, name string, why error) error {
	if remote.Refused(why) {
		return nil
	}
	return sweepGuests(ctx, t, func(one string) bool { return one == name })
}

// cell gives the node that a rule means for a tile.
func (t *Target) cell(rule string, tile int) (*Cell, error) {
	switch {
	case rule == "":
		return nil, nil
	case len(t.Cells) < 2:
		return nil, &Skipped{fmt.Sprintf("the host has %d node: there is nothing to bind guests to", len(t.Cells))}
	case rule == "spread":
		return &t.Cells[(tile-1)%len(t.Cells)], nil
	}
	for i := range t.Cells {
		if fmt.Sprint(t.Cells[i].ID) == rule {
			return &t.Cells[i], nil
		}
	}
	return nil, &Skipped{"the host has no node " + rule}
}

// rootSize is what a guest's own root may grow to.
const rootSize = 4 * scenario.GiB

func (g *Guest) makeDisks(ctx context.Context, p plan) error {
	root, err := g.volume(ctx, "root", "qcow2", rootSize, false, g.site.image.Root)
	if err != nil {
		return err
	}
	p.sources["root"] = source{path: root}
	for _, d := range p.spec.Disks {
		if p.sources[d.Name], err = g.store(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// volume makes one of the guest's own.
func (g *Guest) volume(ctx context.Context, disk, format string, size scenario.Size, full bool, backing string) (string, error) {
	name := g.Name + "-" + disk + "." + format
	path, err := g.site.volume(ctx, name, format, size, full, backing)
	if err == nil {
		g.disks = append(g.disks, name)
	}
	return path, err
}

// dropFiles takes away what was made for the guest.
func (g *Guest) dropFiles(ctx context.Context) error {
	g.dropDevices()
	var all error
	if err := g.dropConsole(); !errors.Is(err, fs.ErrNotExist) {
		all = err
	}
	for _, name := range g.disks {
		all = errors.Join(all, g.site.drop(ctx, name))
	}
	g.disks = nil
	return all
}

// dropConsole removes its file, unless it is one of the volumes.
func (g *Guest) dropConsole() error {
	if g.at.Away() {
		return nil
	}
	return os.Remove(g.console)
}

// Stop destroys the guest and deletes its files. Of a daemon that does not answer
// nothing more is asked: its files go with those of the run.
func (g *Guest) Stop(ctx context.Context) error {
	err := g.at.call(ctx, xdr.ProcDomainDestroy, &xdr.DomainDestroyArgs{Domain: g.domain}, nil)
	if fault.Is(err, fault.Timeout) {
		g.dropDevices()
		return err
	}
	if gone(err) {
		err = nil
	}
	return errors.Join(err, g.dropFiles(ctx))
}

// codeNoDomain is libvirt's for a domain that is not there, and
// codeOperationInvalid its for one that does not run.
const (
	codeNoDomain         = 42
	codeOperationInvalid = 55
)

func gone(err error) bool {
	refused, ok := errors.AsType[*remote.Error](err)
	return ok && (refused.Code == codeNoDomain || refused.Code == codeOperationInvalid)
}

// Running says whether the daemon still has it.
func (g *Guest) Running(ctx context.Context) (bool, error) {
	var ret xdr.DomainGetStateRet
	err := g.at.call(ctx, xdr.ProcDomainGetState, &xdr.DomainGetStateArgs{Domain: g.domain}, &ret)
	if err != nil && gone(err) {
		return false, nil
	}
	const running = 1
	return ret.State == running, err
}

// channel is a stream on a connection of its own, because a guest that takes
// nothing holds up its connection.
type channel struct {
	*remote.Stream
	conn *remote.Conn
}

// Close ends both.
func (c channel) Close() error {
	err := c.Stream.Close()
	c.conn.Close()
	return err
}

// Channel opens the line to the agent.
func (g *Guest) Channel(ctx context.Context) (io.ReadWriteCloser, error) {
	conn, err := remote.Dial(ctx, g.at.URI)
	if err != nil {
		return nil, err
	}
	name := Port
	const force = 1 // whoever had it is gone, or ought to be
	stream, err := conn.OpenStream(ctx, xdr.ProcDomainOpenChannel, &xdr.DomainOpenChannelArgs{Domain: g.domain, Name: &name, Flags: force}, nil)
	if err != nil {
		conn.Close()
		return nil, fault.Wrap(err, fault.Failed, fault.Agent, "cannot open the line to the agent in %s", g.Name)
	}
	return channel{stream, conn}, nil
}

// bootPatience is how long a guest may take until its agent answers: emulated
// ones are slow, and slower beside others.
const bootPatience = 5 * time.Minute

// BootPatience is how long to wait for the agent.
func (g *Guest) BootPatience() time.Duration { return bootPatience }
