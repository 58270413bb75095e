package fleet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

const twoGuests = `<tile>
  <volume pool='default'><name>{name}-{tile}.qcow2</name><capacity unit='MiB'>1</capacity><target><format type='qcow2'/></target></volume>
  <volume pool='default'><name>{name}-{tile}-top.qcow2</name><capacity unit='MiB'>1</capacity><target><format type='qcow2'/></target></volume>
  <domain type='qemu'><name>{name}-{tile}-a</name><description>of "{name}" &amp; {tile}</description><memory unit='MiB'>64</memory><vcpu>1</vcpu>
    <os><type arch='x86_64' machine='q35'>hvm</type></os>
    <devices><disk type='volume' device='disk'><driver name='qemu' type='qcow2'/><source pool='default' volume='{name}-{tile}.qcow2'/><target dev='vda' bus='virtio'/></disk></devices>
  </domain>
  <domain type='qemu'><name>{name}-{tile}-b</name>
    <metadata><own xmlns='urn:own'>kept</own><l:guest xmlns:l='https://lodge-kvm.github.io/xmlns/guest/1.0' priority='3'><l:after guest='{name}-{tile}-a'/></l:guest></metadata>
    <memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os>
  </domain>
</tile>`

func template(t *testing.T, doc string) *TileTemplate {
	t.Helper()
	tt, err := ParseTile([]byte(doc))
	ok(t, err)
	return tt
}

// withPool makes the pool "default" and returns its directory.
func (h *herd) withPool() string {
	h.t.Helper()
	dir := filepath.Join(h.dir, "pool")
	ok(h.t, os.Mkdir(dir, 0o700))
	p, err := h.pools.Define(h.t.Context(), scope.Daemon("a test"), "<pool type='dir'><name>default</name><target><path>"+dir+"</path></target></pool>", false)
	ok(h.t, err)
	ok(h.t, p.Start(h.t.Context(), scope.Daemon("a test"), volume.NoBuild))
	return dir
}

