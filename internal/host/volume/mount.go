package volume

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
)

// Bounds of the tools that mount and make file systems.
const (
	mountTime = answerTime
	mkfsTime  = 10 * time.Minute
	maxSaid   = 64 << 10 // bytes kept of what a tool complains
	maxTold   = 8 << 20  // bytes kept of what it prints
)

// attach makes a pool's storage appear at its target: nothing for a directory,
// a mount for file systems. What is mounted there already is taken as it is, if
// it is the same. Fresh says that it was not there before.
func (p *Pool) attach(ctx context.Context, d *definition) (fresh bool, err error) {
	steady := context.WithoutCancel(ctx) // a tool that is ended half way leaves half a change
	if c := d.carver(); c != nil {
		return c.attach(steady)
	}
	if d.kind == Dir {
		return false, nil
	}
	there, err := mountedAt(d.target)
	switch {
	case err != nil:
		return false, err
	case there.Source != "" && d.isSource(ctx, there.Source):
		return false, nil
	case there.Source != "":
		return false, fault.New(fault.WrongState, fault.Pool, "%s is mounted at %s, and not %s; unmount it first", there.Source, d.target, d.source())
	}
	at, err := ask(ctx, p.lane, answerTime, func() (string, error) { return realDir(d.target) }, nil)
	if err == nil && d.kind == FS {
		err = fsguard.Run(ctx, d.device, func() error { return unlentAt(d.device) })
	}
	if err == nil {
		err = mountOn(steady, d, at)
	}
	return err == nil, err
}

// unlentAt is unlent of a path. What is wrong with that, mount says.
func unlentAt(path string) error {
	f, err := image.Open(path)
	if err != nil {
		return nil //nolint:nilerr // as said
	}
	defer f.Close()
	return unlent(f)
}

// detach unmounts what is at a pool's target, whoever has mounted it.
func (p *Pool) detach(ctx context.Context, d *definition) error {
	if c := d.carver(); c != nil {
		return c.detach(context.WithoutCancel(ctx))
	}
	if d.kind == Dir {
		return nil
	}
	there, err := mountedAt(d.target)
	if err != nil || there.Source == "" {
		return err
	}
	_, err = run(context.WithoutCancel(ctx), mountTime, "umount", there.Point)
	return fault.Wrap(err, fault.Of(err), fault.Pool, "cannot unmount pool %q", p.name)
}

// detachBestEffort undoes a fresh attach after another failure, which is the one to tell.
func (p *Pool) detachBestEffort(d *definition) {
	ctx, cancel := context.WithTimeout(p.pools.life, mountTime)
	defer cancel()
	if err := p.detach(ctx, d); err != nil {
		p.pools.log.Warn("cannot detach", "pool", p.name, "error", err)
	}
}

// isSource says whether what the kernel calls a mount's source is the pool's.
func (d *definition) isSource(ctx context.Context, mounted string) bool {
	if mounted == d.source() {
		return true
	}
	if d.kind != FS {
		return strings.TrimSuffix(mounted, "/") == strings.TrimSuffix(d.source(), "/")
	}
	ours, err := realDevice(ctx, d.device)
	if err != nil {
		return false
	}
	theirs, err := realDevice(ctx, mounted)
	return err == nil && ours == theirs
}

// mountOn mounts a pool's file system on its target, of which at is the real path: mount
// itself follows everybody's links.
func mountOn(ctx context.Context, d *definition, at string) error {
	// Guests' images are data: nothing in a pool is a program or a device.
	options := "nodev,nosuid,noexec"
	if d.protocol != "" {
		options += ",nfsvers=" + d.protocol
	}
	args := []string{"-o", options}
	format := d.format
	if d.kind == NetFS && format == "auto" {
		format = "nfs"
	}
	if format != "auto" {
		args = append(args, "-t", format)
	}
	if d.kind == NetFS {
		if err := needTool("mount."+format, helperPackages[format]); err != nil {
			return fault.Wrap(err, fault.Unsupported, fault.Config, "cannot mount %s", d.source())
		}
	}
	_, err := run(ctx, mountTime, "mount", append(args, d.source(), at)...)
	return fault.Wrap(err, fault.Of(err), fault.Pool, "cannot mount %s at %s", d.source(), d.target)
}

