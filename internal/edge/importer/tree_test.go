package importer

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestImport_MaliciousTree imports a tree with links to files outside of it, and with files that block a reader.
//
// Promise: X10
func TestImport_MaliciousTree(t *testing.T) {
	outer := t.TempDir()
	root, outside := filepath.Join(outer, "tree"), filepath.Join(outer, "outside.xml")
	ok(t, os.MkdirAll(filepath.Join(root, "qemu"), 0o755))
	const good = "<domain type='qemu'><name>NAME</name><memory>1024</memory><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
	ok(t, os.WriteFile(outside, []byte(good), 0o600))
	ok(t, os.WriteFile(filepath.Join(root, "qemu/good.xml"), []byte(good), 0o600))
	ok(t, os.Symlink("good.xml", filepath.Join(root, "qemu/inside.xml")))
	ok(t, os.Symlink(outside, filepath.Join(root, "qemu/link.xml")))
	ok(t, os.Symlink("../../outside.xml", filepath.Join(root, "qemu/up.xml")))
	ok(t, unix.Mkfifo(filepath.Join(root, "qemu/pipe.xml"), 0o600))
	taken := map[string]bool{}
	ok(t, Import(t.Context(), root, Options{}, func(r Result) { taken[filepath.Base(r.File)] = r.Err == nil }))
	for file, want := range map[string]bool{"good.xml": true, "inside.xml": true, "link.xml": false, "up.xml": false, "pipe.xml": false} {
		if is, told := taken[file]; !told || is != want {
			t.Errorf("%s is taken: %v (reported: %v)", file, is, told)
		}
	}
}

// TestImport_UnusedFilters imports a tree with libvirt's own filters.
//
// Promise: S10
func TestImport_UnusedFilters(t *testing.T) {
	root := t.TempDir()
	const domain = "<domain type='qemu'><name>NAME</name><memory>1024</memory><os><type arch='x86_64' machine='q35'>hvm</type></os><devices>NIC</devices></domain>"
	put := func(file, text string) {
		ok(t, os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755))
		ok(t, os.WriteFile(filepath.Join(root, file), []byte(text), 0o600))
	}
	for _, name := range []string{"clean-traffic", "no-mac-spoofing", "allow-arp"} {
		put("nwfilter/"+name+".xml", "<filter name='"+name+"'><filterref filter='no-mac-spoofing'/></filter>")
	}
	put("qemu/plain.xml", strings.Replace(domain, "NIC", "<interface type='user'/>", 1))
	results := func() (told []Result) {
		ok(t, Import(t.Context(), root, Options{}, func(r Result) { told = append(told, r) }))
		return told
	}
	if all := results(); len(all) != 2 || all[0].Err != nil || all[1].Err != nil || !strings.Contains(all[1].Outcome, "left out: 3") {
		t.Errorf("unused filters: %+v", all)
	}
	put("qemu/filtered.xml", strings.Replace(domain, "NIC", "<interface type='user'><filterref filter='clean-traffic'/></interface>", 1))
	failed, left := map[string]bool{}, ""
	for _, r := range results() {
		if r.Err != nil {
			failed[r.File] = true
		} else if r.Kind == "nwfilter" {
			left = r.Outcome
		}
	}
	if len(failed) != 2 || !failed["qemu/filtered.xml"] || !failed["nwfilter/clean-traffic.xml"] || !strings.Contains(left, "left out: 2") {
		t.Errorf("of a filter that is used and two that are not, failed: %v, and: %q", failed, left)
	}
}

