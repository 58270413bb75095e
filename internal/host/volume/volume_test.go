package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard/mounttest"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = 1 << 20

// daemon is the storage part of a daemon; it can be restarted on the same data.
type daemon struct {
	t     *testing.T
	data  string
	boot  string
	store *store.Store
	log   *event.Log
	*Pools
}

func newDaemon(t *testing.T) *daemon {
	t.Helper()
	d := &daemon{t: t, data: t.TempDir(), boot: "boot-1"}
	d.open()
	t.Cleanup(d.close)
	return d
}

func (d *daemon) open() {
	d.t.Helper()
	var err error
	if d.store, err = store.Open(d.data); err != nil {
		d.t.Fatal(err)
	}
	d.log = event.NewLog()
	if d.Pools, err = Open(Options{Store: d.store, Events: d.log, Log: slog.New(slog.DiscardHandler), Boot: d.boot}); err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Second)
	defer cancel()
	if err := d.Settle(ctx); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) close() {
	d.Close()
	if err := d.store.Close(); err != nil {
		d.t.Error(err)
	}
}

func (d *daemon) restart() {
	d.close()
	d.open()
}

func dirXML(name, path string) string {
	return fmt.Sprintf("<pool type='dir'><name>%s</name><target><path>%s</path></target></pool>", name, path)
}

func (d *daemon) dirPool(name string) *Pool {
	d.t.Helper()
	p, err := d.Define(d.t.Context(), scope.Daemon("a test"), dirXML(name, d.t.TempDir()), true)
	if err != nil {
		d.t.Fatal(err)
	}
	must(d.t, p.Start(d.t.Context(), scope.Daemon("a test"), NoBuild))
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t *testing.T, err error, kind fault.Kind) {
	t.Helper()
	if !fault.Is(err, kind) {
		t.Errorf("got %v (%v), want %v", err, fault.Of(err), kind)
	}
}

func volXML(name, format string, capacity uint64, more string) string {
	return fmt.Sprintf("<volume><name>%s</name><capacity>%d</capacity><allocation>0</allocation><target><format type='%s'/></target>%s</volume>",
		name, capacity, format, more)
}

func (d *daemon) volume(p *Pool, doc string) *Volume {
	d.t.Helper()
	v, err := p.CreateVolume(d.t.Context(), scope.Daemon("a test"), doc, CreateOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
	return v
}

func TestDirectoryPool_Lifecycle(t *testing.T) {
	d := newDaemon(t)
	events := d.log.Reader()
	target := filepath.Join(t.TempDir(), "deep", "images")
	p, err := d.Define(t.Context(), scope.Daemon("a test"), dirXML("images", target+"//"), true)
	must(t, err)
	wantKind(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild), fault.NotFound)
	wantKind(t, p.Stop(t.Context(), scope.Daemon("a test")), fault.WrongState)
	must(t, p.Build(t.Context(), scope.Daemon("a test"), MakeTarget))
	if st, err := os.Stat(target); err != nil || st.Mode().Perm() != defaultTargetMode {
		t.Fatalf("target %v, %v", st, err)
	}
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	wantKind(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild), fault.WrongState)
	wantKind(t, p.Undefine(t.Context(), scope.Daemon("a test")), fault.WrongState)
	wantKind(t, p.Delete(t.Context(), scope.Daemon("a test")), fault.WrongState)
	must(t, p.SetAutostart(t.Context(), scope.Daemon("a test"), true))
	v := p.View()
	var fs unix.Statfs_t
	must(t, unix.Statfs(target, &fs))
	if v.State != Running || !v.Autostart || !v.Persistent || v.Capacity != fs.Blocks*uint64(fs.Frsize) || v.Capacity != v.Allocation+v.Available {
		t.Fatalf("view %+v", v)
	}
	must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	must(t, p.Delete(t.Context(), scope.Daemon("a test")))
	must(t, p.Undefine(t.Context(), scope.Daemon("a test")))
	if _, err := os.Stat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
	wantKind(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild), fault.NotFound)
	_, err = d.ByName("images")
	wantKind(t, err, fault.NotFound)
	for _, want := range []event.Payload{
		event.PoolChange{Change: event.Defined},
		event.PoolChange{Change: event.Created},
		event.PoolChange{Change: event.Started},
		event.PoolRefresh{},
		event.PoolChange{Change: event.Stopped},
		event.PoolChange{Change: event.Deleted},
		event.PoolChange{Change: event.Undefined},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		e, _, err := events.Next(ctx)
		cancel()
		if err != nil || e.Payload != want || e.Source.Name != "images" {
			t.Fatalf("event %+v, %v, want %+v", e, err, want)
		}
	}
}

func TestDefine_SameTargetIsRefused(t *testing.T) {
	d := newDaemon(t)
	dir := t.TempDir()
	p, err := d.Define(t.Context(), scope.Daemon("a test"), dirXML("a", dir), true)
	must(t, err)
	_, err = d.Define(t.Context(), scope.Daemon("a test"), dirXML("a", t.TempDir()), true) // with another UUID
	wantKind(t, err, fault.Exists)
	_, err = d.Define(t.Context(), scope.Daemon("a test"), dirXML("b", dir), true)
	wantKind(t, err, fault.Exists)
	same := strings.Replace(dirXML("b", t.TempDir()), "<name>", "<uuid>"+p.UUID()+"</uuid><name>", 1)
	_, err = d.Define(t.Context(), scope.Daemon("a test"), same, true)
	wantKind(t, err, fault.Exists)
	again, err := d.Define(t.Context(), scope.Daemon("a test"), strings.Replace(same, ">b<", ">a<", 1), true)
	if err != nil || again != p {
		t.Fatalf("redefined %p as %p, %v", p, again, err)
	}
	if len(d.List()) != 1 {
		t.Errorf("%d pools", len(d.List()))
	}

	// Two pools cannot have one place either when one of them moves there later.
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	own := func(dir string) string {
		return strings.Replace(dirXML("a", dir), "<name>", "<uuid>"+p.UUID()+"</uuid><name>", 1)
	}
	soon, later := t.TempDir(), t.TempDir()
	d.pool(own(soon))
	_, err = d.Define(t.Context(), scope.Daemon("a test"), dirXML("b", soon), true)
	wantKind(t, err, fault.Exists)
	moves, err := parsePool(own(later), "", true)
	must(t, err)
	_, release, err := d.claim(t.Context(), moves)
	must(t, err)
	_, err = d.Create(t.Context(), scope.Daemon("a test"), dirXML("b", later), true, NoBuild)
	wantKind(t, err, fault.Exists)
	release()
	other := d.pool(dirXML("b", later))
	_, err = d.Define(t.Context(), scope.Daemon("a test"), own(later), true)
	wantKind(t, err, fault.Exists)
	must(t, other.Undefine(t.Context(), scope.Daemon("a test")))
	d.pool(own(later))
}

func TestPools_DocumentsRoundTrip(t *testing.T) {
	d := newDaemon(t)
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o751))
	p, err := d.Define(t.Context(), scope.Daemon("a test"), "<pool type='dir'><name>a</name><uuid>6A7F40B6-5A0C-4A4A-9B39-0C7C32A5BD29</uuid><target><path>"+dir+"</path></target></pool>", true)
	must(t, err)
	want := "<pool type='dir'>\n  <name>a</name>\n  <uuid>6a7f40b6-5a0c-4a4a-9b39-0c7c32a5bd29</uuid>\n" +
		"  <capacity unit='bytes'>0</capacity>\n  <allocation unit='bytes'>0</allocation>\n  <available unit='bytes'>0</available>\n" +
		"  <source>\n  </source>\n  <target>\n    <path>" + dir + "</path>\n  </target>\n</pool>\n"
	got, err := p.XML(false)
	if err != nil || got != want {
		t.Fatalf("%v\n%s", err, got)
	}
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	got, err = p.XML(false)
	if err != nil || !strings.Contains(got, "    <permissions>\n      <mode>0751</mode>\n      <owner>0</owner>\n      <group>0</group>\n    </permissions>\n") && os.Getuid() == 0 {
		t.Errorf("%v\n%s", err, got)
	}
	if inactive, _ := p.XML(true); inactive != want {
		t.Errorf("inactive\n%s", inactive)
	}
	// A dump can be defined again.
	if _, err := d.Define(t.Context(), scope.Daemon("a test"), got, true); err != nil {
		t.Error(err)
	}
}