// helperPackages are where mount finds its helpers for network file systems.
var helperPackages = map[string]string{"nfs": "nfs-common", "cifs": "cifs-utils", "glusterfs": "glusterfs-client"}

// mountedAt gives what is mounted on a directory, topmost; a mount without a source is none.
// It asks the kernel's list, which has no links, and not what is mounted, which may not answer.
func mountedAt(target string) (fsguard.Mount, error) {
	for range safepath.MaxLinks {
		m, there, err := fsguard.At(target)
		if err != nil || there {
			return m, err
		}
		next, err := fsguard.Do(context.Background(), filepath.Dir(target), func() (string, error) { return behind(target), nil }, nil)
		if err != nil || next == target {
			return fsguard.Mount{}, err
		}
		target = next
	}
	return fsguard.Mount{}, nil
}

// behind gives a path of which the folder has no links, or where the link there leads; what
// it is given where there are none.
func behind(path string) string {
	folder, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return path // which is not there
	}
	if real := filepath.Join(folder, filepath.Base(path)); real != path {
		return real
	}
	to, err := os.Readlink(path)
	switch {
	case err != nil:
		return path
	case filepath.IsAbs(to):
		return filepath.Clean(to)
	}
	return filepath.Join(folder, to)
}

// mounted refuses a file system pool whose file system somebody has unmounted: what
// is below its target then is another one's.
func (d *definition) mounted() error {
	if d.kind != FS && d.kind != NetFS {
		return nil
	}
	there, err := mountedAt(d.target)
	if err == nil && there.Source == "" {
		return fault.New(fault.WrongState, fault.Pool, "%s is not mounted at %s any more; stop the pool and start it", d.source(), d.target)
	}
	return err
}

// toolPath is where the host's tools are, whatever the daemon's own PATH.
// Tests put tools of their own in front.
var toolPath = "/usr/sbin:/usr/bin:/sbin:/bin"

// needTool refuses by name what a missing program would have to do.
func needTool(name, pack string) error {
	for dir := range strings.SplitSeq(toolPath, ":") {
		if unix.Access(filepath.Join(dir, name), unix.X_OK) == nil {
			return nil
		}
	}
	if pack == "" {
		return fault.New(fault.Unsupported, fault.Config, "%s is not installed", name)
	}
	return fault.New(fault.Unsupported, fault.Config, "%s is not installed; install the package %s", name, pack)
}

// run runs a tool to its end and gives what it printed.
func run(ctx context.Context, limit time.Duration, name string, args ...string) (string, error) {
	return runOn(ctx, limit, "", name, args...)
}

// runOn is run of a tool that reads.
func runOn(ctx context.Context, limit time.Duration, input, name string, args ...string) (string, error) {
	if err := needTool(name, ""); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fault.New(fault.Timeout, fault.Pool, "%s did not end within %v", name, limit))
	defer cancel()
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, "/usr/bin/env", append([]string{"PATH=" + toolPath, name}, args...)...)
	cmd.Env = []string{"LC_ALL=C"}
	cmd.Dir = "/"
	if input != "" {
		cmd.Stdin = strings.NewReader(input)
	}
	cmd.Stdout, cmd.Stderr = &bounded{to: &out, most: maxTold}, &bounded{to: &complaint, most: maxSaid}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	// A process that waits for a file system may outlast even its killing.
	lasting, letGo := context.WithTimeout(context.WithoutCancel(ctx), limit+closeTime)
	defer letGo()
	err := fsguard.RunLong(lasting, name, cmd.Run)
	switch {
	case err == nil:
		return out.String(), nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	}
	text := strings.Join(strings.Fields(complaint.String()), " ")
	if text == "" {
		text = err.Error()
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = &exitError{code: exit.ExitCode(), text: text}
	}
	return out.String(), fault.Wrap(err, fault.Failed, fault.Pool, "%s failed", name)
}

// exitError is how a tool failed: its exit code and what it complained.
type exitError struct {
	code int
	text string
}

func (e *exitError) Error() string { return e.text }

// bounded keeps the first bytes of what a tool says.
type bounded struct {
	to   *bytes.Buffer
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	b.to.Write(p[:min(len(p), b.most-b.to.Len())])
	return len(p), nil
}