// TestExport_ForeignDirectory exports into a directory that another user owns or has put links into.
//
// Promise: X10
func TestExport_ForeignDirectory(t *testing.T) {
	outer := t.TempDir()
	open := filepath.Join(outer, "open")
	ok(t, os.Mkdir(open, 0o700))
	ok(t, os.Chmod(open, 0o777)) //nolint:gosec // that is the attack
	if _, err := makeEmptyDir(open); !fault.Is(err, fault.Denied) {
		t.Errorf("a directory that anybody may write: %v", err)
	}
	if os.Getuid() == 0 {
		theirs := filepath.Join(outer, "theirs")
		ok(t, os.Mkdir(theirs, 0o700))
		ok(t, os.Chown(theirs, 4242, 4242))
		if _, err := makeEmptyDir(theirs); !fault.Is(err, fault.Denied) {
			t.Errorf("a directory of another user: %v", err)
		}
	}
	root, err := makeEmptyDir(filepath.Join(outer, "tree"))
	ok(t, err)
	defer func() { _ = root.Close() }()
	victim := filepath.Join(outer, "victim")
	ok(t, os.WriteFile(victim, []byte("as it was"), 0o600))
	ok(t, root.Mkdir("qemu", 0o700))
	ok(t, os.Symlink(victim, filepath.Join(outer, "tree/qemu/a.xml")))
	ok(t, os.WriteFile(filepath.Join(outer, "tree/qemu/b.xml"), nil, 0o600))
	ok(t, os.Symlink(outer, filepath.Join(outer, "tree/storage")))
	for sort, name := range map[Kind]string{Domain: "a", Pool: "victim"} {
		if _, err := write(root, sort, store.Document{Name: name, UUID: "u", XML: "<x/>"}); err == nil {
			t.Errorf("a %s is written where a link leads", sort)
		}
	}
	if _, err := write(root, Domain, store.Document{Name: "b", UUID: "u", XML: "<x/>"}); err == nil {
		t.Error("an existing file is overwritten")
	}
	if text, err := os.ReadFile(victim); err != nil || !strings.HasPrefix(string(text), "as it was") {
		t.Errorf("the file elsewhere has %q, %v", text, err)
	}
	if _, err := write(root, Domain, store.Document{Name: "c", UUID: "u", XML: "<x/>", Autostart: true}); err != nil {
		t.Error(err)
	}
}

// TestExport_ReportsPathLimits: the export reports that a guest has path limits, because its document cannot have them.
//
// Promise: S10
func TestExport_ReportsPathLimits(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	s, err := store.Open(data)
	ok(t, err)
	for name, fences := range map[string]map[string][]string{"free": nil, "held": {"/srv/a": {"/srv"}}} {
		ok(t, s.Put(guest.RecordKind, name, map[string]any{"Name": name, "XML": "<domain/>", "Fences": fences}))
	}
	ok(t, s.Close())
	told := map[string]string{}
	_, err = Export(data, filepath.Join(t.TempDir(), "tree"), func(r Result) { told[r.Name] = r.Outcome })
	ok(t, err)
	if told["free"] != "written" || !strings.Contains(told["held"], "define it again") {
		t.Errorf("told: %q", told)
	}
}

// TestExport_BadDefinitionAffectsNoOther: bad names or content of some definitions do not affect the others.
//
// Promise: S10
func TestExport_BadDefinitionAffectsNoOther(t *testing.T) {
	const a, b = "11111111-2222-3333-4444-555555555555", "22222222-2222-3333-4444-555555555555"
	data, dir := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "tree")
	s, err := store.Open(data)
	ok(t, err)
	for uuid, name := range map[string]string{a: ".hidden", b: a, "c": strings.Repeat("x", 255), "d": strings.Repeat("y", 251), "e": "plain"} {
		ok(t, s.Put(network.RecordKind, uuid, map[string]any{"definition": "<network><name>" + name + "</name></network>"}))
	}
	ok(t, s.Put(network.RecordKind, "bad", map[string]any{"definition": "<network>"}))
	ok(t, s.Put(network.RecordKind, "../out", map[string]any{"definition": "<network><name>.out</name></network>"}))
	ok(t, s.Put(volume.RecordKind, "f", map[string]any{"saved": "<pool type='dir'><name>p</name><target><path>/p</path></target></pool>"}))
	ok(t, s.Close())
	failed := 0
	_, err = Export(data, dir, func(r Result) {
		if r.Err != nil {
			failed++
		}
	})
	ok(t, err)
	if failed != 2 {
		t.Errorf("%d are not written; one is no definition, and one has no name for a file", failed)
	}
	for _, file := range []string{a, b, "c", strings.Repeat("y", 251), "plain"} {
		_, err := os.Stat(filepath.Join(dir, "qemu/networks", file+".xml"))
		ok(t, err)
	}
	_, err = os.Stat(filepath.Join(dir, "storage/p.xml"))
	ok(t, err)
}

