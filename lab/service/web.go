package service

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"path"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/session"
)

//go:embed files/nginx.conf
var nginxSettings string

//go:embed files/apache.conf
var apacheSettings string

//go:embed files/php-fpm.conf
var fpmSettings string

// socket is where PHP listens for nginx.
const socket = "/run/php/lab.sock"

// Nginx is nginx, which asks PHP-FPM for pages of PHP.
type Nginx struct {
	Connections int `json:"connections"` // of a worker; there is one for each processor
}

// Apache is Apache with PHP in its processes.
type Apache struct {
	Clients int `json:"clients"` // served at once, each by a process
}

// FPM is PHP by itself, for nginx.
type FPM struct {
	Children int `json:"children"`
}

func (n *Nginx) check() error  { return within("connections", n.Connections, 16, 1<<16) }
func (a *Apache) check() error { return within("clients", a.Clients, 1, 4096) }
func (f *FPM) check() error    { return within("children", f.Children, 1, 4096) }

func (n *Nginx) daemon() daemon {
	return daemon{name: "nginx", pid: "/run/nginx.pid", log: logs + "/nginx.log", words: logs + "/nginx-error.log"}
}

func (a *Apache) daemon() daemon {
	return daemon{name: "apache", pid: "/run/apache2.pid", log: logs + "/apache.log", words: logs + "/apache-error.log"}
}

func (f *FPM) daemon() daemon {
	return daemon{name: "php-fpm", pid: "/run/php-fpm.pid", log: logs + "/php-fpm.log", words: logs + "/php-fpm.log"}
}

// Name is "nginx".
func (n *Nginx) Name() string { return "nginx" }

// Name is "apache".
func (a *Apache) Name() string { return "apache" }

// Name is "php-fpm".
func (f *FPM) Name() string { return "php-fpm" }

// Settings is nginx's file.
func (n *Nginx) Settings() map[string][]byte {
	return map[string][]byte{config + "/nginx.conf": fill(nginxSettings, "CONNECTIONS", n.Connections)}
}

// Settings is Apache's file.
func (a *Apache) Settings() map[string][]byte {
	return map[string][]byte{config + "/apache.conf": fill(apacheSettings, "CLIENTS", a.Clients)}
}

// Settings is PHP-FPM's file.
func (f *FPM) Settings() map[string][]byte {
	return map[string][]byte{config + "/php-fpm.conf": fill(fpmSettings, "CHILDREN", f.Children)}
}

func fill(text, word string, number int) []byte {
	return []byte(strings.ReplaceAll(text, "{{"+word+"}}", strconv.Itoa(number)))
}

// Start makes nginx serve.
func (n *Nginx) Start(ctx context.Context, s *session.Session) error {
	if err := install(ctx, s, n, "/var/lib/nginx"); err != nil {
		return err
	}
	if err := Files(ctx, s); err != nil {
		return err
	}
	return n.daemon().start(ctx, s, "nginx", "-c", config+"/nginx.conf")
}

// Start makes Apache serve.
func (a *Apache) Start(ctx context.Context, s *session.Session) error {
	if err := install(ctx, s, a); err != nil {
		return err
	}
	if err := Files(ctx, s); err != nil {
		return err
	}
	return a.daemon().start(ctx, s, "apache2", "-f", config+"/apache.conf", "-k", "start")
}

// Start makes PHP-FPM listen.
func (f *FPM) Start(ctx context.Context, s *session.Session) error {
	if err := install(ctx, s, f, path.Dir(socket)); err != nil {
		return err
	}
	return f.daemon().start(ctx, s, "php-fpm8.2", "-D", "-y", config+"/php-fpm.conf")
}

// Check says why nginx does not serve.
func (n *Nginx) Check(ctx context.Context, s *session.Session) error { return n.daemon().check(ctx, s) }

// Check says why Apache does not serve.
func (a *Apache) Check(ctx context.Context, s *session.Session) error {
	return a.daemon().check(ctx, s)
}

// Check says why PHP-FPM does not serve.
func (f *FPM) Check(ctx context.Context, s *session.Session) error { return f.daemon().check(ctx, s) }

// Stop lets nginx end.
func (n *Nginx) Stop(ctx context.Context, s *session.Session) error {
	return n.daemon().stop(ctx, s)
}

// Stop lets Apache end.
func (a *Apache) Stop(ctx context.Context, s *session.Session) error {
	return a.daemon().stop(ctx, s)
}

// Stop lets PHP-FPM end.
func (f *FPM) Stop(ctx context.Context, s *session.Session) error {
	return f.daemon().stop(ctx, s)
}

// Counted reads nginx's log.
func (n *Nginx) Counted(ctx context.Context, s *session.Session) (map[string]int64, error) {
	return counted(ctx, s, n.daemon().log)
}

// Counted reads Apache's log.
func (a *Apache) Counted(ctx context.Context, s *session.Session) (map[string]int64, error) {
	return counted(ctx, s, a.daemon().log)
}

// Counted is of nothing: nginx counts what it asks PHP for.
func (f *FPM) Counted(context.Context, *session.Session) (map[string]int64, error) {
	return map[string]int64{}, nil
}

// maxPaths bounds the different lines of a log that are told apart; what is
// beyond counts in the sums only.
const maxPaths = 2000

// counted adds up a log of lines "STATUS METHOD PATH", without queries: the sums
// are "requests" (answered, with a status below 400) and "refused"; the rest is
// by line.
func counted(ctx context.Context, s *session.Session, log string) (map[string]int64, error) {
	text, err := s.Run(ctx, "awk", "-v", "most="+strconv.Itoa(maxPaths), `
		NF == 3 { if ($1 < 400) good++; else bad++
			if (($0 in seen) || kinds < most) { if (!($0 in seen)) kinds++; seen[$0]++ } }
		END { print good+0, "requests"; print bad+0, "refused"; for (l in seen) print seen[l], l }`, log)
	if err != nil {
		return nil, fmt.Errorf("cannot count what was served: %w", err)
	}
	sums := map[string]int64{}
	for line := range strings.Lines(text) {
		count, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		if sums[what], err = strconv.ParseInt(count, 10, 64); err != nil {
			return nil, fault.Wrap(err, fault.Failed, fault.Agent, "cannot count what was served: %.100q", line)
		}
	}
	return sums, nil
}

// Files puts what every web server of the lab serves: /1k, /10k, /100k and /1m of
// those sizes, and /hello.php. The content is each guest's own, or hosts that
// merge equal pages would look better than they are.
func Files(ctx context.Context, s *session.Session) error {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(s.Guest.Name + s.Guest.Boot))
	draw := rand.New(rand.NewPCG(sum.Sum64(), 1))
	for _, f := range []struct {
		name string
		size int
	}{{"1k", 1 << 10}, {"10k", 10 << 10}, {"100k", 100 << 10}, {"1m", 1 << 20}} {
		content := make([]byte, f.size)
		for i := range content {
			content[i] = "abcdefghijklmnopqrstuvwxyz012345"[draw.IntN(32)]
		}
		if err := s.Put(ctx, Root+"/"+f.name, 0o644, bytes.NewReader(content)); err != nil {
			return err
		}
	}
	return s.Put(ctx, Root+"/hello.php", 0o644, strings.NewReader(hello))
}

// hello is a page that takes some work and says that all of it was done.
const hello = `<?php
$sum = 0;
for ($i = 1; $i <= 1000; $i++) { $sum += $i * $i; }
echo "hello ", $sum, "\n";
`
