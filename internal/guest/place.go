package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

func (r *Registry) logDir() string   { return filepath.Join(r.DataDir, "log") }
func (r *Registry) saveDir() string  { return filepath.Join(r.DataDir, "save") }
func (r *Registry) coreDir() string  { return filepath.Join(r.DataDir, "core") }
func (r *Registry) nvramDir() string { return filepath.Join(r.DataDir, "nvram") }

// demand returns what a guest takes of the host's memory. Huge pages are counted on the host cell that they
// will come from, if the definition names one.
func demand(def *domain.Definition) topology.Reservation {
	whole := ofPages(def, def.Memory-min(def.ModuleMemory(), def.Memory), hugePageSize(def))
	for _, m := range def.Devices.Memories {
		whole = whole.Plus(moduleDemand(def, m))
	}
	return whole
}

// hugePageSize returns the size in bytes of the guest's own huge pages. 0: it has base pages.
func hugePageSize(def *domain.Definition) uint64 {
	switch pages := def.Backing.HugePages; {
	case !def.Backing.HasHugePages:
		return 0
	case len(pages) > 0 && pages[0].Size != 0:
		return pages[0].Size
	}
	return 2 << 20
}

// ofPages returns the reservation of memory in pages of a size; 0: base pages.
func ofPages(def *domain.Definition, memory, size uint64) topology.Reservation {
	if size == 0 {
		return topology.Reservation{Memory: memory}
	}
	cell := topology.AnyCell
	if def.NUMA.Mode == "strict" && def.NUMA.Nodes.Len() == 1 {
		cell = def.NUMA.Nodes.Max()
	}
	return topology.Reservation{Pages: []topology.PageDemand{{Size: size, Cell: cell, Count: (memory + size - 1) / size}}}
}

// findDisk finds the images behind a disk, with their real paths and declared formats. present is false for
// an empty drive. The caller must close the attachment.
func (r *Registry) findDisk(ctx context.Context, sc scope.Scope, run *run, d *device.Disk) (a device.DiskAttachment, present bool, err error) {
	if d.Source == nil {
		return a, false, nil
	}
	if err := r.checkSourceLabel(d); err != nil { // also for a device that is attached
		return a, false, err
	}
	path, format, err := r.source(d)
	if err != nil {
		return a, false, absent(err)
	}
	chain, err := image.OpenChain(ctx, sc, path, format)
	if err != nil {
		return a, false, absent(fmt.Errorf("cannot use the source of disk %s: %w", d.Target, err))
	}
	defer chain.Close()
	if err := checkEncrypted(d, chain[0].Encrypted); err != nil {
		return a, false, err
	}
	if err := r.checkAlone(ctx, run, d, chain[0]); err != nil {
		return a, false, fmt.Errorf("cannot use the source of disk %s: %w", d.Target, err)
	}
	if run.User != nil {
		if a, err = openLayers(ctx, chain, d.ReadOnly); err != nil {
			return a, false, fmt.Errorf("cannot use the source of disk %s: %w", d.Target, err)
		}
	}
	a.Size = chain[0].Virtual
	if !d.ReadOnly { // after it is open for writing, so that a process that removes the note sees this
		if err := fsguard.Run(ctx, path, chain[0].RecordBacking); err != nil {
			a.Close()
			return device.DiskAttachment{}, false, fmt.Errorf("cannot use the source of disk %s: %w", d.Target, err)
		}
	}
	if run.User != nil {
		return a, true, nil
	}
	for _, l := range chain {
		a.Layers = append(a.Layers, device.Layer{Path: l.Path, Format: string(l.Format), Block: l.Device})
	}
	return a, true, nil
}

// forked is how long a new child of the daemon may hold the daemon's open files: until it executes its
// program.
const forked = 128 * time.Millisecond

