package tree

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/guest"
	"github.com/lodge-kvm/lodge/network"
	"github.com/lodge-kvm/lodge/secret"
	"github.com/lodge-kvm/lodge/store"
	"github.com/lodge-kvm/lodge/volume"
)

// Result is what became of one definition.
type Result struct {
	Sort Sort
	Name string
	// File lies below the tree's root.
	File string
	// Did is what was done, in a word or a few; Err is why not.
	Did string
	Err error
}

// kept says how the records of a sort are read.
var kept = map[string]struct {
	sort Sort
	read func(uuid string, version int, body []byte) (store.Document, error)
}{
	guest.RecordKind.Name:   {Domain, guest.Document},
	network.RecordKind.Name: {Network, network.Document},
	volume.RecordKind.Name:  {Pool, volume.Document},
	secret.RecordKind.Name:  {Secret, secret.Document},
}

// Export writes every definition of a data directory's store into a tree below
// root, which is made and must hold nothing. A daemon may run meanwhile. The report says what
// is wrong with the store; a record that is damaged is left out and named there.
func Export(data, root string, tell func(Result)) (*store.Report, error) {
	if err := empty(root); err != nil {
		return nil, err
	}
	return store.Visit(data, func(kind, key string, version int, body []byte) error {
		k, known := kept[kind]
		if !known {
			return nil
		}
		d, err := k.read(key, version, body)
		if err == nil && d.XML == "" {
			return nil // of a pool that ends with its daemon
		}
		r := Result{Sort: k.sort, Name: d.Name, Did: "written", Err: err}
		if err == nil {
			r.File, err = write(root, k.sort, d)
		}
		if r.Name == "" {
			r.Name = key
		}
		tell(r)
		return err
	})
}

// empty makes a directory, or refuses one that holds something.
func empty(root string) error {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot make %s", root)
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot read %s", root)
	}
	if len(entries) > 0 {
		return fault.New(fault.Exists, fault.Host, "%s is not empty; name a directory that is, or a new one", root)
	}
	return nil
}

// write writes one document and the link that says that it starts by itself.
// Definitions may hold passwords of displays: the files are their owner's alone.
func write(root string, sort Sort, d store.Document) (string, error) {
	name := d.Name
	if !isFileName(name) {
		name = d.UUID
	}
	if !isFileName(name) { // the key of a damaged record, or somebody's trap
		return "", fault.New(fault.Invalid, fault.Store, "neither its name %q nor its UUID %q can be that of a file", d.Name, d.UUID)
	}
	name += ".xml"
	folder := folderOf(sort)
	file := filepath.Join(folder, name)
	text := strings.TrimRight(d.XML, "\n") + "\n"
	err := errors.Join(os.MkdirAll(filepath.Join(root, folder), 0o700), os.WriteFile(filepath.Join(root, file), []byte(text), 0o600))
	if err == nil && d.Autostart {
		starts := filepath.Join(root, folder, autostart)
		err = errors.Join(os.MkdirAll(starts, 0o700), os.Symlink("../"+name, filepath.Join(starts, name)))
	}
	return file, fault.Wrap(err, fault.Failed, fault.Host, "cannot write %s", filepath.Join(root, file))
}

// isFileName says whether a name stays in its folder, and shows there.
func isFileName(name string) bool {
	return name != "" && !strings.ContainsAny(name, "/\x00") && !strings.HasPrefix(name, ".")
}

// autostart is the folder of links to what starts with the host.
const autostart = "autostart"

func folderOf(sort Sort) string {
	for _, p := range places {
		if p.sort == sort {
			return p.folder
		}
	}
	return string(sort)
}
