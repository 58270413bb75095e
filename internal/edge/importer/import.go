package importer

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Host is the daemon that receives the definitions.
type Host interface {
	// Known reports whether an object of that name exists. The name of a secret is its UUID.
	Known(ctx context.Context, s Kind, name string) (bool, error)
	// Define makes an object from a document and its traits. It returns a note about what else it did.
	Define(ctx context.Context, s Kind, doc string, t Traits) (did string, err error)
}

// Traits are the facts about an object that a tree has outside its document.
type Traits struct {
	// Replaces is the name of an existing object; empty: there is none.
	Replaces  string
	Autostart bool
	Template  bool   // the domain can only be cloned
	Value     []byte // of a secret; nil: none
	// Variables are a domain's UEFI variables, in place before it can start; nil: none.
	Variables *Variables
}

// Options are the options of an import.
type Options struct {
	// Host receives the definitions; nil: the files are only parsed.
	Host Host
	// DryRun only asks the host for its objects, and changes nothing.
	DryRun bool
	// Replace gives existing objects the tree's definition.
	Replace bool
}

// maxFile bounds a document in bytes, as for clients.
const maxFile = 4 << 20

// Import defines the objects of a tree and reports a result for each file. A failure affects only its own
// file. The error is about the tree itself.
func Import(ctx context.Context, root string, o Options, report func(Result)) error {
	found := false
	for _, p := range layouts {
		files, err := filesIn(root, p.folder)
		if err != nil {
			return err
		}
		for _, file := range files {
			found = true
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			r := Result{Kind: p.kind, File: file}
			r.Outcome, r.Err = o.importFile(ctx, root, &r)
			report(r)
		}
	}
	for _, refuse := range []func(string, func(Result)) (bool, error){refuseFilters, refuseHooks} {
		refused, err := refuse(root, report)
		if err != nil {
			return err
		}
		found = found || refused
	}
	if !found {
		return fault.New(fault.NotFound, fault.Host, "%s has no definitions: neither qemu/*.xml, qemu/networks, storage nor secrets; is it an /etc/libvirt tree?", root)
	}
	return nil
}

// filesIn lists the documents of a folder below root; a missing folder has none.
func filesIn(root, folder string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(root, folder))
	if errors.Is(err, fs.ErrNotExist) && folder != "" {
		if _, err := os.Stat(root); err != nil {
			return nil, fault.Wrap(err, fault.NotFound, fault.Host, "cannot read the tree")
		}
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read the tree")
	}
	var files []string
	for _, e := range entries {
		if !e.IsDir() && strings.HasSuffix(e.Name(), ".xml") && !strings.HasPrefix(e.Name(), ".") {
			files = append(files, filepath.Join(folder, e.Name()))
		}
	}
	return files, nil
}

// refuseFilters reports the network filters that domains refer to as refused. Of the others it reports the number:
// every libvirt installs some.
func refuseFilters(root string, report func(Result)) (bool, error) {
	entries, err := entriesOf(root, filters)
	if err != nil || len(entries) == 0 {
		return false, err
	}
	needed, err := filtersOf(root)
	if err != nil {
		return false, err
	}
	others := 0
	for _, e := range entries {
		if !needed[strings.TrimSuffix(e.Name(), ".xml")] {
			others++
			continue
		}
		report(refused(filters, e, "network filters are not built: guests that refer to one are refused, too; filter on the bridge with nftables instead"))
	}
	if others > 0 {
		report(Result{Kind: filters, File: filters, Outcome: fmt.Sprintf("left out: %d that no domain here refers to; Lodge has no network filters", others)})
	}
	return true, nil
}

// filtersOf returns the names of the network filters that the domains of a tree refer to.
func filtersOf(root string) (map[string]bool, error) {
	files, err := filesIn(root, folderOf(Domain))
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, file := range files {
		doc, err := readFile(root, file)
		if err != nil {
			continue // its own result reports it
		}
		d, err := xmltree.Parse(string(doc))
		if err != nil {
			continue // its own result reports it
		}
		for _, devices := range d.Elements("devices") {
			for _, nic := range devices.Elements("interface") {
				for _, ref := range nic.Elements("filterref") {
					names[ref.Attr("filter")] = true
				}
			}
		}
	}
	return names, nil
}