// checkAlone refuses a disk that another process has open for writing: the guest's data would be lost or
// read. The guest's own QEMU may have it open: a paused QEMU closes a detached disk only when the guest
// runs.
func (r *Registry) checkAlone(ctx context.Context, run *run, d *device.Disk, top image.Layer) error {
	if d.ReadOnly || d.Shareable {
		return nil
	}
	look := func() error { return image.CheckNoWriter(top.File) }
	err := fsguard.Run(ctx, top.Path, look)
	for pause := time.Millisecond; fault.Is(err, fault.Busy) && pause < forked; pause *= 2 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
		err = fsguard.Run(ctx, top.Path, look)
	}
	if run.PID == 0 || !fault.Is(err, fault.Busy) {
		return err
	}
	if at, _, e := whereIs(top.File); e == nil && r.Kernel.HasOpen(run.PID, at) {
		return nil
	}
	return err
}

// takeBackDisks checks the headers of a guest's writable images after its QEMU has ended. A backing file
// name that QEMU was not given is not followed.
func (r *Registry) takeBackDisks(ctx context.Context, run *run) error {
	ctx, stop := context.WithTimeout(ctx, closeTime)
	defer stop()
	for _, d := range run.last().Devices.Disks {
		if d.Source == nil || d.ReadOnly {
			continue
		}
		path, format, err := r.source(d)
		if err != nil { // if its pool is gone, the note stays
			continue
		}
		changed, err := fsguard.Do(ctx, path, func() (bool, error) { return image.RemoveRecord(path, format) }, nil)
		if changed && run.PID != 0 {
			run.log.Error("backing file name in an image was changed while QEMU ran; the new name is not followed", "path", path)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			run.log.Warn("cannot check an image after its guest has ended", "path", path, "error", err)
		}
	}
	return nil
}

// source returns the path behind a disk and its declared format. A format is never guessed: what a guest
// writes to a raw disk must not decide how the disk is read.
func (r *Registry) source(d *device.Disk) (path string, format image.Format, err error) {
	path, format = d.Source.Path(), image.Format(d.Format)
	if v := d.Source.Volume; v != nil {
		if path, format, err = r.Pools.Resolve(v.Pool, v.Volume, format); err != nil {
			return "", "", fmt.Errorf("cannot find the source of disk %s: %w", d.Target, err)
		}
	}
	format = cmp.Or(format, image.Raw)
	if format == image.Raw && d.Encryption != nil {
		format = image.LUKS
	}
	return path, format, nil
}

// attachNIC gives a NIC its interface on the host. It returns nil for a NIC that QEMU serves alone.
func (r *Registry) attachNIC(ctx context.Context, sc scope.Scope, def *domain.Definition, n *device.NIC, note func(ifName string) error) (*device.NICAttachment, func(context.Context) error, error) {
	if n.Type == "user" {
		return nil, nil, nil
	}
	if def.Virt != "kvm" {
		// vhost speeds up KVM guests only. An emulated guest gains nothing, and libvirt gives it none.
		plain := *n
		plain.Backend = "qemu"
		n = &plain
	}
	a, release, err := r.Networks.AttachNIC(ctx, sc, n, def.Name, note)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot connect interface %s: %w", n.MAC, err)
	}
	return a, func(context.Context) error { release(); return nil }, nil
}

// readoptNIC finds the interface of an adopted guest.
func (r *Registry) readoptNIC(run *run, held heldNIC) (func(context.Context) error, error) {
	n, ok := run.def.Devices.ByAlias(held.Alias).(*device.NIC)
	if !ok {
		return nil, fault.New(fault.NotFound, fault.Device, "the guest has no interface %s", held.Alias)
	}
	return r.readopt(run, n, &held)
}

func (r *Registry) readopt(run *run, n *device.NIC, held *heldNIC) (func(context.Context) error, error) {
	if held.User != nil {
		return r.endUserNetwork(*held.User, run.UUID, run.log), nil
	}
	release, err := r.Networks.AdoptNIC(n, held.IfName, run.Name)
	if err != nil {
		return nil, err
	}
	return func(context.Context) error { release(); return nil }, nil
}

