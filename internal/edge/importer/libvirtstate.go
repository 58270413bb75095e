package importer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// libvirt keeps some state of a domain outside its definition: saved memory, snapshots, the state of a TPM,
// UEFI variables. An import copies the variables, leaves the rest where it is, and reports it. Without that
// state a guest boots from disks that were in use when it was saved, or has another TPM than the one that sealed
// its keys.

const (
	// etcLibvirt is libvirt's configuration, the tree of a host.
	etcLibvirt = "/etc/libvirt"
	// varLibLibvirt is libvirt's state, relative to the root of a host.
	varLibLibvirt = "var/lib/libvirt"
)

// stateFolderOf returns the state folder of a tree's host; empty: the tree is not a host's etc/libvirt.
func stateFolderOf(root string) string {
	root, err := filepath.Abs(root)
	if err != nil {
		return ""
	}
	host, is := strings.CutSuffix(root, etcLibvirt)
	if !is {
		return ""
	}
	return filepath.Join("/", host, varLibLibvirt)
}

// stateOutside returns the state outside a domain's definition that is imported, and a note about the rest.
func stateOutside(root, doc string) (v *Variables, note string, err error) {
	d, err := domainxml.Parse(doc, domainxml.Options{})
	if err != nil {
		return nil, "", err
	}
	v, note, err = findVariables(root, d)
	return v, note + stateLeftBehind(root, d), err
}

// stateLeftBehind returns a note about the state that is not imported; empty: there is none.
func stateLeftBehind(root string, d *domain.Definition) string {
	folder := stateFolderOf(root)
	if folder == "" || !isFileName(d.Name) {
		return ""
	}
	var all []string
	if save := filepath.Join(folder, "qemu/save", d.Name+".save"); exists(save) {
		all = append(all, fmt.Sprintf("its managed save: virsh restore %s continues from it, and a start boots cold", fault.Word(save)))
	}
	snapshots := filepath.Join("qemu/snapshot", d.Name)
	if files, _ := filesIn(folder, snapshots); len(files) > 0 { // a folder that cannot be read is not reported
		all = append(all, fmt.Sprintf("its %d snapshots in %s: those inside of its images stay there, and qemu-img knows them", len(files), filepath.Join(folder, snapshots)))
	}
	if state := filepath.Join(folder, "swtpm", d.UUID); d.UUID != "" && len(d.Devices.TPMs) > 0 && exists(state) {
		all = append(all, fmt.Sprintf("the state of its TPM: before it starts copy what lies in %s/tpm2 (or tpm1.2) into guest/tpm/%s of the data directory, or it has another TPM", state, d.UUID))
	}
	if len(all) == 0 {
		return ""
	}
	return "; not taken: " + strings.Join(all, "; ")
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
