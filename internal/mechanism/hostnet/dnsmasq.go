package hostnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// DnsmasqFiles are the files of one dnsmasq. All live in one folder and begin
// with one name; the process is known by the path of its Config.
type DnsmasqFiles struct {
	Config string // read once, when it starts
	Hosts  string // fixed DHCP hosts, read again on Reload
	Names  string // additional DNS hosts, read again on Reload
	Leases string // written by dnsmasq
	PID    string // written by dnsmasq
}

// DnsmasqIn names the files of the dnsmasq called name. Files that must outlive a
// reboot lie in data, the others in run.
func DnsmasqIn(data, run, name string) DnsmasqFiles {
	return DnsmasqFiles{
		Config: filepath.Join(run, name+".dnsmasq.conf"),
		Hosts:  filepath.Join(run, name+".dnsmasq.hosts"),
		Names:  filepath.Join(run, name+".dnsmasq.names"),
		PID:    filepath.Join(run, name+".dnsmasq.pid"),
		Leases: filepath.Join(data, name+".leases"),
	}
}

// DnsmasqContent holds the texts of a dnsmasq's files. Config has no options that
// name files, user and process: these are added when it is written.
type DnsmasqContent struct {
	Config, Hosts, Names string
}

// maxLine is the length up to which dnsmasq reads a line, in bytes with the newline. It reads the rest as another
// line, which could be any option: a program that dnsmasq runs as root, or a file that it writes.
const maxLine = 1024

// Check refuses lines that dnsmasq would read as several. Lines of Names may be long: dnsmasq reads them word by word.
func (c DnsmasqContent) Check() error {
	for _, text := range []string{c.Config, c.Hosts} {
		for line := range strings.Lines(text) {
			if len(line) > maxLine {
				return fault.New(fault.Invalid, fault.Config, "a dnsmasq configuration line can have %d bytes, and %.60q has %d; shorten it", maxLine-1, strings.TrimSpace(line), len(line)-1)
			}
		}
	}
	return nil
}

// Dnsmasq is one running dnsmasq. It is no child of the daemon and outlives it.
// Its methods are for one caller at a time, Ended for any.
type Dnsmasq struct {
	files DnsmasqFiles
	proc  *handle
}

// How long dnsmasq may take: to read its configuration and bind its sockets,
// and to end when asked.
const (
	dnsmasqStart = 15 * time.Second
	dnsmasqGrace = 2 * time.Second
)

// StartDnsmasq writes the files and starts a dnsmasq. It returns once dnsmasq
// listens; an error holds dnsmasq's own message.
func StartDnsmasq(ctx context.Context, f DnsmasqFiles, c DnsmasqContent) (*Dnsmasq, error) {
	program, err := exec.LookPath("dnsmasq")
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot serve DHCP and DNS without dnsmasq (install the package dnsmasq-base)")
	}
	c.Config = f.options() + c.Config
	if err := errors.Join(c.Check(), f.endStrays(ctx)); err != nil {
		return nil, err
	}
	if err := writeAll(map[string]string{f.Config: c.Config, f.Hosts: c.Hosts, f.Names: c.Names}); err != nil {
		return nil, err
	}
	if err := failpoint.Err("dnsmasq.run"); err != nil {
		return nil, err
	}
	if err := runDnsmasq(ctx, program, f.Config); err != nil {
		return nil, err
	}
	failpoint.Reach("dnsmasq.running")
	d, err := f.hold(nil)
	return d, fault.Wrap(err, fault.Failed, fault.Host, "dnsmasq exited immediately")
}

// dnsmasqCapabilities are those that dnsmasq needs until it changes to its own user. After that it keeps only the
// network ones: the files that belong to that user are opened before.
var dnsmasqCapabilities = []uintptr{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_SETGID, unix.CAP_SETUID,
	unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE,
}

// configArgument, followed by the path of its Config, is an argument of each process of a dnsmasq.
const configArgument = "--conf-file="

// strayLooks bounds how often endStrays looks again: a process that it ends may have started another.
const strayLooks = 10

// endStrays ends a dnsmasq that has no PID file yet: the daemon that started it ended while dnsmasq was moving to the
// background. Usually there is no configuration file either, and no process is searched for.
func (f DnsmasqFiles) endStrays(ctx context.Context) error {
	if _, err := os.Lstat(f.Config); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for range strayLooks {
		found, err := kernel.Root{}.RunWith("dnsmasq", configArgument+f.Config)
		if err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot look for an earlier dnsmasq")
		}
		// A daemon in a container may have its files by the same paths.
		found = slices.DeleteFunc(found, func(pid int) bool { return !kernel.Root{}.SharesNetwork(pid) })
		if len(found) == 0 {
			return nil
		}
		for _, pid := range found {
			h, err := hold(pid, f.Config, nil)
			if err != nil {
				continue // it has ended
			}
			err = h.end(ctx, dnsmasqGrace)
			h.release()
			if err != nil {
				return err
			}
		}
	}
	return fault.New(fault.Failed, fault.Host, "processes with the argument %s%s do not end", configArgument, f.Config)
}

