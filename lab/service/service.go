// Package service sets up what guests of the lab serve: web servers, PHP and a
// database, of the distribution, each with one file of settings that lies here
// whole and is recorded with a run.
//
// A service is steered through a session only, so that the same works in a guest
// and outside of one. Its log has one line for each request, and is counted on
// the spot: what a load says it did is held against it.
//
// What belongs here: settings, starting, stopping, counting. What is served (the
// shop's pages, a database's tables) comes from who measures with it.
package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/session"
)

// Where things are in a guest.
const (
	Root   = "/srv/www" // what web servers serve
	logs   = "/var/log/lab"
	config = "/etc/lab"
)

// Service is one that a guest offers.
type Service interface {
	// Name is what it is called in messages.
	Name() string
	// Settings are the files that it is started with, by path.
	Settings() map[string][]byte
	// Start returns when it takes requests. A service that runs is an error.
	Start(context.Context, *session.Session) error
	// Check says why it does not serve any more, with the end of its log.
	Check(context.Context, *session.Session) error
	// Stop returns when it is gone.
	Stop(context.Context, *session.Session) error
	// Counted is how much it has served since it was started, by its own books.
	Counted(context.Context, *session.Session) (map[string]int64, error)
}

var kinds = map[string]func(json.RawMessage) (Service, error){
	"nginx":   configured(func() Service { return &Nginx{Connections: 4096} }),
	"apache":  configured(func() Service { return &Apache{Clients: 32} }),
	"php-fpm": configured(func() Service { return &FPM{Children: 8} }),
	"mariadb": configured(func() Service { return &MariaDB{Buffer: 64, Connections: 200, Durable: true} }),
}

// Kinds names the services there are, in order.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// New gives the service of a kind with its configuration; an empty one is what
// is right for a small guest.
func New(kind string, config json.RawMessage) (Service, error) {
	build, known := kinds[kind]
	if !known {
		return nil, fault.New(fault.Invalid, fault.Config, "there is no service %q: there are %s", kind, strings.Join(Kinds(), ", "))
	}
	s, err := build(config)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, fault.Config, "service %s", kind)
	}
	return s, nil
}

// bounded is a configuration that knows what it may be.
type bounded interface{ check() error }

func configured(empty func() Service) func(json.RawMessage) (Service, error) {
	return func(config json.RawMessage) (Service, error) {
		s := empty()
		if len(config) > 0 {
			d := json.NewDecoder(bytes.NewReader(config))
			d.DisallowUnknownFields()
			if err := d.Decode(s); err != nil {
				return nil, fmt.Errorf("cannot read the configuration: %w", err)
			}
			if _, err := d.Token(); !errors.Is(err, io.EOF) {
				return nil, errors.New("something follows the configuration")
			}
		}
		if b, ok := s.(bounded); ok {
			if err := b.check(); err != nil {
				return nil, err
			}
		}
		return s, nil
	}
}

// within refuses a number that no host of today has room for.
func within(what string, value, least, most int) error {
	if value < least || value > most {
		return fmt.Errorf("%s is %d: %d to %d are possible", what, value, least, most)
	}
	return nil
}

// install puts a service's settings in place, and the folders it wants.
func install(ctx context.Context, s *session.Session, of Service, folders ...string) error {
	if _, err := s.Run(ctx, append([]string{"mkdir", "-p", Root, logs, config}, folders...)...); err != nil {
		return fmt.Errorf("cannot set up %s: %w", of.Name(), err)
	}
	for path, content := range of.Settings() {
		if err := s.Put(ctx, path, 0o644, bytes.NewReader(content)); err != nil {
			return fmt.Errorf("cannot set up %s: %w", of.Name(), err)
		}
	}
	return nil
}

// daemon is a service with a file that holds the number of its process.
type daemon struct {
	name, pid string
	log       string // with a line for each request, for those that have one
	words     string // with what went wrong
}

// start runs the command that leaves the daemon behind.
func (d daemon) start(ctx context.Context, s *session.Session, argv ...string) error {
	if d.check(ctx, s) == nil {
		return fault.New(fault.WrongState, fault.Agent, "%s runs in %s already", d.name, s.Guest.Name)
	}
	// The log counts from here.
	if _, err := s.Run(ctx, "sh", "-c", `rm -f "$1"; : >"$2"; : >"$3"`, "sh", d.pid, d.log, d.words); err != nil {
		return fmt.Errorf("cannot start %s: %w", d.name, err)
	}
	// A command may return before what it leaves behind has written its number.
	_, err := s.Run(ctx, append([]string{"sh", "-c", `pid=$1; shift; "$@" || exit
		for i in $(seq 600); do kill -0 "$(cat "$pid" 2>/dev/null)" 2>/dev/null && exit; sleep 0.05; done
		echo "no process by $pid" >&2; exit 1`, "sh", d.pid}, argv...)...)
	if err != nil {
		return fmt.Errorf("cannot start %s: %w%s", d.name, err, d.lastWords(ctx, s))
	}
	return nil
}

// lastWords is the end of the log, for an error.
func (d daemon) lastWords(ctx context.Context, s *session.Session) string {
	end, err := s.Run(ctx, "tail", "-c", "1000", d.words)
	if err != nil || strings.TrimSpace(end) == "" {
		return ""
	}
	return "; its log ends: " + strings.TrimSpace(end)
}

func (d daemon) check(ctx context.Context, s *session.Session) error {
	r, err := s.Exec(ctx, session.Command{Argv: []string{"sh", "-c", `kill -0 "$(cat "$1")"`, "sh", d.pid}})
	if err != nil || r.Status == 0 {
		return err
	}
	return fault.New(fault.Failed, fault.Agent, "%s does not run in %s%s", d.name, s.Guest.Name, d.lastWords(ctx, s))
}

// stop asks the daemon to end, and waits until it has: by the file, and then by
// the process, which the kernel forgets when it is reaped.
func (d daemon) stop(ctx context.Context, s *session.Session) error {
	_, err := s.Run(ctx, "sh", "-c", `pid=$(cat "$1" 2>/dev/null) || exit 0; kill "$pid" 2>/dev/null
		while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done; rm -f "$1"`, "sh", d.pid)
	if err != nil {
		return fmt.Errorf("cannot stop %s: %w", d.name, err)
	}
	return nil
}
