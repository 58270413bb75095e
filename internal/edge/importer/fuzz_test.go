package importer

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// FuzzRecords exports one record of any kind, name and content. It may write only one document in the folder
// of its kind, and one link.
//
// Promise: X9
func FuzzRecords(f *testing.F) {
	const uuid = "11111111-2222-3333-4444-555555555555"
	f.Add("domain", uuid, 1, []byte(`{"Name":"a","XML":"<domain/>","Autostart":true,"Template":true}`))
	f.Add("domain", uuid, 1, []byte(`{"Name":"../../a","XML":"<domain/>","Autostart":true}`))
	for kind := range recordReaders {
		f.Add(kind, uuid, 1, []byte(`{"name":"a/b","Name":".","XML":"<x/>","xml":"<x/>","uuid":"..","definition":{"uuid":"/x"}}`))
		f.Add(kind, "../up", 2, []byte(`{}`))
	}
	f.Fuzz(func(t *testing.T, kind, key string, version int, body []byte) {
		k, known := recordReaders[kind]
		if !known {
			return
		}
		d, err := k.read(key, version, body)
		if err != nil || d.XML == "" {
			return
		}
		outer := t.TempDir()
		root := filepath.Join(outer, "tree")
		into, err := makeEmptyDir(root)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = into.Close() }()
		if file, err := write(into, k.kind, d); err == nil && (filepath.Dir(file) != folderOf(k.kind) || !filepath.IsLocal(file)) {
			t.Fatalf("a %s %q of %q is written into %s", kind, d.Name, d.UUID, file)
		}
		err = filepath.WalkDir(outer, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			inside, err := filepath.Rel(root, path)
			folder := folderOf(k.kind)
			if dir := filepath.Dir(inside); dir != folder && dir != filepath.Join(folder, autostart) && dir != filepath.Join(folder, template) {
				t.Fatalf("%q of %q leaves %s", d.Name, d.UUID, path)
			}
			if entry.Type()&fs.ModeSymlink != 0 {
				if to, err := os.Readlink(path); err != nil || filepath.Dir(to) != ".." {
					t.Fatalf("a link leads to %s (%v)", to, err)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzImport imports one file of an /etc/libvirt tree, at any of its places. There is one result, for that
// file, with text.
func FuzzImport(f *testing.F) {
	docs := []string{
		"<domain type='kvm'><name>a</name><memory>1</memory><os><type>hvm</type></os></domain>", "<network><name>a</name></network>",
		"<pool type='dir'><name>a</name><target><path>/x</path></target></pool>", "<secret><uuid>11111111-2222-3333-4444-555555555555</uuid></secret>", "<domain",
	}
	for place := range layouts {
		for _, doc := range docs {
			f.Add(uint8(place), "a", doc)
		}
	}
	f.Add(uint8(0), ".hidden", docs[0])
	root := f.TempDir()
	for _, p := range layouts {
		if err := os.MkdirAll(filepath.Join(root, p.folder), 0o700); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, place uint8, name, doc string) {
		if name == "" || len(name) > 200 || strings.ContainsAny(name, "/\x00") {
			return // not a file name
		}
		p := layouts[int(place)%len(layouts)]
		file := filepath.Join(p.folder, name+".xml")
		if err := os.WriteFile(filepath.Join(root, file), []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.Remove(filepath.Join(root, file)) }()
		var results []Result
		err := Import(context.Background(), root, Options{}, func(r Result) { results = append(results, r) })
		if strings.HasPrefix(name, ".") {
			if len(results) > 0 || !fault.Is(err, fault.NotFound) {
				t.Fatalf("a hidden file gives %+v, %v", results, err)
			}
			return
		}
		if err != nil || len(results) != 1 || results[0].File != file || results[0].Kind != p.kind {
			t.Fatalf("%s gives %+v, %v", file, results, err)
		}
		if err := results[0].Err; err != nil {
			if fault.Is(err, fault.Internal) || err.Error() == "" {
				t.Fatalf("%v: %v", fault.Of(err), err)
			}
			return
		}
		if results[0].Name == "" && p.kind != Secret || strings.ContainsAny(results[0].Name, "/\n") {
			t.Fatalf("a %s of the name %q is understood in %s", p.kind, results[0].Name, doc)
		}
	})
}