func TestDefine_RefusedDocuments(t *testing.T) {
	d := newDaemon(t)
	pool := func(inner string) string { return "<pool type='dir'>" + inner + "</pool>" }
	for doc, want := range map[string]fault.Kind{
		"<pool":                                  fault.Invalid,
		"<network/>":                             fault.Invalid,
		pool("<target><path>/x</path></target>"): fault.Invalid,
		pool("<name>a</name>"):                   fault.Invalid,
		pool("<name>a/b</name><target><path>/x</path></target>"):                                          fault.Invalid,
		pool("<name>..</name><target><path>/x</path></target>"):                                           fault.Invalid,
		pool("<name>a</name><uuid>1</uuid><target><path>/x</path></target>"):                              fault.Invalid,
		pool("<name>a</name><target><path>/x</path><permissions><mode>999</mode></permissions></target>"): fault.Invalid,
		pool("<name>a</name><target><path>/x</path></target><features><cow state='maybe'/></features>"):   fault.Invalid,
		"<pool type='netfs'><name>a</name><source><host name='h'/><dir path='/d'/><auth type='chap' username='u'><secret usage='x'/></auth></source><target><path>/x</path></target></pool>": fault.Unsupported,
		"<pool type='netfs'><name>a</name><features><cow state='no'/></features><source><host name='h'/><dir path='/d'/></source><target><path>/x</path></target></pool>":                    fault.Unsupported,
		"<pool type='netfs'><name>a</name><source><host name='h'/><host name='i'/><dir path='/d'/></source><target><path>/x</path></target></pool>":                                          fault.Unsupported,
		pool("<name>a</name><target><path>/x</path></target><nonsense/>"):                                                                                                                    fault.Invalid,
		"<pool type='rbd'><name>a</name></pool>":                                fault.Unsupported,
		"<pool type='cloud'><name>a</name></pool>":                              fault.Invalid,
		"<pool type='fs'><name>a</name><target><path>/x</path></target></pool>": fault.Invalid,
		"<pool type='fs'><name>a</name><source><device path='/d'/><format type='x'/></source><target><path>/x</path></target></pool>":  fault.Unsupported,
		"<pool type='netfs'><name>a</name><source><host name='-o x'/><dir path='/d'/></source><target><path>/x</path></target></pool>": fault.Invalid,
	} {
		if _, err := d.Define(t.Context(), scope.Daemon("a test"), doc, true); !fault.Is(err, want) {
			t.Errorf("%s: %v, want %v", doc, err, want)
		}
	}
	// Unknown elements are ignored unless the client asks for validation.
	if _, err := d.Define(t.Context(), scope.Daemon("a test"), pool("<name>a</name><target><path>/x</path></target><nonsense/>"), false); err != nil {
		t.Error(err)
	}
	if len(d.List()) != 1 {
		t.Errorf("%d pools", len(d.List()))
	}
}

// TestPools_WhatLibvirtIgnores: parts of documents that libvirt accepts without effect, and how the pool is
// shown then.
func TestPools_WhatLibvirtIgnores(t *testing.T) {
	const device, target = "<device path='/dev/vdz'/>", "<target><path>/x</path></target>"
	for _, c := range []struct{ kind, inner, shown string }{
		{"dir", "<source><dir path='/y'/></source>" + target, "<source>\n  </source>"},
		{"dir", "<source><dir/></source>" + target, "<source>\n  </source>"},
		{"dir", "<source><device path='/dev/a'/><device path='/dev/b'/><host name='h'/><name>n</name><format type='nfs'/></source>" + target, "<source>\n  </source>"},
		{"dir", "<source><adapter name='x'/><vendor name='v'/><product name='p'/><initiator><iqn name='q'/></initiator></source>" + target, "<source>\n  </source>"},
		{"fs", "<source><host name='h'/><dir path='/y'/><name>n</name>" + device + "</source>" + target, device + "\n    <format type='auto'/>"},
		{"netfs", "<source><host name='h' port='2049'/><dir path='/y'/>" + device + "<name>n</name></source>" + target, "<host name='h'/>\n    <dir path='/y'/>\n    <format type='auto'/>"},
		{"netfs", "<source><host name='h'/><dir path='share'/><format type='cifs'/></source>" + target, "<dir path='share'/>\n    <format type='cifs'/>"},
		{"logical", "<source><name>vg</name><product name='thin'/><host name='h'/><dir path='/y'/></source>", "<name>vg</name>\n    <format type='lvm2'/>"},
		{"disk", "<source>" + device + "<name>n</name><host name='h'/></source>", device + "\n    <format type='unknown'/>"},
		{"dir", "<target><path>/x</path><permissions><mode>0755</mode><label>system_u:object_r:virt_image_t:s0</label></permissions></target>", "<mode>0755</mode>\n    </permissions>"},
		{"dir", "<target><path>/x</path><permissions><label>virt_image_t</label></permissions></target>", "<path>/x</path>\n  </target>"},
		{"dir", "<features><cow state='no'/></features>" + target, "<features>\n    <cow state='no'/>\n  </features>\n  <source>"},
		{"dir", "<features/>" + target, "</available>\n  <source>"},
		{"dir", "<features><cow/></features>" + target, "</available>\n  <source>"},
		{"dir", "<refresh/><description>d</description>" + target, "<path>/x</path>"},
		{"dir", "<target><path>rel/path</path></target>", "<path>/rel/path</path>"},
		{"dir", "<target><path>./rel</path></target>", "<path>/rel</path>"},
	} {
		doc := "<pool type='" + c.kind + "'><name>a</name>" + c.inner + "</pool>"
		d, err := parsePool(doc, "", false)
		if err != nil {
			t.Errorf("%s: %v", doc, err)
			continue
		}
		shown, err := xmltree.Format(d.document(space{}))
		if err != nil || !strings.Contains(shown, c.shown) {
			t.Errorf("%s: %v, no %q in\n%s", doc, err, c.shown, shown)
		}
		if _, err := parsePool(shown, "", true); err != nil {
			t.Errorf("what is shown is refused: %v\n%s", err, shown)
		}
	}
}

// TestPools_SharesWithoutASlash: they are mounted with the source in the form that mount takes.
func TestPools_SharesWithoutASlash(t *testing.T) {
	for dir, want := range map[string][3]string{ // nfs, cifs, glusterfs
		"share":     {"h:share", "//h/share", "h:share"},
		"/share":    {"h:/share", "//h/share", "h:/share"},
		"share/sub": {"h:share/sub", "//h/share/sub", "h:share/sub"},
		"a/../b/":   {"h:b", "//h/b", "h:b"},
		"-o":        {"h:-o", "//h/-o", "h:-o"},
	} {
		for i, format := range []string{"nfs", "cifs", "glusterfs"} {
			d, err := parsePool("<pool type='netfs'><name>a</name><source><host name='h'/><dir path='"+dir+"'/><format type='"+format+"'/></source><target><path>/x</path></target></pool>", "", true)
			if err != nil || d.source() != want[i] {
				t.Errorf("%s %s: %v, %v; want %s", format, dir, d, err, want[i])
			}
		}
	}
}