// refuseHooks reports hook programs as refused: Lodge does not run them.
func refuseHooks(root string, report func(Result)) (bool, error) {
	entries, err := entriesOf(root, hooks)
	for _, e := range entries {
		report(refused(hooks, e, "hooks are not run: follow the daemon's events (lodge events --json) instead"))
	}
	return len(entries) > 0, err
}

// Folders of libvirt's tree that Lodge has no objects for. They are the kinds of their results.
const (
	filters = "nwfilter"
	hooks   = "hooks"
)

func refused(folder string, e fs.DirEntry, why string) Result {
	return Result{Kind: Kind(folder), Name: e.Name(), File: filepath.Join(folder, e.Name()), Err: fault.New(fault.Unsupported, fault.Call, "%s", why)}
}

// entriesOf lists a folder below root; a missing folder is empty.
func entriesOf(root, folder string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(filepath.Join(root, folder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, fault.Wrap(err, fault.Failed, fault.Host, "cannot read the tree")
}

// importFile imports one file, and returns its outcome.
func (o Options) importFile(ctx context.Context, root string, r *Result) (string, error) {
	doc, err := readFile(root, r.File)
	if err != nil {
		return "", err
	}
	if r.Name, err = parseDocument(r.Kind, string(doc)); err != nil {
		r.Name = strings.TrimSuffix(filepath.Base(r.File), ".xml") // the name that libvirt uses
		return "", err
	}
	if o.Host == nil {
		return "understood", nil
	}
	known, err := o.Host.Known(ctx, r.Kind, r.Name)
	if err != nil {
		return "", err
	}
	if known && !o.Replace {
		return "left alone: it is there already; --replace gives it this definition", nil
	}
	t := Traits{Autostart: hasLink(root, autostart, r.File), Template: r.Kind == Domain && hasLink(root, template, r.File)}
	did := "defined"
	if known {
		did, t.Replaces = "replaced", r.Name
	}
	if t.Autostart {
		did += ", starts with the host"
	}
	if t.Template {
		did += ", a template"
	}
	if r.Kind == Domain {
		note := ""
		if t.Variables, note, err = stateOutside(root, string(doc)); err != nil {
			return "", err
		}
		did += note
	}
	if o.DryRun {
		if t.Variables != nil {
			did += "; with its UEFI variables from " + t.Variables.From
		}
		return "would be " + did, nil
	}
	if t.Value, err = secretValue(root, r); err != nil {
		return "", err
	}
	more, err := o.Host.Define(ctx, r.Kind, string(doc), t)
	return did + more, err
}

// hasLink reports whether a folder next to a file has a link of the file's name.
func hasLink(root, folder, file string) bool {
	_, err := os.Lstat(filepath.Join(root, filepath.Dir(file), folder, filepath.Base(file)))
	return err == nil
}

// parseDocument parses a document and returns the object's name.
func parseDocument(s Kind, doc string) (string, error) {
	switch s {
	case Domain:
		d, err := domainxml.Parse(doc, domainxml.Options{})
		if err != nil {
			return "", err
		}
		return d.Name, cmp.Or(domainxml.CheckName(d), domain.CheckName(d.Name))
	case Network:
		d, err := network.Parse(doc, false)
		return d.Name, err
	case Pool:
		return volume.Check(doc)
	case Secret:
		d, err := secret.Parse(doc, false)
		return d.UUID, err
	}
	return "", fault.New(fault.Internal, fault.Call, "no definitions are of kind %q", s)
}

// secretValue reads the value that libvirt keeps next to a secret's definition.
func secretValue(root string, r *Result) ([]byte, error) {
	if r.Kind != Secret {
		return nil, nil
	}
	file := strings.TrimSuffix(r.File, ".xml") + ".base64"
	text, err := readFile(root, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	value, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	return value, fault.Wrap(err, fault.Invalid, fault.Secret, "cannot read the value in %s", file)
}

// readFile reads a file of a tree, up to maxFile bytes. The tree may belong to another user: links are not followed
// out of it, and reading never blocks.
func readFile(root, file string) ([]byte, error) {
	tree, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tree.Close() }()
	f, err := tree.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fault.New(fault.Invalid, fault.Host, "it is not a regular file"))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fault.New(fault.Invalid, fault.XML, "it is longer than %d bytes", maxFile)
	}
	return data, err
}
