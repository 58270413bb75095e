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

// Firmware is a UEFI image on the host, as its package describes it in QEMU's format
// (docs/interop/firmware.json of QEMU).
type Firmware struct {
	// Code is the image. Template is its empty variable store, or "" for an image that stores no variables.
	Code, Template string
	// Format and TemplateFormat are raw or qcow2.
	Format, TemplateFormat string
	// Flash says that the image goes into flash; otherwise it goes into plain memory.
	Flash bool
	// Stateless flash firmware stores no variables and has no template.
	Stateless bool
	// Features are the feature names of the description: secure-boot, requires-smm, ...
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

// firmwareTarget is an architecture and patterns of its machine types.
type firmwareTarget struct {
	Architecture string   `json:"architecture"`
	Machines     []string `json:"machines"`
}

// Supports says whether the firmware runs on a machine type, given its full name.
func (f *Firmware) Supports(arch, machine string) bool {
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

// firmwareDirs hold descriptions; later folders have precedence. A file hides files of the same name in
// earlier folders; an empty file only hides.
var firmwareDirs = []string{"/usr/share/qemu/firmware", "/etc/qemu/firmware"}

// Firmwares returns the UEFI images whose files exist, in order of preference. The error names descriptions
// that cannot be parsed; the others are returned too.
func Firmwares() ([]Firmware, error) { return FirmwaresIn(firmwareDirs...) }

// FirmwaresIn is Firmwares with other folders.
func FirmwaresIn(dirs ...string) ([]Firmware, error) {
	files := map[string]string{}
	for _, dir := range dirs {
		found, err := filepath.Glob(filepath.Join(dir, "*.json"))
		if err != nil {
			continue // Glob fails only for a malformed pattern
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

// builtInTemplates are the pairs of image and template that libvirt has built in for images without a
// description.
var builtInTemplates = map[string]string{
	"/usr/share/OVMF/OVMF_CODE.fd":         "/usr/share/OVMF/OVMF_VARS.fd",
	"/usr/share/OVMF/OVMF_CODE.secboot.fd": "/usr/share/OVMF/OVMF_VARS.fd",
}

// BuiltInTemplate returns the built-in template of an image that has no description, or "".
func BuiltInTemplate(code string) string { return builtInTemplates[code] }

// readFirmware returns nil for an image that is not UEFI or not installed.
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
		return nil, fault.Wrap(err, fault.Invalid, fault.Host, "cannot parse firmware description %s", file)
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
		default: // guests write to a combined image, so each would need a copy
			return nil, nil //nolint:nilnil // unused descriptions are no error
		}
	case "memory":
		f.Code, f.Format = d.Mapping.Filename, "raw"
	}
	if _, err := os.Stat(f.Code); err != nil || !slices.Contains(d.Interfaces, "uefi") {
		return nil, nil //nolint:nilnil // images that are not installed are no error
	}
	return f, nil
}