// TestPools_AbsentTypesSayWhatServes: no hint names a type that is not built either.
func TestPools_AbsentTypesSayWhatServes(t *testing.T) {
	for kind := range absent {
		_, err := parsePool("<pool type='"+string(kind)+"'><name>a</name></pool>", "", false)
		if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "not built: ") || strings.Contains(err.Error(), "network source") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// TestPools_CopyOnWriteNeedsBtrfs: on another file system the build is refused and says so.
func TestPools_CopyOnWriteNeedsBtrfs(t *testing.T) {
	d := newDaemon(t)
	dir := t.TempDir()
	var fsys unix.Statfs_t
	must(t, unix.Statfs(dir, &fsys))
	if fsys.Type == unix.BTRFS_SUPER_MAGIC {
		t.Skip("is on btrfs")
	}
	p := d.pool("<pool type='dir'><name>a</name><features><cow state='no'/></features><target><path>" + filepath.Join(dir, "p") + "</path></target></pool>")
	if err := p.Build(t.Context(), scope.Daemon("a test"), MakeTarget); err == nil || !strings.Contains(err.Error(), "not on btrfs") {
		t.Errorf("%v", err)
	}
}

// TestVolumes_RawHasNoImageOptions: libvirt ignores them for raw, and clients send them with every volume.
// Other formats without options refuse them.
func TestVolumes_RawHasNoImageOptions(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("a")
	for i, part := range []string{
		"<compat>1.1</compat>", "<compat>0.10</compat>", "<features><lazy_refcounts/></features>", "<features><extended_l2/></features>", "<features/>",
		"<clusterSize unit='KiB'>128</clusterSize>", "<compat>1.1</compat><clusterSize>65536</clusterSize><features><lazy_refcounts/></features>",
		"<permissions><owner>0</owner><group>0</group><label>virt_image_t</label></permissions>",
	} {
		for _, format := range []string{"<format type='raw'/>", ""} {
			doc := fmt.Sprintf("<volume><name>%d%d</name><capacity>4096</capacity><target>%s%s</target><backingStore/></volume>", i, len(format), format, part)
			v, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), doc, CreateOptions{})
			if err != nil || v.Format != image.Raw || v.Virtual != 4096 {
				t.Errorf("%s: %v, %v", doc, v, err)
			}
		}
	}
	for part, want := range map[string]fault.Kind{
		"<format type='raw'/><compat>new</compat>":                                          fault.Invalid,
		"<format type='raw'/><features><teleport/></features>":                              fault.Unsupported,
		"<format type='vmdk'/><compat>1.1</compat>":                                         fault.Unsupported,
		"<format type='vmdk'/><features><lazy_refcounts/></features>":                       fault.Unsupported,
		"<format type='vdi'/><clusterSize>65536</clusterSize>":                              fault.Unsupported,
		"<format type='raw'/></target><backingStore><path>/x</path></backingStore><target>": fault.NotFound,
	} {
		doc := "<volume><name>x</name><capacity>4096</capacity><target>" + part + "</target></volume>"
		if _, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), doc, CreateOptions{}); !fault.Is(err, want) {
			t.Errorf("%s: %v (%v), want %v", doc, err, fault.Of(err), want)
		}
	}
}

// Promise: X5
func TestCreateVolume_RefusedDocuments(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("a")
	must(t, os.WriteFile(filepath.Join(p.View().Target, "base"), make([]byte, mib), 0o600))
	for doc, want := range map[string]fault.Kind{
		volXML("../x", "raw", mib, ""):                   fault.Invalid,
		volXML("..", "raw", mib, ""):                     fault.Invalid,
		volXML("a\x7f", "raw", mib, ""):                  fault.Invalid,
		volXML(strings.Repeat("x", 256), "raw", mib, ""): fault.Invalid,
		volXML("base", "raw", mib, ""):                   fault.Exists,
		"<volume><name>x</name><capacity>1</capacity><target><permissions><mode>4755</mode></permissions></target></volume>": fault.Invalid, // a setuid program of root
		volXML("x", "bochs", mib, ""):                                                                       fault.Unsupported,
		"<volume><name>x</name></volume>":                                                                   fault.Invalid,
		"<volume><name>x</name><capacity>-1</capacity></volume>":                                            fault.Invalid,
		"<volume><name>x</name><capacity unit='E'>8</capacity></volume>":                                    fault.Invalid,
		"<volume><name>x</name><capacity unit='parsec'>8</capacity></volume>":                               fault.Invalid,
		"<volume><name>x</name><capacity unit='P'>100</capacity></volume>":                                  fault.NoCapacity,
		volXML("x", "raw", mib, "<backingStore><path>/x</path></backingStore>"):                             fault.NotFound,
		volXML("x", "qcow2", mib, "<backingStore><path>nbd:x</path></backingStore>"):                        fault.Invalid,
		volXML("x", "qcow2", mib, "<backingStore><path>/dev/null</path></backingStore>"):                    fault.Invalid,
		"<volume><name>x</name><capacity>1</capacity><target><encryption format='luks'/></target></volume>": fault.Invalid,
	} {
		if _, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), doc, CreateOptions{}); !fault.Is(err, want) {
			t.Errorf("%s: %v (%v), want %v", doc, err, fault.Of(err), want)
		}
	}
	if names := dirNames(t, p); names != "base" {
		t.Errorf("left behind: %s", names)
	}
	if len(p.Jobs()) != 0 {
		t.Errorf("jobs %v", p.Jobs())
	}
}

func dirNames(t *testing.T, p *Pool) string {
	t.Helper()
	entries, err := os.ReadDir(p.View().Target)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func needQemuImg(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("needs qemu-img")
	}
}

func TestCreateVolume_MatchesDocument(t *testing.T) {
	needQemuImg(t)
	d := newDaemon(t)
	p := d.dirPool("a")
	thin := d.volume(p, volXML("thin", "raw", 64*mib, ""))
	if thin.Virtual != 64*mib || thin.Allocated != 0 || thin.Kind != File || thin.Key() != filepath.Join(p.View().Target, "thin") {
		t.Errorf("thin %+v", thin)
	}
	full := d.volume(p, "<volume><name>full</name><capacity unit='MiB'>4</capacity><target><permissions><mode>0640</mode><owner>1</owner><group>-1</group></permissions></target></volume>")
	st, err := os.Stat(full.Path)
	must(t, err)
	if full.Allocated != 4*mib || st.Mode().Perm() != 0o640 {
		t.Errorf("full %+v, %v", full, st.Mode())
	}
	part := d.volume(p, "<volume><name>part</name><capacity unit='M'>8</capacity><allocation unit='M'>2</allocation></volume>")
	if part.Virtual != 8*mib || part.Allocated != 2*mib {
		t.Errorf("part %+v", part)
	}
	base := d.volume(p, volXML("base", "qcow2", 16*mib, ""))
	top := d.volume(p, "<volume><name>top</name><target><format type='qcow2'/><compat>1.1</compat><clusterSize unit='KiB'>128</clusterSize>"+
		"<features><lazy_refcounts/><extended_l2/></features></target><backingStore><path>"+base.Path+"</path></backingStore></volume>")
	if top.Virtual != 16*mib || top.Backing.Name != base.Path || top.Backing.Format != image.Qcow2 || top.ClusterSize != 128<<10 || !top.LazyRefcounts || !top.ExtendedL2 {
		t.Errorf("top %+v", top)
	}
	laid, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), volXML("laid", "qcow2", 64*mib, ""), CreateOptions{Metadata: true})
	must(t, err)
	if laid.Physical < 64*mib || laid.Allocated > 4*mib {
		t.Errorf("laid out %+v", laid)
	}
	got, err := top.XML()
	must(t, err)
	for _, want := range []string{
		"<volume type='file'>\n  <name>top</name>\n  <key>" + top.Path + "</key>\n  <capacity unit='bytes'>16777216</capacity>\n  <allocation unit='bytes'>",
		"</physical>\n  <target>\n    <path>" + top.Path + "</path>\n    <format type='qcow2'/>\n    <permissions>\n      <mode>0600</mode>\n      <owner>",
		"</permissions>\n    <timestamps>\n      <atime>", "</btime>\n    </timestamps>\n    <compat>1.1</compat>\n    <clusterSize unit='B'>131072</clusterSize>\n" +
			"    <features>\n      <lazy_refcounts/>\n      <extended_l2/>\n    </features>\n  </target>\n" +
			"  <backingStore>\n    <path>" + base.Path + "</path>\n    <format type='qcow2'/>\n  </backingStore>\n</volume>\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no\n%s\nin\n%s", want, got)
		}
	}
	must(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), "top"))
	_, err = p.Volume("top")
	wantKind(t, err, fault.NotFound)
	if _, v, err := d.ByPath(base.Path); err != nil || v.Name != "base" {
		t.Errorf("by path %v, %v", v, err)
	}
	if path, format, err := d.Resolve("a", "base", ""); err != nil || path != base.Path || format != image.Qcow2 {
		t.Errorf("resolved %s, %s, %v", path, format, err)
	}
}

