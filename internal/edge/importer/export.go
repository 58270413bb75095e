package importer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
)

// Result is the result of the export or import of one definition.
type Result struct {
	Kind Kind
	Name string
	// File is relative to the tree's root.
	File string
	// Outcome is a note such as "defined"; Err is the reason of a failure.
	Outcome string
	Err     error
}

// recordReaders are the functions that read the records of each kind, by the record's kind in the store.
var recordReaders = map[string]struct {
	kind Kind
	read func(id string, version int, body []byte) (store.Document, error)
}{
	guest.RecordKind.Name:   {Domain, guest.Document},
	network.RecordKind.Name: {Network, network.Document},
	volume.RecordKind.Name:  {Pool, volume.Document},
	secret.RecordKind.Name:  {Secret, secret.Document},
}

// Export writes every definition of a data directory's store into a tree below dir. It makes dir, or requires
// it to be empty. A daemon may run meanwhile. The report lists damage in the store; damaged records are left
// out. A failed write affects only its own result.
func Export(data, dir string, report func(Result)) (*store.Report, error) {
	root, err := makeEmptyDir(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	var volumes volume.Declared
	if _, err := store.Visit(data, func(kind, key string, version int, body []byte) error {
		volumes.Take(kind, key, version, body)
		return nil
	}); err != nil {
		return nil, err
	}
	return store.Visit(data, func(kind, key string, version int, body []byte) error {
		k, known := recordReaders[kind]
		if !known {
			return nil
		}
		d, err := k.read(key, version, body)
		if err == nil && d.XML == "" {
			return nil // the record of a transient pool
		}
		if err == nil && k.kind == Domain { // the format of a volume is not part of its pool's document
			d.XML = guest.WithFormats(d.XML, volumes.Format)
		}
		r := Result{Kind: k.kind, Name: d.Name, Outcome: "written"}
		if d.Fenced {
			r.Outcome = "written, but not to which folders the rules held its images: after an import have its owner define it again before it starts"
		}
		if err == nil {
			r.File, err = write(root, k.kind, d)
		}
		if r.Name == "" {
			r.Name = key
		}
		r.Err = err
		report(r)
		return nil
	})
}

// makeEmptyDir makes a directory. It refuses one that is not empty, and one that other users could write to, because
// they could change the export.
func makeEmptyDir(dir string) (*os.Root, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make %s", dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot open %s", dir)
	}
	info, err := root.Stat(".")
	if err == nil {
		if st := info.Sys().(*syscall.Stat_t); st.Uid != uint32(os.Geteuid()) || st.Mode&0o022 != 0 {
			err = fault.New(fault.Denied, fault.Host, "%s can be written by other users; name a new directory", dir)
		}
	}
	var entries []fs.DirEntry
	if err == nil {
		entries, err = fs.ReadDir(root.FS(), ".")
	}
	if err == nil && len(entries) > 0 {
		err = fault.New(fault.Exists, fault.Host, "%s is not empty; name an empty directory or a new one", dir)
	}
	if err != nil {
		return nil, errors.Join(fault.Wrap(err, fault.Of(err), fault.Host, "cannot export"), root.Close())
	}
	return root, nil
}

// write writes a document and its links in the autostart and template folders. Definitions may contain passwords of
// displays, so only the owner can read the files.
func write(root *os.Root, kind Kind, d store.Document) (string, error) {
	name := d.Name
	if !isFileName(name) || uuid.Validate(name) == nil { // a UUID as a name could clash with the file of an object whose name is not a file name
		name = d.UUID
	}
	if !isFileName(name) { // the record is damaged or malicious
		return "", fault.New(fault.Invalid, fault.Store, "neither its name %q nor its UUID %q can be that of a file", d.Name, d.UUID)
	}
	name += suffix
	folder := folderOf(kind)
	file := filepath.Join(folder, name)
	err := root.MkdirAll(folder, 0o700)
	if err == nil {
		err = writeNew(root, file, strings.TrimRight(d.XML, "\n")+"\n")
	}
	for in, is := range map[string]bool{autostart: d.Autostart, template: d.Template} {
		if in = filepath.Join(folder, in); err == nil && is {
			err = errors.Join(root.MkdirAll(in, 0o700), root.Symlink("../"+name, filepath.Join(in, name)))
		}
	}
	return file, fault.Wrap(err, fault.Failed, fault.Host, "cannot write %s", filepath.Join(root.Name(), file))
}

func writeNew(root *os.Root, file, text string) error {
	f, err := root.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// suffix is the extension of documents; maxFileName bounds file names, in bytes.
const (
	suffix      = ".xml"
	maxFileName = 255
)

// isFileName reports whether a name is that of a file in its folder, is not hidden, and leaves room for the suffix.
func isFileName(name string) bool {
	return name != "" && !strings.ContainsAny(name, "/\x00") && !strings.HasPrefix(name, ".") && len(name)+len(suffix) <= maxFileName
}

// The folders of links: to objects with autostart, and to templates.
const (
	autostart = "autostart"
	template  = "template"
)

func folderOf(kind Kind) string {
	for _, p := range layouts {
		if p.kind == kind {
			return p.folder
		}
	}
	return string(kind)
}
