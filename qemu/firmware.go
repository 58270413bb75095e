package qemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/fault"
)

// FirmwareDirs are where distributions, administrators after them, describe
// firmware. A file in a later directory replaces one of the same name.
var FirmwareDirs = []string{"/usr/share/qemu/firmware", "/etc/qemu/firmware"}

// Firmware is one firmware image and what it is for, in the order of
// preference in which ReadFirmware gives them. The words are those of QEMU's
// firmware.json.
type Firmware struct {
	Source      string // the file that describes it; "" for one known by its path
	Description string
	Interfaces  []string // bios, uefi, …
	Device      string   // flash, memory, kernel
	Mode        string   // of flash: split, combined, stateless

	Path        string // what is executed
	Format      string // raw, qcow2
	NVRAM       string // template of the variables; "" when there are none apart
	NVRAMFormat string
	Targets     []FirmwareTarget
	Features    []string // secure-boot, requires-smm, enrolled-keys, …
}

// FirmwareTarget is what a firmware runs on.
type FirmwareTarget struct {
	Architecture string
	Machines     []string // patterns such as pc-q35-*
}

// Fits reports whether the firmware runs on a machine type, given by its full
// name.
func (f Firmware) Fits(arch, machine string) bool {
	return slices.ContainsFunc(f.Targets, func(t FirmwareTarget) bool {
		return t.Architecture == arch && slices.ContainsFunc(t.Machines, func(pattern string) bool {
			matched, err := path.Match(pattern, machine)
			return err == nil && matched
		})
	})
}

// Is reports whether the firmware offers an interface, such as uefi.
func (f Firmware) Is(what string) bool { return slices.Contains(f.Interfaces, what) }

// Has reports whether the firmware has a feature, such as secure-boot.
func (f Firmware) Has(feature string) bool { return slices.Contains(f.Features, feature) }

// Bounds of what is read about firmware.
const (
	maxFirmwareFiles = 256
	maxFirmwareSize  = 1 << 20
)

// ReadFirmware reads the descriptions in dirs, usually FirmwareDirs, and gives
// what it could understand whose files are there; the error tells about the rest.
// When nothing is described it looks where distributions put OVMF.
func ReadFirmware(dirs ...string) ([]Firmware, error) {
	names, err := firmwareFiles(dirs)
	var found []Firmware
	for _, name := range sortedNames(names) {
		f, problem := readFirmware(names[name])
		switch {
		case problem != nil:
			err = errors.Join(err, problem)
		case f != nil && present(f.Path) && (f.NVRAM == "" || present(f.NVRAM)):
			found = append(found, *f)
		}
	}
	if len(found) == 0 {
		found = knownFirmware()
	}
	return found, err
}

// firmwareFiles finds the descriptions: the path for each file name.
func firmwareFiles(dirs []string) (map[string]string, error) {
	paths := make(map[string]string)
	var all error
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = errors.Join(all, fault.Wrap(err, fault.Failed, fault.Host, "cannot look for firmware"))
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".json") && len(paths) < maxFirmwareFiles {
				paths[e.Name()] = filepath.Join(dir, e.Name())
			}
		}
	}
	return paths, all
}

func sortedNames(paths map[string]string) []string {
	names := make([]string, 0, len(paths))
	for name := range paths {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

type firmwareFile struct {
	Filename string `json:"filename"`
	Format   string `json:"format"`
}

// readFirmware reads one description. An empty file hides the one of the same
// name in an earlier directory, and is no firmware.
func readFirmware(name string) (*Firmware, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read firmware description")
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxFirmwareSize))
	if err != nil || len(text) == 0 {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read firmware description %s", name)
	}
	f, err := parseFirmware(text)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, fault.Host, "cannot understand firmware description %s", name)
	}
	f.Source = name
	return f, nil
}

func parseFirmware(text []byte) (*Firmware, error) {
	var d struct {
		Description string   `json:"description"`
		Interfaces  []string `json:"interface-types"`
		Mapping     struct {
			Device     string       `json:"device"`
			Mode       string       `json:"mode"`
			Executable firmwareFile `json:"executable"`
			NVRAM      firmwareFile `json:"nvram-template"`
			Filename   string       `json:"filename"`
		} `json:"mapping"`
		Targets []struct {
			Architecture string   `json:"architecture"`
			Machines     []string `json:"machines"`
		} `json:"targets"`
		Features []string `json:"features"`
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, err
	}
	m := d.Mapping
	f := &Firmware{
		Description: d.Description, Interfaces: d.Interfaces, Device: m.Device, Mode: m.Mode, Features: d.Features,
		Path: m.Executable.Filename, Format: m.Executable.Format, NVRAM: m.NVRAM.Filename, NVRAMFormat: m.NVRAM.Format,
	}
	for _, t := range d.Targets {
		f.Targets = append(f.Targets, FirmwareTarget(t))
	}
	switch m.Device {
	case "flash":
		if f.Mode == "" {
			f.Mode = "split" // what the format says when nothing else is said
		}
	case "memory", "kernel":
		f.Path, f.Format = m.Filename, "raw"
	default:
		return nil, fmt.Errorf("mapping to device %q is not known", m.Device)
	}
	if !filepath.IsAbs(f.Path) || f.NVRAM != "" && !filepath.IsAbs(f.NVRAM) {
		return nil, errors.New("its files have no absolute paths")
	}
	return f, nil
}

func present(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular()
}

// knownFirmware looks where distributions put OVMF.
func knownFirmware() []Firmware {
	var found []Firmware
	for _, files := range [][2]string{
		{"/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"},
		{"/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"},
		{"/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"},
		{"/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"},
		{"/usr/share/qemu/ovmf-x86_64-code.bin", "/usr/share/qemu/ovmf-x86_64-vars.bin"},
	} {
		if !present(files[0]) || !present(files[1]) {
			continue
		}
		found = append(found, Firmware{
			Description: "UEFI firmware for x86_64", Interfaces: []string{"uefi"}, Device: "flash", Mode: "split",
			Path: files[0], Format: "raw", NVRAM: files[1], NVRAMFormat: "raw",
			Targets: []FirmwareTarget{{"x86_64", []string{"pc-i440fx-*", "pc-q35-*"}}},
		})
	}
	return found
}
