package libvirt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/daemon"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const (
	mineUUID   = "00000000-0000-4000-8000-000000000001"
	theirUUID  = "77777777-7777-4777-8777-777777777777"
	poolUUID   = "77777777-7777-4777-8777-777777777778"
	secretUUID = "77777777-7777-4777-8777-777777777779"

	minePoolUUID = "00000000-0000-4000-8000-000000000003"
	// hidden is part of all objects of others, and of nothing that the client sends.
	hidden = "hidden77"

	mineXML = `<domain type='qemu'><name>mine</name><uuid>` + mineUUID + `</uuid><memory unit='MiB'>16</memory><vcpu current='1'>2</vcpu>` +
		`<os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os><devices><disk type='file' device='cdrom'><target dev='sda' bus='sata'/></disk>` +
		`<serial type='pty'/><graphics type='vnc'/></devices></domain>`
	theirXML = `<domain type='qemu'><name>theirs</name><uuid>` + theirUUID + `</uuid><title>%s</title><description>` + hidden + `</description>` +
		`<memory unit='MiB'>16</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os><devices>` +
		`<disk type='file'><driver name='qemu' type='raw'/><source file='/` + hidden + `/a.img'/><target dev='vda' bus='virtio'/></disk>` +
		`<interface type='network'><mac address='52:54:00:77:77:77'/><source network='` + hidden + `'/></interface></devices></domain>`
	otherXML  = `<domain type='qemu'><name>` + hidden + `</name><memory unit='MiB'>16</memory><os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os></domain>`
	minePool  = `<pool type='dir'><name>mine</name><uuid>` + minePoolUUID + `</uuid><target><path>%s</path></target></pool>`
	poolXML   = `<pool type='dir'><name>theirs</name><uuid>` + poolUUID + `</uuid><target><path>%s</path></target></pool>`
	secretXML = `<secret><uuid>` + secretUUID + `</uuid><description>` + hidden + `</description><usage type='volume'><volume>/` + hidden + `</volume></usage></secret>`
)

// restrictedServer is a server with a client that the rules restrict to its own guests, and with
// objects of others.
type restrictedServer struct {
	dir          string // "mine" in it is the client's, "theirs" another's
	server       *rpc.Server
	backends     rpc.Backends
	mine, theirs string // as they were made
	changes      int    // of their guest
	written      map[*domain.Definition]string
	bugs         *bugLog
}

// bugLog keeps the log lines about panics in handlers and guest loops.
type bugLog struct {
	slog.Handler
	mu   sync.Mutex
	text string
}

func (*bugLog) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelError }

func (b *bugLog) WithAttrs([]slog.Attr) slog.Handler { return b }

func (b *bugLog) Handle(_ context.Context, r slog.Record) error {
	if !strings.HasPrefix(r.Message, "bug in") {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text += r.Message
	r.Attrs(func(a slog.Attr) bool { b.text += "\n" + a.String(); return true })
	return nil
}

// FuzzHeld runs calls of every kind for a client that rules restrict to guests and pools named mine*. The arguments
// are drawn from words like those below. A guest, a pool and a secret of others also exist, and change during the
// calls. Each call is answered, and none breaks a handler. Answers, errors and events must not reveal objects of
// others, except in the client's own words. At the end these objects are unchanged.
// Promise: A1
func FuzzHeld(f *testing.F) {
	h := newRestrictedServer(f)
	words := make([]string, 0, len(drawWords))
	for _, w := range drawWords {
		words = append(words, strings.ReplaceAll(w, "$DIR", h.dir))
	}
	seedRestricted(f, h.server.Table)
	f.Fuzz(func(t *testing.T, input []byte, others string) {
		if strings.Contains(others, hidden) || strings.Contains(others, "<volume") { // no volume fills the disk here
			return
		}
		d := &draw{input: input, words: slices.Concat(words, strings.Split(others, "\n"))}
		h.visit(t, d)
		if h.bugs.text != "" {
			t.Fatal(h.bugs.text)
		}
		if now := h.look(t, false); now != h.theirs {
			t.Fatalf("others had\n%s\nand have\n%s", h.theirs, now)
		}
		h.restore(t)
	})
}

func newRestrictedServer(f testing.TB) *restrictedServer {
	must := func(err error) {
		f.Helper()
		if err != nil {
			f.Fatal(err)
		}
	}
	binary, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		f.Skip("qemu-system-x86_64 is not installed")
	}
	dir := f.TempDir()
	h := &restrictedServer{dir: dir, bugs: &bugLog{}, written: map[*domain.Definition]string{}}
	log := slog.New(h.bugs)
	// The host has no memory: no guest starts.
	kerneltest.Write(f, dir, "proc/cpuinfo = processor : 0\nproc/meminfo = MemTotal: 1 kB\nsys/devices/system/cpu/online = 0\nsys/devices/system/node/online = 0\n"+
		"sys/devices/system/node/node0/cpulist = 0\nsys/devices/system/node/node0/meminfo = Node 0 MemTotal: 1 kB\nsys/devices/system/node/node0/distance = 10\n")
	rules := filepath.Join(dir, "access.yaml")
	must(os.WriteFile(rules, fmt.Appendf(nil, "version: 1\nrules: [{name: some, who: \"user:1002\", "+
		"may: [read, start, stop, save, define, change, console, agent, volumes, pools], guests: \"mine*\", pools: \"mine*\", images: %q}]\n", filepath.Join(dir, "mine")), 0o600))
	d, err := daemon.Open(f.Context(), daemon.Config{
		Data: filepath.Join(dir, "data"), Run: filepath.Join(dir, "run"), Log: log, Emulator: binary, Access: rules, Kernel: kernel.At(dir),
	})
	must(err)
	f.Cleanup(d.Close)
	h.backends = backendsOf(d)
	h.server = New(rpc.Config{Backends: h.backends, Log: log, Authorizer: d.Gate})
	must(os.Mkdir(filepath.Join(dir, "theirs"), 0o700))
	for _, name := range []string{"a.img", hidden + ".img"} {
		must(os.WriteFile(filepath.Join(dir, "theirs", name), []byte(hidden), 0o600))
	}
	h.startPool(f, fmt.Sprintf(poolXML, filepath.Join(dir, "theirs")))
	_, err = d.Secrets.Define(scope.Daemon("a test"), secretXML, true)
	must(err)
	must(d.Secrets.SetValue(scope.Daemon("a test"), secretUUID, []byte(hidden)))
	_, err = guest.Define(f.Context(), d.Guests, scope.Daemon("a test"), otherXML, false)
	must(err)
	h.change(f)
	h.restore(f)
	return h
}