// runDnsmasq runs the program until it has put itself in the background.
func runDnsmasq(ctx context.Context, program, config string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, dnsmasqStart,
		fault.New(fault.Timeout, fault.Host, "dnsmasq is not ready after %v", dnsmasqStart))
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, program, configArgument+config)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = time.Second
	err := kernel.RunConfined(dnsmasqCapabilities, cmd.Run)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if text := strings.TrimSpace(said.String()); err != nil && text != "" {
		return fault.New(fault.Failed, fault.Host, "cannot start dnsmasq: %.500s", text)
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot start dnsmasq")
}

// AdoptDnsmasq returns the running dnsmasq that an earlier daemon started with
// these files. If p is given, it must be the same process. An error means that the
// process has ended, and that a new one is needed.
func AdoptDnsmasq(f DnsmasqFiles, p *Process) (*Dnsmasq, error) { return f.hold(p) }

func (f DnsmasqFiles) hold(want *Process) (*Dnsmasq, error) {
	text, err := os.ReadFile(f.PID)
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || want != nil && want.PID != pid {
		return nil, fmt.Errorf("the file %s does not name the dnsmasq that was started", f.PID)
	}
	h, err := hold(pid, f.Config, want)
	if err != nil {
		return nil, err
	}
	return &Dnsmasq{files: f, proc: h}, nil
}

// options are the configuration lines for the files and the user of a dnsmasq.
func (f DnsmasqFiles) options() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pid-file=%s\ndhcp-leasefile=%s\ndhcp-hostsfile=%s\naddn-hosts=%s\n", f.PID, f.Leases, f.Hosts, f.Names)
	fmt.Fprintf(&b, "user=%s\n", f.user())
	return b.String()
}

// user is the user that dnsmasq changes to once its sockets are bound. It is dnsmasq's own user if that user can
// reach the files that are read again on Reload, otherwise root: a private data folder must not make a reload lose
// all hosts.
func (f DnsmasqFiles) user() string {
	const own = "dnsmasq"
	if _, err := user.Lookup(own); err != nil {
		return "root"
	}
	for dir := filepath.Dir(f.Hosts); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return "root"
		}
		if dir == filepath.Dir(dir) {
			return own
		}
	}
}

// Process names the running process for a record.
func (d *Dnsmasq) Process() Process { return d.proc.Process }

// Reload hands new hosts to a running dnsmasq. A change of Config needs a new
// process.
func (d *Dnsmasq) Reload(c DnsmasqContent) error {
	if err := c.Check(); err != nil {
		return err
	}
	if err := writeAll(map[string]string{d.files.Hosts: c.Hosts, d.files.Names: c.Names}); err != nil {
		return err
	}
	failpoint.Reach("dnsmasq.reload")
	return fault.Wrap(d.proc.signal(syscall.SIGHUP), fault.Failed, fault.Host, "cannot make dnsmasq reload its hosts")
}

// Has reports whether a dnsmasq was started with that configuration, and whether
// its hosts are those.
func (d *Dnsmasq) Has(c DnsmasqContent) (config, hosts bool) {
	is := func(path, text string) bool {
		there, err := os.ReadFile(path)
		return err == nil && string(there) == text
	}
	f := d.files
	return is(f.Config, f.options()+c.Config), is(f.Hosts, c.Hosts) && is(f.Names, c.Names)
}

// Ended is closed when the process has ended, on its own or through Stop.
func (d *Dnsmasq) Ended() <-chan struct{} { return d.proc.gone }

// Stop ends the process, within seconds even when it hangs, and removes its
// files except the leases.
func (d *Dnsmasq) Stop(ctx context.Context) error {
	if err := d.proc.end(ctx, dnsmasqGrace); err != nil {
		return err
	}
	d.Release()
	failpoint.Reach("dnsmasq.stopped")
	return d.files.remove()
}

// Release lets go of the process without ending it.
func (d *Dnsmasq) Release() { d.proc.release() }

// Clear ends a leftover dnsmasq that has no Dnsmasq value, and removes its files, except the leases.
func (f DnsmasqFiles) Clear(ctx context.Context) error {
	if err := f.endStrays(ctx); err != nil {
		return err
	}
	return f.remove()
}

// remove removes the files of a dnsmasq that has ended, except the leases.
func (f DnsmasqFiles) remove() error {
	var errs []error
	for _, path := range []string{f.Config, f.Hosts, f.Names, f.PID} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return fault.Wrap(errors.Join(errs...), fault.Failed, fault.Host, "cannot remove the files of dnsmasq")
}

// writeAll replaces each file as a whole: a reader sees the old text or the new.
func writeAll(texts map[string]string) error {
	for path, text := range texts {
		err := os.WriteFile(path+".new", []byte(text), 0o644)
		if err == nil {
			err = os.Rename(path+".new", path)
		}
		if err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot write the configuration of dnsmasq")
		}
	}
	return nil
}
