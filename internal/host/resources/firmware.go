package resources

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Firmware is a UEFI image that is installed on the host, as its package
// describes it in QEMU's own format.
type Firmware struct {
	// Code is the image; Template is the empty variable store that belongs to it,
	// or "" for an image that keeps no variables.
	Code, Template string
	// Format and TemplateFormat are raw or qcow2.
	Format, TemplateFormat string
	// Flash says that the image goes into flash; otherwise it is plain memory.
	Flash bool
	// Stateless flash firmware keeps no variables, and has no template.
	Stateless bool
	// Features are the description's words: secure-boot, requires-smm, ...
	Features []string
	targets  []firmwareTarget
}

// firmwareDescription is the part of a description that Lodge reads.
type firmwareDescription struct {
	Interfaces []string `json:"interface-types"`
	Mapping    struct {
		Device     string       `json:"device"`
		Mode       string       `json:"mode"`
		Filename   string       `json:"filename"`
		Executable firmwareFile `json:"executable"`
		Template   firmwareFile `json:"nvram-template"`
	} `json:"mapping"`
	Targets  []firmwareTarget `json:"targets"`
	Features []string         `json:"features"`
}

type firmwareFile struct {
	Filename string `json:"filename"`
	Format   string `json:"format"`
}

// firmwareTarget is an architecture and patterns of machine types.
type firmwareTarget struct {
	Architecture string   `json:"architecture"`
	Machines     []string `json:"machines"`
}

// Suits says whether the firmware runs on a machine type, by its full name.
func (f *Firmware) Suits(arch, machine string) bool {
	for _, t := range f.targets {
		if t.Architecture != arch {
			continue
		}
		for _, pattern := range t.Machines {
			if ok, err := path.Match(pattern, machine); ok && err == nil {
				return true
			}
		}
	}
	return false
}

// Has says whether the description names a feature.
func (f *Firmware) Has(feature string) bool { return slices.Contains(f.Features, feature) }

// firmwareDirs hold descriptions, later ones first. A file hides those of the
// same name in earlier ones; an empty one only hides.
var firmwareDirs = []string{"/usr/share/qemu/firmware", "/etc/qemu/firmware"}

// Firmwares reads the descriptions of the UEFI images whose files are there, in
// the order in which they are to be preferred. The error names descriptions that
// cannot be understood; the others are given all the same.
func Firmwares() ([]Firmware, error) { return FirmwaresIn(firmwareDirs...) }

// FirmwaresIn is Firmwares for descriptions in other folders.
func FirmwaresIn(dirs ...string) ([]Firmware, error) {
	files := map[string]string{}
	for _, dir := range dirs {
		found, err := filepath.Glob(filepath.Join(dir, "*.json"))
		if err != nil {
			continue // the pattern is sound
		}
		for _, file := range found {
			files[filepath.Base(file)] = file
		}
	}
	var list []Firmware
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f, err := readFirmware(files[name])
		if f != nil {
			list = append(list, *f)
		}
		errs = append(errs, err)
	}
	return list, errors.Join(errs...)
}

// listedTemplates are the pairs of image and template that libvirt knows without
// any description of them.
var listedTemplates = map[string]string{
	"/usr/share/OVMF/OVMF_CODE.fd":         "/usr/share/OVMF/OVMF_VARS.fd",
	"/usr/share/OVMF/OVMF_CODE.secboot.fd": "/usr/share/OVMF/OVMF_VARS.fd",
}

// ListedTemplate gives the template of an image that no description names, or "".
func ListedTemplate(code string) string { return listedTemplates[code] }

// readFirmware gives nothing for what is no UEFI image, or is not there.
func readFirmware(file string) (*Firmware, error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read firmware description %s", file)
	}
	defer in.Close()
	const most = 1 << 20
	text, err := io.ReadAll(io.LimitReader(in, most))
	if err != nil || len(text) == 0 {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read firmware description %s", file)
	}
	var d firmwareDescription
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, fault.Host, "cannot understand firmware description %s", file)
	}
	f := &Firmware{Features: d.Features, targets: d.Targets}
	switch d.Mapping.Device {
	case "flash":
		f.Flash = true
		f.Code, f.Format = d.Mapping.Executable.Filename, d.Mapping.Executable.Format
		switch d.Mapping.Mode {
		case "", "split":
			f.Template, f.TemplateFormat = d.Mapping.Template.Filename, d.Mapping.Template.Format
		case "stateless":
			f.Stateless = true
		default: // a combined image is written to: each guest needs a copy of its own
			return nil, nil //nolint:nilnil // it is no error to describe what is not used
		}
	case "memory":
		f.Code, f.Format = d.Mapping.Filename, "raw"
	}
	if _, err := os.Stat(f.Code); err != nil || !slices.Contains(d.Interfaces, "uefi") {
		return nil, nil //nolint:nilnil // it is no error to describe what is not installed
	}
	return f, nil
}