// Promise: X5
func TestDirectoryPool_ListsOnlyVolumes(t *testing.T) {
	d := newDaemon(t)
	dir, outside := t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.WriteFile(at("disk"), make([]byte, mib), 0o600))
	iso := make([]byte, 40<<10)
	copy(iso[32769:], "CD001")
	must(t, os.WriteFile(at("cd.iso"), iso, 0o600))
	must(t, os.WriteFile(at("broken"), []byte("QFI\xfb\x00\x00\x00\x03 and no more"), 0o600))
	must(t, os.Mkdir(at("sub"), 0o700))
	must(t, os.Mkdir(at("lost+found"), 0o700))
	must(t, unix.Mkfifo(at("fifo"), 0o600))
	must(t, os.Symlink("/nonexistent", at("dangling")))
	must(t, os.Symlink(at("loop"), at("loop")))
	secret := filepath.Join(outside, "secret")
	must(t, os.WriteFile(secret, []byte("precious"), 0o600))
	must(t, os.Symlink(secret, at("link")))
	p, err := d.Create(t.Context(), scope.Daemon("a test"), dirXML("a", dir), true, NoBuild)
	must(t, err)
	var got []string
	for _, v := range p.View().Volumes {
		got = append(got, fmt.Sprint(v.Name, " ", v.Kind, " ", v.Format, " ", v.Problem != ""))
	}
	if want := "broken file qcow2 true|cd.iso file iso false|disk file raw false|link file raw false|sub dir dir false"; strings.Join(got, "|") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "|"), want)
	}
	// Nothing is changed through a link that leads out.
	wantKind(t, p.WipeVolume(t.Context(), scope.Daemon("a test"), "link", false), fault.Invalid)
	wantKind(t, p.ResizeVolume(t.Context(), scope.Daemon("a test"), "link", 0, ResizeOptions{Shrink: true}), fault.Invalid)
	_, err = p.Upload(t.Context(), scope.Daemon("a test"), "link", 0, 0)
	wantKind(t, err, fault.Invalid)
	_, err = p.CreateVolume(t.Context(), scope.Daemon("a test"), volXML("dangling", "raw", mib, ""), CreateOptions{})
	wantKind(t, err, fault.Exists)
	must(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), "link"))
	must(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), "sub"))
	if text, err := os.ReadFile(secret); err != nil || string(text) != "precious" {
		t.Errorf("what the link led to is %q, %v", text, err)
	}
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	if len(d.List()) != 0 {
		t.Error("a transient pool outlives its stop")
	}
}