// reholdRest pushes the releases of an adopted guest's display ports, relays, control group and TPM.
func (r *Registry) reholdRest(run *run) {
	for _, g := range run.def.Devices.Graphics {
		if g.Port > 0 {
			r.ports.hold(g.Port)
			run.hold("display port", func(context.Context) error { r.ports.giveBack(g.Port); return nil })
		}
	}
	r.relayAgain(run)
	group := r.Cgroups.Guest(run.UUID)
	run.hold("disks", func(ctx context.Context) error { return r.takeBackDisks(ctx, run) })
	run.hold("sockets", func(ctx context.Context) error { return removeSockets(ctx, run) })
	run.hold("control group", group.Clear)
	r.holdTPMs(run)
}

// openLog opens the guest's log and writes the command line with its purpose, so that an administrator can
// run it by hand. A full or read-only disk does not keep the guest from starting: its output is lost then.
func (r *Registry) openLog(name, purpose, emulator string, c *qemu.Command) (*os.File, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", logTime(time.Now()), purpose)
	for _, e := range c.Env {
		variable, value, _ := strings.Cut(e, "=")
		fmt.Fprintf(&b, "%s=%s \\\n", variable, fault.Word(value))
	}
	b.WriteString(emulator)
	for _, a := range c.Args {
		fmt.Fprintf(&b, " \\\n%s", fault.Word(a))
	}
	b.WriteByte('\n')
	f, err := r.appendLog(name)
	if err == nil {
		_, err = f.WriteString(b.String())
	}
	if err != nil {
		r.log.Warn("cannot write the guest's log; guest starts without it", "domain", name, "error", err)
	}
	if f == nil {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	return f, nil
}

// appendLog opens the guest's log for appending.
func (r *Registry) appendLog(name string) (*os.File, error) {
	path := filepath.Join(r.logDir(), fileStem(name)+".log")
	if err := rotate(path); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot rotate the log of domain %q", name)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return f, fault.Wrap(err, fault.Failed, fault.Host, "cannot open the log of domain %q", name)
}

func logTime(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05.000+0000") }

// maxLog is the size in bytes at which a guest's log is rotated; one older log is kept. QEMU writes the
// log, and the guest can make it write. It must not fill the host's disk.
const maxLog = 4 << 20

// rotate renames a log that has reached maxLog.
func rotate(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() < maxLog {
		return nil
	}
	return os.Rename(path, path+".0")
}

// lastWords returns the end of QEMU's output, for an error that says why QEMU ended.
func (r *Registry) lastWords(name string, p *qemuprocess.Process) string {
	words := readTail(filepath.Join(r.logDir(), fileStem(name)+".log"))
	if i := strings.LastIndex(words, ": starting\n"); i >= 0 {
		words = afterCommand(words[i:])
	}
	words = strings.TrimSpace(withoutNotices(words))
	if words == "" {
		return "it wrote nothing (" + p.Exit().String() + ")"
	}
	return words
}

// withoutNotices removes QEMU's line for each terminal that it opens: such a line explains no end.
func withoutNotices(text string) string {
	var rest strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "char device redirected to ") {
			rest.WriteString(line)
		}
	}
	return rest.String()
}

// afterCommand skips the logged command line: its lines end in a backslash.
func afterCommand(text string) string {
	_, rest, _ := strings.Cut(text, "\n")
	for {
		line, after, found := strings.Cut(rest, "\n")
		if !found {
			return ""
		}
		rest = after
		if !strings.HasSuffix(line, "\\") {
			return rest
		}
	}
}

// tailSize bounds, in bytes, how much of a log is read for an error.
const tailSize = 64 << 10

// readTail returns the end of a log, at most tailSize bytes. It is empty if the log cannot be read.
func readTail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	b := make([]byte, tailSize)
	n, err := f.ReadAt(b, max(0, info.Size()-tailSize))
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return string(b[:n])
}