// nowhere accepts all definitions, and has none.
type nowhere struct{}

func (nowhere) Known(context.Context, Kind, string) (bool, error) { return false, nil }
func (nowhere) Define(context.Context, Kind, string, Traits) (string, error) {
	return "", nil
}

// TestImport_ReportsStateLeftBehind imports domains with state that libvirt keeps outside their definitions.
//
// Promise: S10
func TestImport_ReportsStateLeftBehind(t *testing.T) {
	host := t.TempDir()
	put := func(file, text string) {
		ok(t, os.MkdirAll(filepath.Dir(filepath.Join(host, file)), 0o755))
		ok(t, os.WriteFile(filepath.Join(host, file), []byte(text), 0o600))
	}
	const uuid = "8d9a7e1c-0a40-4c4f-9c55-4c8d6a7f3b11"
	const domain = "<domain type='qemu'><name>NAME</name><memory>1024</memory><os><type arch='x86_64' machine='q35'>hvm</type></os><devices>MORE</devices></domain>"
	put("etc/libvirt/qemu/plain.xml", strings.NewReplacer("NAME", "plain", "MORE", "").Replace(domain))
	put("etc/libvirt/qemu/rich.xml", strings.ReplaceAll(strings.ReplaceAll(domain, "NAME</name>", "rich</name><uuid>"+uuid+"</uuid>"), "MORE", "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>"))
	put("etc/libvirt/qemu/odd.xml", strings.NewReplacer("NAME", "odd[1]; reboot", "MORE", "").Replace(domain)) // a pattern to Go, and to a shell
	put("var/lib/libvirt/qemu/save/odd[1]; reboot.save", "")
	put("var/lib/libvirt/qemu/snapshot/odd[1]; reboot/one.xml", "")
	put("etc/libvirt/qemu/bad.xml", "<domain><name>bad</name>")
	put("var/lib/libvirt/qemu/save/rich.save", "")
	put("var/lib/libvirt/qemu/snapshot/rich/one.xml", "")
	put("var/lib/libvirt/swtpm/"+uuid+"/tpm2/tpm2-00.permall", "")
	for _, dry := range []bool{true, false} {
		did := map[string]string{}
		ok(t, Import(t.Context(), filepath.Join(host, "etc/libvirt"), Options{Host: nowhere{}, DryRun: dry}, func(r Result) { did[r.Name] = r.Outcome }))
		for _, piece := range []string{"virsh restore " + host + "/var/lib/libvirt/qemu/save/rich.save", "its 1 snapshots", "swtpm/" + uuid + "/tpm2", "guest/tpm/" + uuid} {
			if !strings.Contains(did["rich"], piece) {
				t.Errorf("of what is left is said %q, and nothing of %q", did["rich"], piece)
			}
		}
		for _, piece := range []string{"virsh restore '" + host + "/var/lib/libvirt/qemu/save/odd[1]; reboot.save'", "its 1 snapshots"} {
			if !strings.Contains(did["odd[1]; reboot"], piece) {
				t.Errorf("of what is left is said %q, and nothing of %q", did["odd[1]; reboot"], piece)
			}
		}
		if strings.Contains(did["plain"], "not taken") {
			t.Errorf("a domain without left state is reported with %q", did["plain"])
		}
		if _, named := did["bad"]; !named {
			t.Errorf("a file that is refused has no name: %v", did)
		}
	}
}