// TestMakePool_FreshDaemon: there is no pool, and the template names "default". For another
// name, the error has the command that makes the pool.
func TestMakePool_FreshDaemon(t *testing.T) {
	h := newHerd(t)
	tt := template(t, twoGuests)
	_, err := h.CreateTiles(t.Context(), scope.Daemon("a test"), tt, "lab", 1, 1, true, func(r Result) {
		if r.Outcome != Would {
			t.Errorf("a dry run: %s %v", r.Outcome, r.Error)
		}
	})
	ok(t, err)
	for _, want := range []string{filepath.Join(h.dir, "data/images"), ""} { // the second time there is nothing to do
		folder, err := h.MakePool(t.Context(), scope.Daemon("a test"), tt)
		if err != nil || folder != want {
			t.Errorf("made %q, %v; want %q", folder, err, want)
		}
	}
	told, err := h.create(tt, 1, 1)
	if err != nil || !slices.Equal(told, []string{"lab/1 done"}) {
		t.Errorf("%v, %v", told, err)
	}
	p, err := h.pools.ByName(DefaultPool)
	ok(t, err)
	if v := p.View(); !v.Persistent || !v.Autostart || !v.Active() || v.Target != filepath.Join(h.dir, "data/images") {
		t.Errorf("the pool is %+v", v)
	}
	other := template(t, strings.ReplaceAll(twoGuests, "'default'", "'fast disks'"))
	if folder, err := h.MakePool(t.Context(), scope.Daemon("a test"), other); folder != "" || err != nil {
		t.Errorf("made %q, %v", folder, err)
	}
	_, err = h.create(other, 2, 1)
	if want := "virsh pool-create-as 'fast disks' dir --target FOLDER --build"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("no %q in %v", want, err)
	}
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	ok(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// create makes tiles and returns "name outcome" by name, and the errors.
func (h *herd) create(t *TileTemplate, first, count int) ([]string, error) {
	h.t.Helper()
	var told []string
	var failures []error
	_, err := h.CreateTiles(h.t.Context(), scope.Daemon("a test"), t, "lab", first, count, false, func(r Result) {
		told = append(told, r.Name+" "+string(r.Outcome))
		failures = append(failures, r.Error)
	})
	ok(h.t, err)
	slices.Sort(told)
	return told, errors.Join(failures...)
}

func (h *herd) remove(tiles string) ([]string, error) {
	h.t.Helper()
	var told []string
	var failures []error
	_, err := h.RemoveTiles(h.t.Context(), scope.Daemon("a test"), tiles, false, func(r Result) {
		told = append(told, r.Name+" "+string(r.Outcome))
		failures = append(failures, r.Error)
	})
	ok(h.t, err)
	slices.Sort(told)
	return told, errors.Join(failures...)
}

func TestTiles_CreateStartRemove(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	ok(t, os.WriteFile(filepath.Join(dir, "mine.raw"), nil, 0o600))
	tt := template(t, twoGuests)
	got, err := h.create(tt, 1, 2)
	ok(t, err)
	h.wants("create", got, "lab/1 done", "lab/2 done")
	h.wants("files", files(t, dir), "lab-1-top.qcow2", "lab-1.qcow2", "lab-2-top.qcow2", "lab-2.qcow2", "mine.raw")
	h.wants("tile 1", h.chosen("tile=lab/1"), "lab-1-a", "lab-1-b")
	h.wants("tiles", h.chosen("tile=lab"), "lab-1-a", "lab-1-b", "lab-2-a", "lab-2-b")
	h.wants("in the pool", h.chosen("pool=default"), "lab-1-a", "lab-2-a")
	if d := h.view("lab-2-b").Inactive; !strings.Contains(d.Metadata, "kept") {
		t.Errorf("the template's own metadata is gone: %s", d.Metadata)
	}
	if d := h.view("lab-2-a").Inactive; d.Description != `of "lab" & 2` {
		t.Errorf("description %q", d.Description)
	}
	got, err = h.create(tt, 2, 2)
	ok(t, err)
	h.wants("create more", got, "lab/2 unchanged", "lab/3 done")

	h.wants("start", h.run(Request{Verb: Start, Options: Options{Paused: true}}, "tile=lab/3"), "lab-3-a done 1", "lab-3-b done 2")
	tiles := h.Tiles()
	if len(tiles) != 3 || tiles[2].Name() != "lab/3" || tiles[2].Guests != 2 || tiles[2].Running != 2 || tiles[0].Running != 0 || len(tiles[1].Volumes) != 2 {
		t.Errorf("tiles: %+v", tiles)
	}

	// A volume that another guest uses is not deleted, nor is its tile.
	stranger := func(kind, source string) {
		h.define(strings.Replace(small("stranger"), "<serial type='pty'/>",
			"<disk type='"+kind+"' device='disk'><driver name='qemu' type='qcow2'/><source "+source+"/><target dev='vda' bus='virtio'/></disk>", 1))
	}
	inUse := func(tile string) {
		got, err := h.remove(tile)
		if err == nil || !strings.Contains(err.Error(), `domain "stranger", which is not of tile `+tile+`, uses its volume`) {
			t.Errorf("got %v", err)
		}
		h.wants("remove", got, tile+" failed")
	}
	stranger("file", "file='"+filepath.Join(dir, "lab-1.qcow2")+"'")
	h.wants("in the pool by path", h.chosen("pool=def*,stranger"), "stranger")
	inUse("lab/1")
	h.run(Request{Verb: Undefine}, "stranger")
	stranger("volume", "pool='default' volume='lab-2-top.qcow2'")
	inUse("lab/2")
	h.run(Request{Verb: Start, Options: Options{Paused: true}}, "stranger")
	h.run(Request{Verb: Undefine}, "stranger")
	inUse("lab/2")
	h.run(Request{Verb: Destroy}, "stranger")

	// Nor is one that is another volume's backing file.
	p, err := h.pools.ByName("default")
	ok(t, err)
	_, err = p.CreateVolume(t.Context(), scope.Daemon("a test"), "<volume><name>above.qcow2</name><target><format type='qcow2'/></target><backingStore><path>"+
		filepath.Join(dir, "lab-1.qcow2")+"</path><format type='qcow2'/></backingStore></volume>", volume.CreateOptions{})
	ok(t, err)
	_, err = h.remove("lab/1")
	refused(t, err, fault.WrongState, "default/above.qcow2, which does not belong to tile lab/1, uses volume default/lab-1.qcow2 as its backing file")
	ok(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), "above.qcow2"))
	got, err = h.remove("lab/*")
	ok(t, err)
	h.wants("remove", got, "lab/1 done", "lab/2 done", "lab/3 done")
	h.wants("files left", files(t, dir), "mine.raw")
	h.wants("guests left", h.chosen("all"))
	for _, gone := range []string{"lab/1", "lab"} {
		_, err = h.RemoveTiles(t.Context(), scope.Daemon("a test"), gone, false, func(Result) {})
		refused(t, err, fault.NotFound, gone)
	}
}