// Promise: X2
func TestVolumes_DeclaredRawStaysRaw(t *testing.T) {
	needQemuImg(t)
	d := newDaemon(t)
	p := d.dirPool("a")
	v := d.volume(p, volXML("disk", "raw", mib, ""))
	// The guest writes a qcow2 header that names a file of the host.
	evil := filepath.Join(t.TempDir(), "evil")
	out, err := exec.CommandContext(t.Context(), "qemu-img", "create", "-q", "-u", "-f", "qcow2", "-b", "/etc/passwd", "-F", "raw", evil, "1G").CombinedOutput()
	if err != nil {
		t.Fatal(err, string(out))
	}
	header, err := os.ReadFile(evil)
	must(t, err)
	f, err := os.OpenFile(v.Path, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(header, 0)
	must(t, errors.Join(err, f.Close()))
	check := func() {
		t.Helper()
		p, err := d.ByName("a")
		must(t, err)
		must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
		v, err := p.FreshVolume(t.Context(), "disk")
		if err != nil || v.Format != image.Raw || v.Virtual != mib || v.Backing != nil {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	check()
	d.restart()
	check()
	p, _ = d.ByName("a")
	clone, err := p.CloneVolume(t.Context(), scope.Daemon("a test"), volXML("copy", "qcow2", mib, ""), p, "disk", CreateOptions{})
	if err != nil || clone.Virtual != mib || clone.Backing != nil {
		t.Fatalf("clone %+v, %v", clone, err)
	}
	// Another file with the same name is another volume.
	must(t, os.Remove(v.Path))
	must(t, os.Rename(evil, v.Path))
	must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	if v, err := p.Volume("disk"); err != nil || v.Format != image.Qcow2 {
		t.Fatalf("%+v, %v", v, err)
	}
	// No format is declared for it, so it is not followed until one is.
	if _, format, err := d.Resolve("a", "disk", ""); !fault.Is(err, fault.Denied) {
		t.Errorf("taken for %s, %v", format, err)
	}
	if _, format, err := d.Resolve("a", "disk", image.Qcow2); err != nil || format != image.Qcow2 {
		t.Errorf("declared as qcow2 it is %s, %v", format, err)
	}
	_, err = p.CloneVolume(t.Context(), scope.Daemon("a test"), volXML("taken", "raw", mib, ""), p, "disk", CreateOptions{})
	wantKind(t, err, fault.Denied)
	_, err = p.CreateVolume(t.Context(), scope.Daemon("a test"), volXML("above", "qcow2", mib, "<backingStore><path>"+v.Path+"</path></backingStore>"), CreateOptions{})
	wantKind(t, err, fault.Denied)
}

func TestClone_FormatsAndBacking(t *testing.T) {
	needQemuImg(t)
	d := newDaemon(t)
	a, b := d.dirPool("a"), d.dirPool("b")
	d.volume(a, volXML("raw", "raw", 3*mib, ""))
	content := bytes.Repeat([]byte("0123456789abcdef"), mib/16)
	upload(t, a, "raw", mib, content)
	compare := func(p *Pool, name string) {
		t.Helper()
		v, err := p.Volume(name)
		must(t, err)
		raw, _ := a.Volume("raw")
		if out, err := exec.CommandContext(t.Context(), "qemu-img", "compare", "-f", "raw", "-F", string(v.Format), raw.Path, v.Path).CombinedOutput(); err != nil {
			t.Errorf("%s differs: %s", name, out)
		}
	}
	clone := func(p *Pool, doc string, from *Pool, source string) *Volume {
		t.Helper()
		v, err := p.CloneVolume(t.Context(), scope.Daemon("a test"), doc, from, source, CreateOptions{})
		must(t, err)
		return v
	}
	same := clone(b, volXML("same", "raw", mib, ""), a, "raw") // a smaller capacity is raised
	compare(b, "same")
	if same.Virtual != 3*mib || same.Allocated > 2*mib {
		t.Errorf("a thin copy is %+v", same)
	}
	dense := clone(b, "<volume><name>dense</name></volume>", a, "raw")
	compare(b, "dense")
	if dense.Allocated < 3*mib {
		t.Errorf("a copy without allocation is %+v", dense)
	}
	clone(b, volXML("qcow2", "qcow2", 5*mib, ""), a, "raw")
	compare(b, "qcow2")
	q, _ := b.Volume("qcow2")
	d.volume(b, volXML("top", "qcow2", 5*mib, "<backingStore><path>"+q.Path+"</path><format type='qcow2'/></backingStore>"))
	top, _ := b.Volume("top")
	doc, err := top.XML()
	must(t, err)
	kept := clone(b, strings.Replace(doc, ">top<", ">kept<", 1), b, "top") // as virsh vol-clone does
	if kept.Backing == nil || kept.Backing.Name != q.Path {
		t.Errorf("the copy lost its backing store: %+v", kept)
	}
	compare(b, "kept")
	flat := clone(a, volXML("flat", "qcow2", 5*mib, ""), b, "top")
	if flat.Backing != nil {
		t.Errorf("a flat copy has %+v", flat.Backing)
	}
	compare(a, "flat")
	_, err = b.CloneVolume(t.Context(), scope.Daemon("a test"), volXML("x", "raw", 0, "<backingStore><path>"+q.Path+"</path></backingStore>"), b, "top", CreateOptions{})
	wantKind(t, err, fault.Unsupported)
	_, err = b.CloneVolume(t.Context(), scope.Daemon("a test"), volXML("x", "qcow2", 0, ""), a, "nothing", CreateOptions{})
	wantKind(t, err, fault.NotFound)
	if _, err = b.CloneVolume(t.Context(), scope.Daemon("a test"), volXML("linked", "raw", 0, ""), a, "raw", CreateOptions{Reflink: true}); err == nil {
		compare(b, "linked")
	} else {
		wantKind(t, err, fault.Unsupported)
	}
	for _, p := range []*Pool{a, b} {
		if len(p.Jobs()) != 0 {
			t.Errorf("jobs %v", p.Jobs())
		}
	}
}

func upload(t *testing.T, p *Pool, name string, offset uint64, content []byte) {
	t.Helper()
	u, err := p.Upload(t.Context(), scope.Daemon("a test"), name, offset, uint64(len(content)))
	must(t, err)
	_, err = io.Copy(u, bytes.NewReader(content))
	must(t, errors.Join(err, u.Close()))
}

func download(t *testing.T, p *Pool, name string, offset, length uint64) []byte {
	t.Helper()
	down, err := p.Download(t.Context(), scope.Daemon("a test"), name, offset, length)
	must(t, err)
	defer down.Close()
	content, err := io.ReadAll(down)
	must(t, err)
	return content
}

func TestTransfer_UploadAndDownload(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("a")
	d.volume(p, volXML("disk", "raw", mib, ""))
	content := bytes.Repeat([]byte("lodge"), 1000)
	upload(t, p, "disk", 100, content)
	if got := download(t, p, "disk", 100, 5000); !bytes.Equal(got, content) {
		t.Errorf("%d bytes came back otherwise", len(got))
	}
	if got := download(t, p, "disk", 0, 0); len(got) != mib {
		t.Errorf("the whole is %d bytes", len(got))
	}
	if got := download(t, p, "disk", 2*mib, 0); len(got) != 0 {
		t.Errorf("beyond the end are %d bytes", len(got))
	}
	u, err := p.Upload(t.Context(), scope.Daemon("a test"), "disk", 0, 3)
	must(t, err)
	_, err = u.Write([]byte("1234"))
	wantKind(t, err, fault.Invalid)
	// During the upload, no other operation may use the volume.
	wantKind(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), "disk"), fault.Busy)
	wantKind(t, p.ResizeVolume(t.Context(), scope.Daemon("a test"), "disk", 2*mib, ResizeOptions{}), fault.Busy)
	wantKind(t, p.Stop(t.Context(), scope.Daemon("a test")), fault.Busy)
	_, err = p.Download(t.Context(), scope.Daemon("a test"), "disk", 0, 0)
	wantKind(t, err, fault.Busy)
	u.Abort()
	u.Abort() // Abort after Close is harmless
	one, err := p.Download(t.Context(), scope.Daemon("a test"), "disk", 0, 0)
	must(t, err)
	two, err := p.Download(t.Context(), scope.Daemon("a test"), "disk", 0, 0)
	must(t, err)
	one.Close()
	wantKind(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), "disk"), fault.Busy)
	two.Close()
	must(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), "disk"))
	for _, r := range [][2]uint64{{1 << 63, 0}, {1, 1<<64 - 1}} {
		_, err = p.Upload(t.Context(), scope.Daemon("a test"), "disk", r[0], r[1])
		wantKind(t, err, fault.Invalid)
	}
}

// A client that begins transfers and leaves them open gets only a share of a pool's places, over all of its
// connections. All transfers together leave places for other work.
// Promise: A15
func TestTransfer_BoundsPerClientAndPool(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("a")
	for i := range maxJobs + 1 {
		d.volume(p, volXML(fmt.Sprint("v", i), "raw", mib, ""))
	}
	var open []*Download
	begin := func(client string, i int) error {
		down, err := p.Download(t.Context(), scope.Daemon("a test").CountedFor(client), fmt.Sprint("v", i), 0, 0)
		if err == nil {
			open = append(open, down)
		}
		return err
	}
	for i := range maxTransfers {
		must(t, begin(fmt.Sprint("client ", i/maxJobsEach), i))
	}
	err := begin("client 0", maxTransfers)
	if wantKind(t, err, fault.Busy); !strings.Contains(fmt.Sprint(err), "for this client") {
		t.Errorf("one more of the same client: %v", err)
	}
	wantKind(t, begin("client 0", maxTransfers-1), fault.Busy) // reading the same volume is a transfer, too
	err = begin("another", maxTransfers)
	if wantKind(t, err, fault.Busy); !strings.Contains(fmt.Sprint(err), "24 of them uploaded or downloaded, of 24") {
		t.Errorf("one more of all: %v", err)
	}
	must(t, p.ResizeVolume(t.Context(), scope.Daemon("a test").CountedFor("another"), fmt.Sprint("v", maxTransfers), 2*mib, ResizeOptions{}))
	wantKind(t, p.ResizeVolume(t.Context(), scope.Daemon("a test").CountedFor("client 0"), fmt.Sprint("v", maxTransfers), 3*mib, ResizeOptions{}), fault.Busy)

	must(t, begin("another", 0)) // reads the same volume as the first, and continues when that ends
	open[0].Close()
	wantKind(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), "v0"), fault.Busy)
	wantKind(t, begin("client 0", maxTransfers), fault.Busy) // the pool's total is reached
	must(t, begin("client 0", 8))                            // the client's own share is not
	for _, down := range open {
		down.Close()
	}
	if len(p.jobs) > 0 {
		t.Errorf("%d places are taken when all is done", len(p.jobs))
	}
}

