package importer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// A guest's UEFI variables are its boot entries and its Secure Boot keys. Without them it may not boot, or may
// boot with Secure Boot off. libvirt keeps them in a file that is named after the domain, and the definition
// need not name it. An import copies that file.

// Variables are the UEFI variables of a domain in libvirt's form.
type Variables struct {
	From string // the file
	Data []byte
}

// maxVariables bounds a file of UEFI variables, in bytes.
const maxVariables = 64 << 20

// findVariables reads the UEFI variables to copy for a domain, and returns a note about them. Nil: there is nothing
// to copy.
func findVariables(root string, d *domain.Definition) (v *Variables, note string, err error) {
	o := &d.OS
	isUEFI := o.Firmware == "efi" || o.Loader.Type == "pflash"
	if !isUEFI || o.Loader.Stateless == device.On || o.Loader.ReadOnly == device.Off || o.NVRAM.Type == "block" {
		return nil, "", nil
	}
	folder := stateFolderOf(root)
	if o.NVRAM.Path != "" {
		return namedVariables(folder, o.NVRAM.Path)
	}
	if !isFileName(d.Name) {
		return nil, "", nil
	}
	if folder == "" {
		return nil, unknownVariables(d.Name), nil
	}
	v, err = readVariables(folder, filepath.Join("qemu/nvram", d.Name+"_VARS.fd"))
	return v, "", err
}

// hostNVRAMDir is the folder where libvirt keeps the variables on this host.
const hostNVRAMDir = "/" + varLibLibvirt + "/qemu/nvram"

// unknownVariables returns a note for a tree outside of etc/libvirt: it is not known where its host keeps the
// variables. A file of this host may belong to another domain, so it is named and not copied.
func unknownVariables(name string) string {
	file := name + "_VARS.fd"
	note := fmt.Sprintf("; its UEFI variables are not taken, because the tree does not lie in %s: before it starts, copy %s from its host to the path in its <nvram>", etcLibvirt, file)
	if here := filepath.Join(hostNVRAMDir, file); exists(here) {
		note += fmt.Sprintf("; this host has %s", here)
	}
	return note
}

// namedVariables is findVariables for a definition that names the file. A file that exists on this host stays where
// it is.
func namedVariables(folder, path string) (v *Variables, note string, err error) {
	switch _, err := os.Lstat(path); {
	case err == nil && filepath.Dir(path) == hostNVRAMDir:
		return nil, fmt.Sprintf("; its UEFI variables stay in %s: do not remove them with libvirt", path), nil
	case err == nil:
		return nil, "", nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, "", unreadable(path, err)
	}
	if folder != "" && filepath.Dir(path) == hostNVRAMDir { // Place writes nowhere else, because the tree may be another user's
		if v, err = readVariables(folder, filepath.Join("qemu/nvram", filepath.Base(path))); v != nil || err != nil {
			return v, "", err
		}
	}
	return nil, fmt.Sprintf("; its UEFI variables are not in %s: copy them there before it starts, or it has neither its boot entries nor its keys", path), nil
}

// openBelow opens a file for reading. It follows no link out of the folder, unless that is this host's state folder.
func openBelow(folder, file string) (*os.File, error) {
	const flags = os.O_RDONLY | unix.O_NONBLOCK
	if folder == "/"+varLibLibvirt {
		return os.OpenFile(filepath.Join(folder, file), flags, 0)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return root.OpenFile(file, flags, 0)
}

// readVariables reads a file of UEFI variables; nil if there is no such file.
func readVariables(folder, file string) (*Variables, error) {
	path := filepath.Join(folder, file)
	f, err := openBelow(folder, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // a domain that never ran has no variables
	}
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err == nil && info.Size() > maxVariables {
		err = fmt.Errorf("it is longer than %d bytes", maxVariables)
	}
	if err != nil {
		return nil, unreadable(path, err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxVariables))
	if err != nil {
		return nil, unreadable(path, err)
	}
	return &Variables{path, data}, nil
}

func unreadable(path string, err error) error {
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot read the domain's UEFI variables in %s; import as root", path)
}

// Place writes the variables to the path in the definition that the daemon completed, and returns a note about that.
// It keeps existing variables.
func (v *Variables) Place(doc string) (did string, err error) {
	d, err := domainxml.Parse(doc, domainxml.Options{})
	if err != nil {
		return "", err
	}
	to, template := d.OS.NVRAM.Path, d.OS.NVRAM.Template
	if to == "" {
		return "", fault.New(fault.Unsupported, fault.Config, "the firmware %q, which this host chose, keeps no UEFI variables, and those in %s would be lost", d.OS.Loader.Path, v.From)
	}
	if info, err := os.Stat(template); template != "" && err == nil && info.Size() != int64(len(v.Data)) {
		return "", fault.New(fault.Unsupported, fault.Config, "its UEFI variables in %s have %d bytes, and those of the firmware %s have %d: "+
			"name the firmware that it ran with (<loader> in os)", v.From, len(v.Data), d.OS.Loader.Path, info.Size())
	}
	switch err := writeOnce(to, v.Data); {
	case errors.Is(err, fs.ErrExist):
		return fmt.Sprintf("; its UEFI variables in %s were there already and stay, libvirt's are in %s", to, v.From), nil
	case err != nil:
		return "", fault.Wrap(err, fault.Failed, fault.Host, "cannot copy its UEFI variables from %s to %s", v.From, to)
	}
	return fmt.Sprintf("; its UEFI variables are copied from %s to %s", v.From, to), nil
}

// writeOnce makes a file completely or not at all, and does not replace one. Only its owner can read it.
func writeOnce(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".import-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil {
		return err
	}
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
