package qemu

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprobe"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// probed are the capabilities of this host's QEMU, probed once for all tests.
var probed = sync.OnceValues(func() (*qemucaps.Capabilities, error) {
	path, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return nil, err
	}
	return qemuprobe.Probe(context.Background(), path, nil)
})

func liveCapabilities(t *testing.T) *qemucaps.Capabilities {
	t.Helper()
	if testing.Short() {
		t.Skip("runs QEMU")
	}
	c, err := probed()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("no qemu-system-x86_64 on this host")
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// QEMU accepts the arguments of every document that this host can run. It makes a
// machine with all the devices that were named, and executes the steps that follow
// its start.
func TestArguments_AcceptedByQEMU(t *testing.T) {
	c := liveCapabilities(t)
	for name, g := range goldens(t) {
		if strings.HasPrefix(g.want, "error: ") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			guest := startLive(t, g.doc, c)
			for _, step := range AfterStart(guest.plan) {
				if err := guest.Execute(t.Context(), step.Command, step.Args, nil); err != nil {
					t.Errorf("%s: %v", step.Command, err)
				}
			}
			guest.checkDevices(t)
		})
	}
}

// liveGuest is a QEMU that was started from a document and does not run yet.
type liveGuest struct {
	*qmp.Session
	plan *Plan
	dir  string
}