func TestCreateTiles_FailureLeavesNothing(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	// The second guest fails: QEMU does not know its machine type, although the format accepts it.
	broken := template(t, strings.Replace(twoGuests, "<memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>",
		"<memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='no-such-machine'>", 1))
	got, err := h.create(broken, 1, 1)
	if err == nil || !strings.Contains(err.Error(), "no-such-machine") {
		t.Errorf("got %v", err)
	}
	h.wants("create", got, "lab/1 failed")
	h.wants("files", files(t, dir))
	h.wants("guests", h.chosen("all"))

	// An existing guest is found before anything is made, and is left alone.
	h.define(small("lab-2-b"))
	got, err = h.create(template(t, twoGuests), 2, 1)
	if err == nil || !strings.Contains(err.Error(), `"lab-2-b" already exists`) {
		t.Errorf("got %v", err)
	}
	h.wants("create", got, "lab/2 failed")
	h.wants("files", files(t, dir))
	h.wants("guests", h.chosen("all"), "lab-2-b")
	h.run(Request{Verb: Undefine}, "all")

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the client has gone"))
	sum, err := h.CreateTiles(ctx, scope.Daemon("a test"), template(t, twoGuests), "lab", 1, 3, false, func(Result) {})
	if ok(t, err); sum.Cancelled != 3 || len(files(t, dir)) != 0 {
		t.Errorf("cancelled: %+v, %v", sum, files(t, dir))
	}
}

func TestParseTile_Example(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	doc, err := os.ReadFile("../../../packaging/tile.xml")
	ok(t, err)
	got, err := h.create(template(t, string(doc)), 1, 1)
	ok(t, err)
	h.wants("create", got, "lab/1 done")
	results := h.run(Request{Verb: Start}, "tile=lab/*")
	if results[0] != "lab-1-1 done 1" || len(results) != 8 {
		t.Errorf("start: %v", results)
	}
	if tiles := h.Tiles(); len(tiles) != 1 || tiles[0].Running != 8 || len(tiles[0].Volumes) != 8 {
		t.Errorf("tiles: %+v", tiles)
	}
	got, err = h.remove("lab")
	ok(t, err)
	h.wants("remove", got, "lab/1 done")
	h.wants("files left", files(t, dir))
}

func TestParseTile_Invalid(t *testing.T) {
	domain := "<domain type='qemu'><name>{name}-{tile}</name></domain>"
	for doc, says := range map[string]string{
		"<tile>\n  <domain type='qemu'><name>{nmae}-{tile}</name></domain></tile>":     "line 2 of the template of a tile: no placeholder {nmae}",
		"<tile>\n<domain\n\n type='{kind}'><name>{tile}</name></domain></tile>":        "line 4 of the template of a tile: no placeholder {kind}",
		"<tile>\n\n<disk/>" + domain + "</tile>":                                       "line 3 of the template of a tile: a <tile> holds <volume> and <domain>, not <disk>",
		"<tile>some {tile}" + domain + "</tile>":                                       "and no text",
		"<tile count='8'>" + domain + "</tile>":                                        "no attribute count",
		"<domain/>":                                                                    "not a <domain>",
		"<tile/>":                                                                      "no <domain>",
		"<tile><domain type='qemu'><name>web</name></domain></tile>":                   "needs {tile}",
		"<tile>" + domain + domain + "</tile>":                                         "has two of domain",
		"<tile><domain type='qemu'><name>web-{ti<!-- a -->le}</name></domain></tile>":  "needs {tile}",
		"<tile><volume><name>{tile}</name></volume>" + domain + "</tile>":              "without the attribute pool",
		"<tile><domain><uuid>1</uuid><name>{tile}</name></domain></tile>":              "leave it out",
		"<tile><volume pool='default'><name>base</name></volume>" + domain + "</tile>": "needs {tile}",
		"<tile><domain>": "",
		"<tile xmlns:x='urn:x'><x:domain><name>{tile}</name></x:domain></tile>":                           "not <domain>",
		"<!DOCTYPE tile [<!ENTITY x 'y'>]><tile>" + domain + "</tile>":                                    "",
		"<tile><!-- {anything} goes in a comment --><volume/><domain><name>{tile}</name></domain></tile>": "without the attribute pool",
	} {
		_, err := ParseTile([]byte(doc))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want one that says %q", doc, err, says)
		}
	}
}