func TestTransfer_KeepsHoles(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("a")
	d.volume(p, volXML("from", "raw", 8*mib, ""))
	d.volume(p, volXML("into", "raw", 4*mib, ""))
	upload(t, p, "from", 2*mib, bytes.Repeat([]byte("x"), mib))
	upload(t, p, "into", 0, bytes.Repeat([]byte("y"), 4*mib))
	down, err := p.Download(t.Context(), scope.Daemon("a test"), "from", 0, 0)
	must(t, err)
	up, err := p.Upload(t.Context(), scope.Daemon("a test"), "into", 0, 0)
	must(t, err)
	for {
		hole, n, err := down.Section()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if hole {
			must(t, up.Hole(n))
			down.Skip(n)
			continue
		}
		_, err = io.CopyN(up, down, n)
		must(t, err)
	}
	down.Close()
	must(t, up.Close())
	if !bytes.Equal(download(t, p, "from", 0, 0), download(t, p, "into", 0, 0)) {
		t.Error("the copy differs")
	}
	if v, _ := p.Volume("into"); v.Virtual != 8*mib || v.Allocated > 2*mib {
		t.Errorf("the holes were filled: %+v", v)
	}
}

func TestVolumes_ResizeAndWipe(t *testing.T) {
	needQemuImg(t)
	d := newDaemon(t)
	p := d.dirPool("a")
	for _, format := range []string{"raw", "qcow2"} {
		d.volume(p, volXML(format, format, 2*mib, ""))
		resize := func(n uint64, o ResizeOptions, want uint64) {
			t.Helper()
			must(t, p.ResizeVolume(t.Context(), scope.Daemon("a test"), format, n, o))
			if v, err := p.Volume(format); err != nil || v.Virtual != want {
				t.Fatalf("%+v, %v, want %d", v, err, want)
			}
		}
		resize(4*mib, ResizeOptions{}, 4*mib)
		resize(2*mib, ResizeOptions{Delta: true, Allocate: true}, 6*mib)
		wantKind(t, p.ResizeVolume(t.Context(), scope.Daemon("a test"), format, mib, ResizeOptions{}), fault.Invalid)
		wantKind(t, p.ResizeVolume(t.Context(), scope.Daemon("a test"), format, 1<<63, ResizeOptions{Delta: true}), fault.Invalid)
		resize(2*mib, ResizeOptions{Delta: true, Shrink: true}, 4*mib)
	}
	upload(t, p, "raw", 0, bytes.Repeat([]byte("x"), mib))
	must(t, p.WipeVolume(t.Context(), scope.Daemon("a test"), "raw", false))
	if got := download(t, p, "raw", 0, 0); len(got) != 4*mib || bytes.ContainsFunc(got, func(r rune) bool { return r != 0 }) {
		t.Error("raw is not wiped")
	}
	must(t, p.WipeVolume(t.Context(), scope.Daemon("a test"), "raw", true))
	if v, _ := p.Volume("raw"); v.Allocated != 0 || v.Virtual != 4*mib {
		t.Errorf("trimmed to %+v", v)
	}
	must(t, p.WipeVolume(t.Context(), scope.Daemon("a test"), "qcow2", false))
	if v, _ := p.Volume("qcow2"); v.Format != image.Qcow2 || v.Virtual != 4*mib || v.Problem != "" {
		t.Errorf("wiped to %+v", v)
	}
}

func TestVolumes_InUseByQEMU(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("a")
	v := d.volume(p, volXML("disk", "raw", mib, ""))
	f, err := os.OpenFile(v.Path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	for _, at := range []int64{100, 101} { // the locks of a QEMU that writes a disk
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: at, Len: 1}); err != nil {
			t.Skip("no such locks here:", err)
		}
	}
	wantKind(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), "disk"), fault.Busy)
	wantKind(t, p.ResizeVolume(t.Context(), scope.Daemon("a test"), "disk", 2*mib, ResizeOptions{}), fault.Busy)
	wantKind(t, p.WipeVolume(t.Context(), scope.Daemon("a test"), "disk", false), fault.Busy)
	_, err = p.Upload(t.Context(), scope.Daemon("a test"), "disk", 0, 0)
	wantKind(t, err, fault.Busy)
	_, err = p.CloneVolume(t.Context(), scope.Daemon("a test"), volXML("copy", "raw", mib, ""), p, "disk", CreateOptions{})
	wantKind(t, err, fault.Busy)
	if names := dirNames(t, p); names != "disk" {
		t.Errorf("left behind: %s", names)
	}
}

// A volume that a guest waits to start with cannot be deleted or changed.
// Promise: F20
func TestVolumes_ReservedByStartingGuest(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("a")
	v := d.volume(p, volXML("disk", "raw", mib, ""))
	chain, err := image.OpenChain(t.Context(), scope.Daemon("a test"), v.Path, image.Raw)
	must(t, err)
	defer chain.Close()
	handed, err := chain[0].OpenForQEMU(unix.O_RDWR)
	must(t, err)
	wantKind(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), "disk"), fault.Busy)
	_, err = p.CloneVolume(t.Context(), scope.Daemon("a test"), volXML("copy", "raw", mib, ""), p, "disk", CreateOptions{})
	wantKind(t, err, fault.Busy)
	must(t, handed.Close())
	must(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), "disk"))
}

// No guest is started on a disk during an upload to it.
// Promise: F20
func TestTransfer_UploadBlocksGuestStart(t *testing.T) {
	qemu, err := exec.LookPath("qemu-io")
	if err != nil {
		t.Skip("needs qemu-io:", err)
	}
	d := newDaemon(t)
	p := d.dirPool("a")
	v := d.volume(p, volXML("disk", "raw", mib, ""))
	writes := func() error {
		return exec.CommandContext(t.Context(), qemu, "-f", "raw", "-c", "write 0 512", v.Path).Run()
	}
	up, err := p.Upload(t.Context(), scope.Daemon("a test"), "disk", 0, 0)
	must(t, err)
	if writes() == nil {
		t.Error("QEMU writes to what is uploaded")
	}
	must(t, up.Close())
	must(t, writes())
}

func TestPools_RestartAndReboot(t *testing.T) {
	d := newDaemon(t)
	d.dirPool("active")
	self := d.dirPool("self")
	must(t, self.SetAutostart(t.Context(), scope.Daemon("a test"), true))
	_, err := d.Define(t.Context(), scope.Daemon("a test"), dirXML("idle", t.TempDir()), true)
	must(t, err)
	gone := d.dirPool("gone")
	_, err = d.Create(t.Context(), scope.Daemon("a test"), dirXML("passing", t.TempDir()), true, NoBuild)
	must(t, err)
	half := d.volume(d.List()[0], volXML("half", "raw", mib, ""))
	must(t, d.List()[0].declare("half", declaration{Format: image.Raw, Inode: half.inode, Building: true}))
	must(t, os.Remove(gone.View().Target))
	states := func() string {
		var s []string
		for _, p := range d.List() {
			s = append(s, fmt.Sprint(p.Name(), "=", p.View().State == Running))
		}
		return strings.Join(s, " ")
	}
	d.restart()
	if got, want := states(), "active=true gone=false idle=false passing=true self=true"; got != want {
		t.Errorf("after a restart: %s, want %s", got, want)
	}
	p, _ := d.ByName("active")
	if _, err := p.Volume("half"); !fault.Is(err, fault.NotFound) || dirNames(t, p) != "" {
		t.Errorf("an incomplete volume is still there: %v %s", err, dirNames(t, p))
	}
	d.boot = "boot-2"
	d.restart()
	if got, want := states(), "active=false gone=false idle=false self=true"; got != want {
		t.Errorf("after a boot: %s, want %s", got, want)
	}
}

func TestCreateVolume_Concurrently(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("a")
	const n = 8
	results := make(chan error, 2*n)
	for i := range 2 * n {
		go func() {
			_, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), volXML(fmt.Sprint("v", i%n), "raw", mib, ""), CreateOptions{})
			results <- err
		}()
	}
	made := 0
	for range 2 * n {
		switch err := <-results; {
		case err == nil:
			made++
		case !fault.Is(err, fault.Exists) && !fault.Is(err, fault.Busy):
			t.Error(err)
		}
	}
	if made != n || len(p.View().Volumes) != n {
		t.Errorf("%d were made and %d are there", made, len(p.View().Volumes))
	}
}

