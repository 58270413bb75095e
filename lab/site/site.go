// Package site is where a run's guests live at a real daemon: guests of target,
// steered by session, with what service sets up in them. It is what package
// experiment drives. Outside is where the same roles run without a guest: places of
// native, steered and set up in the same way.
//
// What belongs here: how these fit together. What does not: any of what they do.
package site

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/experiment"
	"github.com/lodge-kvm/lodge/lab/image"
	"github.com/lodge-kvm/lodge/lab/machine"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/session"
	"github.com/lodge-kvm/lodge/lab/target"
)

// Site is a daemon, with the image that its guests boot and the directory for
// their files.
type Site struct {
	target *target.Target
	number int            // among those of a run, from 1
	to     *target.Target // that guests are migrated to; nil: nowhere
	image  image.Image
	dir    string
	run    string
	open   *target.Site
}

// New makes a site of a daemon that is connected to, and of another one that guests
// are migrated to, if there is one.
func New(t *target.Target, number int, to *target.Target, i image.Image, dir string) *Site {
	return &Site{target: t, number: number, to: to, image: i, dir: dir}
}

// Describe says where there will be something of the run.
func (s *Site) Describe() []record.Target {
	all := []record.Target{s.target.Target}
	if s.to != nil {
		all = append(all, s.to.Target)
	}
	return all
}

// Room is what there is for guests.
func (s *Site) Room(ctx context.Context) (experiment.Room, error) {
	if s.Away() {
		return s.roomAfar(ctx)
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return experiment.Room{}, fault.Wrap(err, fault.Failed, fault.Host, "cannot make a directory for the guests' files")
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(s.dir, &disk); err != nil {
		return experiment.Room{}, fault.Wrap(err, fault.Failed, fault.Host, "cannot tell how much of %s is free", s.dir)
	}
	return experiment.Room{
		Memory:     scenario.Size((machine.Machine{Root: "/"}).Memory("MemAvailable")),
		Disk:       scenario.Size(disk.Bavail) * scenario.Size(disk.Bsize),
		Processors: s.target.Processors(),
		Translated: s.target.Accelerator != "kvm",
	}, nil
}

// Lacks says what guests want that the daemon's host does not have.
func (s *Site) Lacks(ctx context.Context, guests []scenario.Guest) error {
	return unavailable(s.target.Lacks(ctx, guests))
}

// Open makes the run's network and pools.
func (s *Site) Open(ctx context.Context, run string) (err error) {
	s.run = run
	s.open, err = s.target.Open(ctx, run, s.number, s.dir, s.files())
	if err == nil && s.to != nil {
		err = s.open.Receive(ctx, s.to)
	}
	return err
}

// files are the image's.
func (s *Site) files() target.Image {
	return target.Image{Kernel: s.image.Kernel, Initrd: s.image.Initrd, Usr: s.image.Usr, Root: s.image.Root, Generic: s.image.Generic, Digest: s.image.Digest}
}

// Reach says why the daemon cannot be asked any more.
func (s *Site) Reach(ctx context.Context) error { return s.target.Reach(ctx) }

// Close takes away what Open made.
func (s *Site) Close(ctx context.Context) error {
	if s.open == nil {
		return nil
	}
	var err error
	if s.to != nil {
		err = s.to.Sweep(ctx, s.run)
	}
	err = errors.Join(err, s.open.Close(ctx))
	s.open = nil
	return err
}

// Clean takes away what a run that was killed has left at a daemon: the one of that
// number among the run's own.
func Clean(ctx context.Context, t *target.Target, run string, number int, dir string) error {
	if err := named(run); err != nil {
		return err
	}
	if t.Away() {
		return t.CleanAfar(ctx, run, number, dir)
	}
	return errors.Join(t.Sweep(ctx, run), os.RemoveAll(filepath.Join(dir, run)))
}

// named refuses what is no name of a run: it is a record's word, and a directory is
// removed by it.
func named(run string) error {
	if !strings.HasPrefix(run, "lab-") || filepath.Base(run) != run {
		return fault.New(fault.Invalid, fault.Host, "%q is no name of a run", run)
	}
	return nil
}

// Boot starts a guest and waits for its agent.
func (s *Site) Boot(ctx context.Context, spec experiment.Spec) (experiment.Guest, error) {
	started, err := s.open.Start(ctx, spec.Name, spec.Number, spec.Tile, spec.Guest)
	if err != nil {
		return nil, unavailable(err)
	}
	g := &guest{Guest: started, steered: steered{spec: spec}, to: s.to, memory: spec.Memory}
	if err := g.meet(ctx); err != nil {
		err = fmt.Errorf("%w%s", err, g.state(ctx))
		return nil, errors.Join(err, started.Stop(context.WithoutCancel(ctx)))
	}
	return g, nil
}

// meet opens the conversation and puts the disks to use.
func (g *guest) meet(ctx context.Context) error {
	ctx, stop := context.WithTimeoutCause(ctx, g.BootPatience(), fault.New(fault.Timeout, fault.Agent, "no answer within %s", g.BootPatience()))
	defer stop()
	if err := g.talk(ctx); err != nil {
		return err
	}
	return g.disks(ctx)
}

// talk opens the conversation at the daemon where the guest runs.
func (g *guest) talk(ctx context.Context) error {
	line, err := g.Channel(ctx)
	if err != nil {
		return err
	}
	g.session, err = session.Open(ctx, line)
	return err
}

// state says more of a guest whose agent does not answer.
func (g *guest) state(ctx context.Context) string {
	text := ""
	if running, err := g.Running(context.WithoutCancel(ctx)); err == nil && !running {
		text = "; it does not run any more"
	}
	if last := g.Console(context.WithoutCancel(ctx)); len(last) > 0 {
		text += "; its console ends: " + strings.Join(last, " | ")
	}
	return text
}

// unavailable turns what a daemon does not do into experiment's words.
func unavailable(err error) error {
	if skipped, ok := errors.AsType[*target.Skipped](err); ok {
		return &experiment.Unavailable{Reason: skipped.Reason}
	}
	return err
}