// change changes a guest of others, which causes events.
func (h *restrictedServer) change(t testing.TB) {
	h.changes++
	if _, err := guest.Define(context.Background(), h.backends.Guests, scope.Daemon("a test"), fmt.Sprintf(theirXML, fmt.Sprint(hidden, h.changes%9)), false); err != nil {
		t.Fatal(err)
	}
	h.theirs = h.look(t, false)
}

// look describes the client's objects, or all objects of others.
func (h *restrictedServer) look(t testing.TB, mine bool) string {
	var said []string
	for _, g := range h.backends.Guests.All() {
		v := g.View()
		if strings.HasPrefix(v.Name, "mine") != mine {
			continue
		}
		said = append(said, fmt.Sprintf("%s %v %v %v %s", v.Name, v.State, v.Autostart, v.ManagedSave, h.format(t, v.Inactive)))
	}
	for _, p := range h.backends.Pools.List() {
		if strings.HasPrefix(p.Name(), "mine") == mine {
			text, err := p.XML(true)
			said = append(said, fmt.Sprintf("%s %v %v %s %v", p.Name(), p.View().State, p.View().Autostart, text, err))
		}
	}
	slices.Sort(said)
	if mine {
		said = append(said, files(t, filepath.Join(h.dir, "mine"))...)
	} else {
		said = append(said, files(t, filepath.Join(h.dir, "theirs"))...)
		for _, s := range h.backends.Secrets.List() {
			value, err := h.backends.Secrets.Value(s.UUID)
			said = append(said, fmt.Sprintf("%+v %s %v", s, value, err))
		}
	}
	return strings.Join(said, "\n")
}