// TestVolumes_NamesStayInPool calls every method that takes a name with names that lead out of the pool.
// Promise: X5
func TestVolumes_NamesStayInPool(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("a")
	target := p.View().Target
	secret := filepath.Join(filepath.Dir(target), "precious")
	must(t, os.WriteFile(secret, []byte("precious"), 0o600))
	must(t, os.Mkdir(filepath.Join(target, "sub"), 0o700))
	for _, name := range []string{"../precious", secret, "sub/../../precious", "./../precious", "..", ".", "", "sub/../..", "precious\x00"} {
		if _, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), volXML(name, "raw", mib, ""), CreateOptions{}); err == nil {
			t.Errorf("volume %q is made", name)
		}
		if _, err := p.Upload(t.Context(), scope.Daemon("a test"), name, 0, 0); err == nil {
			t.Errorf("volume %q takes data", name)
		}
		for what, err := range map[string]error{
			"wiped": p.WipeVolume(t.Context(), scope.Daemon("a test"), name, false), "resized": p.ResizeVolume(t.Context(), scope.Daemon("a test"), name, 0, ResizeOptions{Shrink: true}), "deleted": p.DeleteVolume(t.Context(), scope.Daemon("a test"), name),
		} {
			if err == nil {
				t.Errorf("volume %q is %s", name, what)
			}
		}
	}
	if text, err := os.ReadFile(secret); err != nil || string(text) != "precious" {
		t.Errorf("what lies beside the pool is %q, %v", text, err)
	}
	if names := dirNames(t, p); names != "sub" {
		t.Errorf("the pool has %q", names)
	}
}

// A link in a pool's directory is followed for a client that may read everything. It is not followed for a
// client limited to folders, which may own the directory.
// Promise: A3
func TestVolumes_LinksForRestrictedClient(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("a")
	target := p.View().Target
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, make([]byte, mib), 0o600))
	must(t, os.WriteFile(filepath.Join(target, "plain"), make([]byte, mib), 0o600))
	must(t, os.Symlink(secret, filepath.Join(target, "link")))
	must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	held := scope.Daemon("a test").Within([]string{target})
	for _, name := range []string{"plain", "link"} {
		for who, sc := range map[string]scope.Scope{"held": held, "free": scope.Daemon("a test")} {
			down, err := p.Download(t.Context(), sc, name, 0, 0)
			if err == nil {
				down.Close()
			}
			_, err2 := p.CloneVolume(t.Context(), sc, volXML(name+"-"+who, "raw", mib, ""), p, name, CreateOptions{})
			for _, err := range []error{err, err2} {
				if refused := name == "link" && who == "held"; (err != nil) != refused || refused && !fault.Is(err, fault.Denied) {
					t.Errorf("%s of %s: %v", name, who, err)
				}
			}
		}
	}
}

// The user was told that the wipe failed. Data that he writes into the volume afterwards stay, also when a
// later daemon finds the record of the wipe.
// Promise: F20
func TestWipe_FailureIsNotResumed(t *testing.T) {
	needQemuImg(t)
	d := newDaemon(t)
	p := d.dirPool("a")
	v := d.volume(p, volXML("disk", "qcow2", mib, ""))
	made, err := os.ReadFile(v.Path)
	must(t, err)
	data := append(made, "what its user has put there"...)
	stays := func(what string) {
		t.Helper()
		d.restart()
		if now, err := os.ReadFile(v.Path); err != nil || !bytes.Equal(now, data) {
			t.Fatalf("%s: the volume has lost its data: %d of %d bytes, %v", what, len(now), len(data), err)
		}
		p, err = d.ByName("a")
		must(t, err)
	}
	d.images = nil // the image cannot be made again
	wantKind(t, p.WipeVolume(t.Context(), scope.Daemon("a test"), "disk", false), fault.Unsupported)
	must(t, os.WriteFile(v.Path, data, 0o600))
	stays("a wipe that failed")

	left := declaration{Format: image.Qcow2, Inode: v.inode, Remake: &image.Plan{Format: image.Qcow2, Virtual: mib}}
	must(t, p.declare("disk", left)) // recorded by a daemon that died before it could finish
	upload(t, p, "disk", 0, data)
	stays("an upload after a wipe that was cut off")

	must(t, p.declare("disk", left))
	defer openAsGuest(t, v.Path)()
	stays("a guest on it")
}

// The declaration of a volume is kept until a look has shown that the volume is gone. Without it the next look
// would trust data that its guest wrote.
// Promise: X2
func TestRefresh_KeepsUnreadDeclarations(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("a")
	v := d.volume(p, volXML("disk", "raw", mib, ""))
	must(t, os.WriteFile(v.Path, append([]byte("QFI\xfb\x00\x00\x00\x03"), make([]byte, mib-8)...), 0o600))
	staysRaw := func(what string) {
		t.Helper()
		must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
		if v, err := p.Volume("disk"); err != nil || v.Format != image.Raw {
			t.Fatalf("%s: %+v, %v", what, v, err)
		}
	}
	staysRaw("at first")

	goOn, blocked := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := ask(t.Context(), p.lane, time.Minute, func() (struct{}, error) { <-goOn; return struct{}{}, nil }, nil)
		blocked <- err
	}()
	until(t, "the lane is busy", func() bool { return p.lane.stuck() > 0 })
	refreshed := make(chan error, 1)
	go func() { refreshed <- p.Refresh(t.Context(), scope.Daemon("a test")) }()
	until(t, "a refresh waits", func() bool { return len(p.lane.tasks) == 1 })
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	close(goOn)
	must(t, errors.Join(<-blocked, <-refreshed))
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	staysRaw("a refresh of a pool that was stopped")

	revive := mounttest.Kill(t, v.Path)
	must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	if _, err := p.Volume("disk"); !fault.Is(err, fault.NotFound) {
		t.Errorf("it could be read: %v", err)
	}
	revive()
	staysRaw("a file that could not be read")
}

// openFiles counts the open files of this process.
func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(all)
}

// Promise: F22
func TestFailures_LeaveNothing(t *testing.T) {
	needQemuImg(t)
	d := newDaemon(t)
	p := d.dirPool("a")
	d.volume(p, volXML("disk", "raw", mib, ""))
	loop := d.volume(p, volXML("loop", "qcow2", mib, ""))
	out, err := exec.CommandContext(t.Context(), "qemu-img", "rebase", "-u", "-F", "qcow2", "-b", loop.Path, loop.Path).CombinedOutput()
	if err != nil {
		t.Fatal(err, string(out))
	}
	must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	ended, end := context.WithCancelCause(t.Context())
	end(errors.New("the caller left"))
	deeds := map[string]func() error{
		"a volume that is there": func() error {
			_, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), volXML("disk", "raw", mib, ""), CreateOptions{})
			return err
		},
		"a volume of a caller that left": func() error {
			_, err := p.CreateVolume(ended, scope.Daemon("a test"), volXML("new", "raw", mib, ""), CreateOptions{})
			return err
		},
		"a volume on a loop": func() error {
			_, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), volXML("new", "qcow2", mib, "<backingStore><path>"+loop.Path+"</path><format type='qcow2'/></backingStore>"), CreateOptions{})
			return err
		},
		"a copy that shares no block": func() error {
			_, err := p.CloneVolume(t.Context(), scope.Daemon("a test"), volXML("new", "qcow2", mib, ""), p, "disk", CreateOptions{Reflink: true})
			return err
		},
		"a smaller size": func() error { return p.ResizeVolume(t.Context(), scope.Daemon("a test"), "disk", 1, ResizeOptions{}) },
		"too many bytes": func() error {
			u, err := p.Upload(t.Context(), scope.Daemon("a test"), "disk", 0, 1)
			if err != nil {
				return err
			}
			defer u.Abort()
			_, err = u.Write([]byte("two"))
			return err
		},
		"a wipe of a caller that left": func() error { return p.WipeVolume(ended, scope.Daemon("a test"), "disk", false) },
		"a start of what runs":         func() error { return p.Start(t.Context(), scope.Daemon("a test"), NoBuild) },
		"a pool without a place": func() error {
			_, err := d.Create(t.Context(), scope.Daemon("a test"), dirXML("none", "/nonexistent"), true, NoBuild)
			return err
		},
	}
	for what, do := range deeds {
		if err := do(); err == nil {
			t.Fatalf("%s: it succeeds", what)
		}
		files, goroutines := openFiles(t), runtime.NumGoroutine()
		for range 200 {
			if err := do(); err == nil {
				t.Fatalf("%s: it succeeds", what)
			}
		}
		until(t, what+" leaves nothing behind", func() bool {
			return openFiles(t) <= files+2 && runtime.NumGoroutine() <= goroutines+2
		})
	}
	if names := dirNames(t, p); names != "disk loop" {
		t.Errorf("left behind: %s", names)
	}
}

