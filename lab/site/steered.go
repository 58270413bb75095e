package site

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/experiment"
	"github.com/lodge-kvm/lodge/lab/mariadb"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/service"
	"github.com/lodge-kvm/lodge/lab/session"
	"github.com/lodge-kvm/lodge/lab/shop"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// setup bounds how long a service may take to come up, or to be asked what it has
// counted.
const setup = 5 * time.Minute

// steered is a machine whose agent answers, in a guest or outside of one.
type steered struct {
	spec     experiment.Spec
	session  *session.Session
	services []service.Service
}

// mount puts a file system on a device where the image has a directory, with what
// that holds: a database begins with the distribution's own tables.
func (m *steered) mount(ctx context.Context, disk, device, path string) error {
	aside := "/mnt/" + disk
	if err := service.Mount(ctx, m.session, device, aside); err != nil {
		return err
	}
	_, err := m.session.Run(ctx, "sh", "-ec", `mkdir -p "$2"; cp -a "$2/." "$1/"; mount --bind "$1" "$2"`, "sh", aside, path)
	return err
}

// What Prepare knows beside the services there are.
const (
	files = "files" // what every web server of the lab serves
	pages = "shop"  // the shop's pages
)

// Prepare sets a service up.
func (m *steered) Prepare(ctx context.Context, s scenario.Service) error {
	ctx, stop := context.WithTimeoutCause(ctx, setup, fault.New(fault.Timeout, fault.Agent, "%s is not up after %s", s.Kind, setup))
	defer stop()
	switch s.Kind {
	case files:
		return service.Files(ctx, m.session)
	case pages:
		return m.shop(ctx)
	}
	var config json.RawMessage
	if len(s.Config) > 0 {
		var err error
		if config, err = json.Marshal(s.Config); err != nil {
			return err
		}
	}
	one, err := service.New(s.Kind, config)
	if err != nil {
		return err
	}
	if err := one.Start(ctx, m.session); err != nil {
		return err
	}
	m.services = append(m.services, one)
	return nil
}

// shop puts the shop's pages where the web server finds them, and beside them
// where the database is: in the same guest.
func (m *steered) shop(ctx context.Context) error {
	all, err := shop.Pages()
	if err != nil {
		return err
	}
	if all[shop.ConfigName], err = shop.Config(mariadb.Server{Address: "unix:" + service.Socket, User: service.Account, Password: service.Word, Database: service.Database}); err != nil {
		return err
	}
	for name, content := range all {
		if err := m.session.Put(ctx, service.Root+"/shop/"+name, 0o644, bytes.NewReader(content)); err != nil {
			return err
		}
	}
	return nil
}

// Load runs a load, or an errand, to its end, or until no more of it is wanted.
func (m *steered) Load(ctx context.Context, kind string, config json.RawMessage, out func(workload.Interval) bool) error {
	ctx, end := m.heed(ctx)
	defer end()
	job, err := m.session.Start(ctx, kind, config)
	if err != nil {
		return err
	}
	wanted := true
	for i := range job.Intervals() {
		if !out(i) && wanted {
			wanted = false
			go func() { _, _ = job.Stop(ctx) }() // what it did is told here
		}
	}
	_, err = job.Wait(ctx)
	return err
}

// serving says why the machine, or a service in it, does not serve any more. Of one
// that is lost nothing else can be asked, and lost says that it is.
func (m *steered) serving(ctx context.Context, lost func() string) error {
	ask, stop := soon(ctx)
	defer stop()
	if _, err := m.session.Clock(ask); err != nil {
		return fault.Wrap(err, fault.Unresponsive, fault.Agent, "%s", lost())
	}
	var all error
	for _, s := range m.services {
		all = errors.Join(all, s.Check(ctx, m.session))
	}
	return all
}

// Counted tells what all services' own books say.
func (m *steered) Counted(ctx context.Context) (map[string]int64, error) {
	ctx, stop := context.WithTimeoutCause(ctx, setup, fault.New(fault.Timeout, fault.Agent, "the services' books are not read after %s", setup))
	defer stop()
	all := map[string]int64{}
	for _, s := range m.services {
		counts, err := s.Counted(ctx, m.session)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, counts)
	}
	return all, nil
}

// Clock reads the machine's.
func (m *steered) Clock(ctx context.Context) (experiment.Clock, error) {
	ctx, stop := soon(ctx)
	defer stop()
	c, err := m.session.Clock(ctx)
	return experiment.Clock{At: c.At, Up: c.Up}, err
}