// startLive starts the QEMU of a document. It makes the document's files of /images
// in a directory of the test.
func startLive(t *testing.T, doc string, c *qemucaps.Capabilities) *liveGuest {
	t.Helper()
	dir, err := os.MkdirTemp("", "lodge-qemu-") //nolint:usetesting // its paths are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	def, err := understand(strings.ReplaceAll(doc, "/images/", dir+"/"), c)
	if err != nil {
		if fault.Is(err, fault.Unsupported) && def != nil && (def.Virt == "kvm" || showsBySpice(def) && !c.HasOption("spice", "")) {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	AssignAliases(def)
	skipWithout(t, def)
	p := testPlan(def, c, dir)
	furnish(t, p)
	return launchLive(t, p)
}

func showsBySpice(def *domain.Definition) bool {
	return slices.ContainsFunc(def.Devices.Graphics, func(g *device.Graphics) bool { return g.Type == "spice" })
}

// skipWithout skips a guest that needs something that this host does not have.
func skipWithout(t *testing.T, def *domain.Definition) {
	t.Helper()
	for _, d := range def.Devices.Disks {
		if d.Source != nil && d.Source.Block != "" {
			t.Skip("needs a block device of its own")
		}
	}
	for _, h := range def.Devices.HostDevices {
		if h.Type == "pci" {
			t.Skip("needs a PCI device to give away")
		}
	}
	if _, err := os.Stat("/dev/vhost-vsock"); def.Devices.VSock != nil && err != nil {
		t.Skip("needs /dev/vhost-vsock")
	}
	for _, tpm := range def.Devices.TPMs {
		if _, err := os.Stat(tpm.Path); tpm.Type == "passthrough" && err != nil {
			t.Skip("needs a TPM")
		}
	}
	if def.Backing.HasHugePages {
		if free, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"); err != nil || strings.TrimSpace(string(free)) == "0" {
			t.Skip("needs free huge pages")
		}
	}
	if def.OS.Loader.Path != "" {
		if _, err := os.Stat(def.OS.Loader.Path); err != nil {
			t.Skip("needs the firmware ", def.OS.Loader.Path)
		}
	}
}

// furnish makes the host objects that a guest's definition names: images, a kernel, taps,
// ports, a TPM.
func furnish(t *testing.T, p *Plan) {
	t.Helper()
	d := p.Definition
	for _, a := range p.Disks {
		makeImages(t, a)
	}
	for _, path := range []string{d.OS.Kernel, d.OS.Initrd, d.OS.DTB} {
		if path != "" {
			write(t, path, fakeKernel())
		}
	}
	if d.OS.NVRAM.Template != "" {
		if out, err := exec.CommandContext(t.Context(), "cp", d.OS.NVRAM.Template, d.OS.NVRAM.Path).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if d.SysInfo != nil {
		for _, e := range d.SysInfo.FWCfg {
			if e.File != "" {
				write(t, e.File, "file")
			}
		}
	}
	for _, a := range p.NICs {
		a.Tap = makeTap(t, len(a.Tap))
	}
	for _, g := range d.Devices.Graphics {
		if g.Port > 0 {
			g.Port = freePort(t)
		}
		if g.WebSocket > 0 {
			g.WebSocket = freePort(t)
		}
	}
	for alias := range p.TPMSockets {
		p.TPMSockets[alias] = startTPM(t, p.Dir)
	}
}

func makeImages(t *testing.T, a device.DiskAttachment) {
	t.Helper()
	for _, l := range a.Layers {
		out, err := exec.CommandContext(t.Context(), "qemu-img", "create", "-q", "-f", l.Format, "--", l.Path, "1440K").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// fakeKernel has the header of a Linux kernel and nothing else.
func fakeKernel() string {
	k := make([]byte, 16<<10)
	copy(k[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(k[0x206:], 0x204)
	k[0x211] = 1                                         // is loaded high
	binary.LittleEndian.PutUint32(k[0x22c:], 0x37ffffff) // where an initrd may end
	return string(k)
}

// makeTap makes an interface that is gone when its files are closed.
func makeTap(t *testing.T, queues int) []*os.File {
	t.Helper()
	var request struct {
		name  [unix.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	request.flags = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR
	if queues > 1 {
		request.flags |= unix.IFF_MULTI_QUEUE
	}
	var files []*os.File
	for range queues {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Skip("needs /dev/net/tun: ", err)
		}
		f := os.NewFile(uintptr(fd), "tap")
		t.Cleanup(func() { _ = f.Close() })
		// The kernel chooses the name for the first queue, and finds the others by it.
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&request))); e != 0 {
			t.Skip("may not make interfaces: ", e)
		}
		files = append(files, f)
	}
	return files
}

func freePort(t *testing.T) int {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func startTPM(t *testing.T, dir string) string {
	t.Helper()
	program, err := exec.LookPath("swtpm")
	if err != nil {
		t.Skip("no swtpm on this host")
	}
	state, socket := filepath.Join(dir, "tpm"), filepath.Join(dir, "tpm.sock")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "tpm.log")
	// With --daemon it returns when its socket is there, and ends with QEMU.
	c := exec.CommandContext(t.Context(), program, "socket", "--tpm2", "--daemon", "--terminate", "--tpmstate", "dir="+state, "--ctrl", "type=unixio,path="+socket, "--log", "file="+log)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return socket
}

func launchLive(t *testing.T, p *Plan) *liveGuest {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	path := filepath.Join(p.Dir, "monitor.sock")
	monitor, err := qemuprocess.ListenMonitor(path)
	if err != nil {
		t.Fatal(err)
	}
	defer monitor.Close()
	p.Monitor = monitor
	command, err := Arguments(p)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(p.Dir, "qemu.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	process, err := qemuprocess.Launch(ctx, qemuprocess.Spec{
		Binary: p.Capabilities.Binary.Path, Args: command.Args, Env: append(os.Environ(), command.Env...),
		Dir: p.Dir, Files: command.Files, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Kill()
		<-process.Exited()
	})
	go func() {
		select {
		case <-process.Exited():
			cancel()
		case <-ctx.Done():
		}
	}()
	_ = monitor.Close() // otherwise the end of QEMU would not be noticed
	said := func() string {
		text, _ := os.ReadFile(log.Name())
		return string(text)
	}
	s, err := qmp.Dial(ctx, path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("%v; QEMU said: %s", err, said())
	}
	t.Cleanup(s.Close)
	var status struct{ Status string }
	if err := s.Execute(ctx, "query-status", nil, &status); err != nil || status.Status != "prelaunch" {
		t.Fatalf("status %q, %v; QEMU said: %s", status.Status, err, said())
	}
	for line := range strings.Lines(said()) {
		if !strings.Contains(line, "TCG doesn't support") && !strings.Contains(line, "char device redirected") {
			t.Logf("QEMU said: %s", strings.TrimSpace(line))
		}
	}
	return &liveGuest{s, p, p.Dir}
}

// checkDevices finds every device of the arguments in the machine.
func (g *liveGuest) checkDevices(t *testing.T) {
	t.Helper()
	var list []struct{ Name string }
	if err := g.Execute(t.Context(), "qom-list", map[string]any{"path": "/machine/peripheral"}, &list); err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, o := range list {
		have[o.Name] = true
	}
	s := &g.plan.Definition.Devices
	for _, group := range [][]device.Device{asDevices(s.Disks), asDevices(s.NICs), asDevices(s.Channels), asDevices(s.Serials), asDevices(s.RNGs), asDevices(s.Redirs)} {
		for _, d := range group {
			if alias := d.Common().Alias; !have[alias] {
				t.Errorf("the machine has no %s", alias)
			}
		}
	}
}

func asDevices[D device.Device](group []D) []device.Device {
	all := make([]device.Device, len(group))
	for i, d := range group {
		all[i] = d
	}
	return all
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