// refuseChanges makes the store refuse changes until takesAgain is called.
func (d *daemon) refuseChanges() (takesAgain func()) {
	d.t.Helper()
	path := store.Path(d.data)
	text, err := os.ReadFile(path)
	must(d.t, err)
	must(d.t, os.Rename(path, path+".away"))
	must(d.t, os.WriteFile(path, text, 0o600))
	return func() { must(d.t, os.Rename(path+".away", path)) }
}

// A pool is not stopped when the store cannot record that. The next daemon would start it again, and a
// transient pool would be neither there nor gone.
func TestStop_StoreRefuses(t *testing.T) {
	d := newDaemon(t)
	defined := d.dirPool("defined")
	transient, err := d.Create(t.Context(), scope.Daemon("a test"), dirXML("transient", t.TempDir()), true, NoBuild)
	must(t, err)
	takesAgain := d.refuseChanges()
	for _, p := range []*Pool{defined, transient} {
		if err := p.Stop(t.Context(), scope.Daemon("a test")); err == nil || !p.View().Active() {
			t.Errorf("%s: %v, and it is active: %v", p.Name(), err, p.View().Active())
		}
	}
	takesAgain()
	for _, p := range []*Pool{defined, transient} {
		must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	}
}

// The same holds when the store refuses only after the pool's storage was released.
// Promise: F20
func TestStop_StoreRefusesLate(t *testing.T) {
	d := newDaemon(t)
	name := fmt.Sprintf("lodge-late-%d", os.Getpid())
	must(t, os.Mkdir(filepath.Join("/dev", name), 0o700))
	t.Cleanup(func() { must(t, os.Remove(filepath.Join("/dev", name))) })
	path := store.Path(d.data)
	calls := fakeTools(t, map[string]string{
		"vgs": printing(t, "vgs.json"), "lvs": `echo '{"report":[{"seg":[]}]}'`,
		"vgchange": `test "$2" = y || { cp ` + path + ` ` + path + `.copy && mv ` + path + ` ` + path + `.away && mv ` + path + `.copy ` + path + `; }`,
	})
	doc := strings.ReplaceAll(logicalXML(), "lvtest", name)
	p, err := d.Create(t.Context(), scope.Daemon("a test"), doc, true, NoBuild)
	must(t, err)
	calls()
	err = p.Stop(t.Context(), scope.Daemon("a test"))
	if _, unknown := p.XML(false); err == nil || unknown != nil || !p.View().Active() {
		t.Errorf("%v; it is active: %v (%v)", err, p.View().Active(), unknown)
	}
	if got := calls(); !slices.Equal(got, []string{"vgchange --activate n " + name, "vgchange --activate y " + name}) {
		t.Errorf("it calls %q", got)
	}
	must(t, os.Rename(path+".away", path))
	must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	fakeTools(t, map[string]string{"vgchange": ""})
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	if _, err := d.ByName(p.Name()); !fault.Is(err, fault.NotFound) {
		t.Errorf("it is left: %v", err)
	}
}

// Forgetting a pool deletes nothing of a pool that is defined with its UUID later.
func TestUndefine_KeepsNewPoolWithSameUUID(t *testing.T) {
	d := newDaemon(t)
	doc := strings.Replace(dirXML("a", t.TempDir()), "<name>", "<uuid>b0f2a2e0-0000-4000-8000-000000000003</uuid><name>", 1)
	p := d.pool(doc)
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	var last *Volume
	for i := range 40 {
		last = d.volume(p, volXML(fmt.Sprint("disk", i), "raw", mib, ""))
	}
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	forgotten := make(chan error, 1)
	go func() { forgotten <- p.Undefine(t.Context(), scope.Daemon("a test")) }()
	until(t, "the pool has gone", func() bool { _, err := d.ByUUID(p.UUID()); return err != nil })
	next := d.pool(doc)
	for i := range 40 { // as the code that makes volumes does
		must(t, next.declare(fmt.Sprint("disk", i), declaration{Format: image.Raw, Inode: last.inode}))
	}
	must(t, <-forgotten)
	all, err := d.loadDeclarations()
	must(t, err)
	if n := len(all[p.UUID()]); n != 40 {
		t.Errorf("of 40 volumes %d are known", n)
	}
}

// No volume is made over one that cannot be read at the moment: its declaration stays.
func TestCreateVolume_OverUnreadableVolume(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("a")
	v := d.volume(p, volXML("disk", "raw", mib, ""))
	before := p.declared["disk"]
	revive := mounttest.Kill(t, v.Path)
	must(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	stays := func(when string) {
		t.Helper()
		_, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), volXML("disk", "qcow2", mib, ""), CreateOptions{})
		if err == nil || p.declared["disk"] != before {
			t.Errorf("%s: %v, and it is declared as %+v", when, err, p.declared["disk"])
		}
	}
	stays("it cannot be read")
	revive()
	stays("it has not been read again")
}

// The number of pools is bounded by what one list reply holds. With one more, the list would fail for every
// client.
// Promise: X9
func TestDefine_PoolCountBound(t *testing.T) {
	ps := &Pools{life: t.Context(), byName: map[string]*Pool{}, byUUID: map[string]*Pool{}}
	other := &Pool{}
	other.published.Store(&View{})
	for i := range maxPools {
		ps.byUUID[fmt.Sprint(i)] = other
	}
	d, err := parsePool(dirXML("one-more", t.TempDir()), "", true)
	must(t, err)
	_, _, err = ps.match(d)
	wantKind(t, err, fault.NoCapacity)
}

// The declarations of volumes stay while their pool's record cannot be read, for instance by an older daemon.
// Without them the daemon that can read it would trust data that guests wrote.
// Promise: S3
func TestOpen_KeepsDeclarationsOfUnreadablePool(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("a")
	d.volume(p, volXML("disk", "raw", mib, ""))
	must(t, d.store.Settle())
	newer := poolKind
	newer.Version++
	must(t, d.store.Put(newer, p.uuid, "of a layout that is not known yet"))
	key := p.uuid + "/disk"
	var declared declaration
	d.restart()
	must(t, d.store.Get(volumeKind, key, &declared))

	must(t, d.store.Delete(newer, p.uuid))
	d.restart()
	wantKind(t, d.store.Get(volumeKind, key, &declared), fault.NotFound)
}