func TestParseTile_PlaceholdersStayText(t *testing.T) {
	tt := template(t, `<tile><domain type='qemu'><name>{name}-{tile}</name><description a='{name}'>{name} {"json": 1} {{tile}}</description></domain></tile>`)
	docs, err := tt.expand("a.b", 7)
	ok(t, err)
	if d := docs.domains[0].doc; !strings.Contains(d, `<description a='a.b'>a.b {&quot;json&quot;: 1} {7}</description>`) || !strings.Contains(d, "<name>a.b-7</name>") {
		t.Error(d)
	}
	for _, set := range []string{"", "a/b", "<x/>", "a'b", "a b", strings.Repeat("x", 49)} {
		if err := checkTileSet(set); !fault.Is(err, fault.Invalid) {
			t.Errorf("set %q: %v", set, err)
		}
	}
}

// FuzzParseTile: the documents of an accepted template can be parsed, have the reported names, carry the mark
// of their tile, and have other names for another tile.
func FuzzParseTile(f *testing.F) {
	for _, doc := range []string{
		"<tile><volume pool='p'><name>{tile}</name></volume><domain a='{name}'><name>{name}{tile}</name></domain></tile>",
		"<tile xmlns:q='urn:q'><domain q:a='{tile}'><name>{name}{tile}</name><metadata><q:x/></metadata></domain></tile>",
		"<tile><domain><name>{tile}</name><metadata><l:guest xmlns:l='" + Namespace + "' priority='3'><l:after guest='{tile}'/></l:guest></metadata></domain></tile>",
		"<tile><volume pool='p'><name>{ti<!-- -->le}</name></volume><domain><name>{tile}</name></domain></tile>",
		"<tile>\n<!-- {a} --><domain>{{tile}}<name>{tile}<b/></name><name>c</name><![CDATA[{name}]]></domain></tile>",
	} {
		f.Add(doc)
	}
	f.Fuzz(func(t *testing.T, doc string) {
		tt, err := ParseTile([]byte(doc))
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatal(err)
			}
			return
		}
		docs, err := tt.expand("set", 3)
		if err != nil {
			return
		}
		next, err := tt.expand("set", 4)
		if err != nil {
			t.Fatalf("the next tile cannot be made: %v", err)
		}
		for i, d := range docs.domains {
			m, err := ReadMarks(metadataOf(t, d.doc))
			if err != nil || m.Labels[tileLabel] != "set/3" || len(m.Volumes) != len(docs.volumes) {
				t.Errorf("%s is not marked (%v): %s", d.name, err, d.doc)
			}
			if named(t, d.doc) != d.name || d.name == next.domains[i].name {
				t.Errorf("%q, and %q in the next tile: %s", d.name, next.domains[i].name, d.doc)
			}
		}
		for i, v := range docs.volumes {
			if named(t, v.doc) != v.Name || v.Pool == "" || v.VolumeName == next.volumes[i].VolumeName {
				t.Errorf("%s, and %s in the next tile: %s", v.VolumeName, next.volumes[i].VolumeName, v.doc)
			}
		}
	})
}

// named returns the name in a document.
func named(t *testing.T, doc string) string {
	t.Helper()
	root, err := xmltree.Parse(doc)
	ok(t, err)
	return root.Child("name").Text()
}