// format writes a definition as XML. It caches the text: a guest's definition is never modified.
func (h *restrictedServer) format(t testing.TB, def *domain.Definition) string {
	if text, known := h.written[def]; known {
		return text
	}
	text, err := domainxml.Format(def, domainxml.Style{Secure: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(h.written) > 99 {
		clear(h.written)
	}
	h.written[def] = text
	return text
}

// files lists all paths below a folder, with the content of small files.
func files(t testing.TB, folder string) (all []string) {
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		about, err := e.Info()
		if err != nil {
			return err
		}
		var content []byte
		if about.Mode().IsRegular() && about.Size() < 1<<16 {
			if content, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		all = append(all, fmt.Sprintf("%s %v %q", path, about.Mode(), content))
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return all
}

func (h *restrictedServer) startPool(t testing.TB, doc string) {
	p, err := h.backends.Pools.Define(context.Background(), scope.Daemon("a test"), doc, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(context.Background(), scope.Daemon("a test"), volume.NoBuild); err != nil {
		t.Fatal(err)
	}
}

// restore recreates the client's initial objects.
func (h *restrictedServer) restore(t testing.TB) {
	if now := h.look(t, true); now != "" && now == h.mine {
		return
	}
	all := guest.UndefineOptions{ManagedSave: true, Snapshots: true, Checkpoints: true, NVRAM: true, TPM: true}
	for _, g := range h.backends.Guests.All() {
		if strings.HasPrefix(g.Name(), "mine") {
			if err := guest.Undefine(context.Background(), g, scope.Daemon("a test"), all); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, p := range h.backends.Pools.List() {
		if strings.HasPrefix(p.Name(), "mine") {
			_ = p.Stop(context.Background(), scope.Daemon("a test")) // if it is running; it was all that there is of a transient one
			if err := p.Undefine(context.Background(), scope.Daemon("a test")); err != nil && !fault.Is(err, fault.NotFound) {
				t.Fatal(err)
			}
		}
	}
	folder := filepath.Join(h.dir, "mine")
	if err := errors.Join(os.RemoveAll(folder), os.MkdirAll(filepath.Join(folder, "pool"), 0o700),
		os.WriteFile(filepath.Join(folder, "pool/v"), make([]byte, 1024), 0o600)); err != nil {
		t.Fatal(err)
	}
	h.startPool(t, fmt.Sprintf(minePool, filepath.Join(folder, "pool")))
	if _, err := guest.Define(context.Background(), h.backends.Guests, scope.Daemon("a test"), mineXML, false); err != nil {
		t.Fatal(err)
	}
	h.mine = h.look(t, true)
}

// visit connects the client, makes the calls that are drawn, and disconnects.
func (h *restrictedServer) visit(t *testing.T, d *draw) {
	near, far := net.Pipe()
	c := rpc.NewClient(h.server, far, false)
	c.Session.Identity = authz.LocalPrincipal(listener.Peer{PID: 7, UID: 1002, GID: 1002})
	c.Session.Authenticated, c.Session.Opened, c.Session.URI = true, true, rpc.SystemURI
	events := h.backends.Events.Reader()
	served := make(chan struct{})
	go func() {
		c.Serve()
		close(served)
	}()
	v := &fuzzClient{t: t, conn: near, packets: make(chan []byte, 64)}
	go v.listen()
	for serial := uint32(1); serial <= 24 && len(d.input) > 0; serial++ {
		number := d.number(maxDrawn)
		if number == 0 {
			h.change(t)
			continue
		}
		program := xdr.ProgramRemote
		if number > firstOfQEMU {
			program, number = xdr.ProgramQEMU, number-firstOfQEMU
		}
		p := xdr.Lookup(program, int32(number))
		if p == nil || p.Event || rpc.IsAuth(p) {
			continue
		}
		if !v.call(p, serial, d) {
			break
		}
	}
	_ = near.Close()
	<-served
	for packet := range v.packets { // until the connection has ended
		v.check(packet)
	}
	for events.Position() < h.backends.Events.Newest() { // even if the client was not subscribed
		e, _, err := events.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range rpc.Notices(e) {
			if c.Session.CanSeeNotice(n) {
				message, _ := n.Message(1).Append(nil)
				v.check(message)
			}
		}
	}
}

// The numbers drawn for calls: 0 is a change by others, then come the calls of libvirt's
// program, then those of QEMU's.
const (
	firstOfQEMU = 500
	maxDrawn    = firstOfQEMU + 12
)

// fuzzClient is the client's end of a connection.
type fuzzClient struct {
	t       *testing.T
	conn    net.Conn
	sent    []byte
	packets chan []byte // from the server; closed when the connection has ended
}

func (v *fuzzClient) listen() {
	defer close(v.packets)
	for {
		n, err := rpc.ReadLength(v.conn)
		if err != nil {
			return
		}
		packet := make([]byte, n)
		if _, err := io.ReadFull(v.conn, packet); err != nil {
			return
		}
		v.packets <- packet
	}
}

// call makes a call and waits for its reply; false: the connection has ended.
func (v *fuzzClient) call(p *xdr.Procedure, serial uint32, d *draw) bool {
	var args xdr.Message
	if p.NewArgs != nil {
		args = p.NewArgs()
		d.fill(reflect.ValueOf(args).Elem())
	}
	if r, is := args.(*xdr.StorageVolResizeArgs); is {
		r.Capacity %= 1 << 20
	}
	header := xdr.Header{Program: p.Program, Version: xdr.Version, Proc: p.Number, Serial: serial}
	packet, err := xdr.AppendPacket(nil, header, args, 0)
	if err != nil {
		return true // the arguments exceed a bound of the protocol
	}
	v.sent = append(v.sent, packet...)
	if _, err := v.conn.Write(packet); err != nil {
		return false
	}
	for {
		select {
		case packet, more := <-v.packets:
			v.check(packet)
			head, err := xdr.ParseHeader(packet)
			if !more || err == nil && head.Serial == serial && (head.Type == xdr.TypeReply || head.Type == xdr.TypeReplyWithFDs) {
				return more
			}
		case <-time.After(patience):
			v.t.Fatalf("%s has no answer", p.Name)
		}
	}
}

// check looks for objects of others in a packet to the client.
func (v *fuzzClient) check(packet []byte) {
	if at := bytes.Index(packet, []byte(hidden)); at >= 0 {
		v.t.Fatalf("the client gets %q", packet[max(0, at-200):min(len(packet), at+200)])
	}
	for _, word := range []string{"theirs", theirUUID, poolUUID, secretUUID} {
		raw := []byte(word)
		if u, err := rpc.ParseUUID(word); err == nil {
			raw = u[:]
		}
		known := bytes.Contains(v.sent, []byte(word)) || bytes.Contains(v.sent, raw)
		if !known && (bytes.Contains(packet, []byte(word)) || bytes.Contains(packet, raw)) {
			v.t.Fatalf("the client gets %q, which it did not send", word)
		}
	}
}
