package launch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// ChooseFirmware chooses the firmware image for a definition that asks for UEFI in general, and the path of
// the guest's variables. It is called when a guest is defined. From then on the choice is part of the
// definition, so that a firmware package installed later does not change the guest.
func ChooseFirmware(r *machine.Registry, def *domain.Definition) error {
	o := &def.OS
	if o.Loader.Path == "" && o.Firmware == "efi" || keepsVariables(o) && o.NVRAM.Template == "" {
		all, unread := resources.Firmwares() // an unreadable description hides only its own firmware
		if err := settleFirmware(def, all); err != nil {
			return errors.Join(err, unread)
		}
	}
	if keepsVariables(o) && o.NVRAM.Path == "" && (o.NVRAM.Template != "" || o.Loader.ReadOnly == device.On) {
		o.NVRAM.Path = r.NvramPath(def.UUID)
	}
	return nil
}

// settleFirmware picks one of the host's images, or finds the template of the image that the definition
// names.
func settleFirmware(def *domain.Definition, all []resources.Firmware) error {
	if def.OS.Loader.Path == "" {
		return pickFirmware(def, all)
	}
	return findTemplate(def, all)
}

// keepsVariables reports whether the firmware keeps its variables in a separate file.
func keepsVariables(o *domain.OS) bool {
	return o.Loader.Type == "pflash" && o.Loader.Stateless != device.On && o.Loader.ReadOnly != device.Off
}

// pickFirmware picks the first of the host's images that fits the definition, in the order of the names of
// their descriptions, as libvirt does. Where the definition asks for nothing, this order decides.
func pickFirmware(def *domain.Definition, all []resources.Firmware) error {
	asked := askedOfFirmware(def)
	for _, f := range all {
		if asked.fits(&f) {
			takeFirmware(def, &f)
			return nil
		}
	}
	return fault.New(fault.Unsupported, fault.Config,
		"this host has no UEFI firmware for machine %s%s; ask for less, or install firmware that has it (package ovmf)", def.OS.Machine, asked)
}

// askedFirmware is what a definition asks of the firmware that is picked for it.
type askedFirmware struct {
	arch, machine string
	features      []domain.FirmwareFeature // each is "yes" or "no"
	kind          string                   // rom, pflash; empty: either
	code, vars    string                   // formats; empty: the other's, or raw
	secure        device.Switch
	smm           device.Switch
	stateless     bool
	sleepToMem    bool
	sleepToDisk   bool
}

func askedOfFirmware(def *domain.Definition) *askedFirmware {
	o := &def.OS
	return &askedFirmware{
		arch: o.Arch, machine: o.Machine, features: o.FirmwareFeatures, kind: o.Loader.Type,
		code: o.Loader.Format, vars: o.NVRAM.Format, secure: o.Loader.Secure,
		smm: def.Features.SMM, stateless: o.Loader.Stateless == device.On,
		sleepToMem: def.SuspendToMem == device.On, sleepToDisk: def.SuspendToDisk == device.On,
	}
}

// fits reports whether the firmware has everything that is asked for.
func (a *askedFirmware) fits(f *resources.Firmware) bool {
	for _, feature := range a.features {
		if f.Has(feature.Name) != (feature.Enabled == device.On) {
			return false
		}
	}
	needsSMM := f.Has("requires-smm")
	switch {
	case !f.Suits(a.arch, a.machine),
		a.sleepToMem && !f.Has("acpi-s3"), a.sleepToDisk && !f.Has("acpi-s4"),
		a.secure == device.On && !needsSMM, a.secure == device.Off && needsSMM,
		a.smm == device.Off && needsSMM:
		return false
	case !f.Flash:
		return a.kind != "pflash" && a.code == "" && a.vars == "" && !a.stateless
	}
	code, vars := cmp.Or(a.code, a.vars, "raw"), cmp.Or(a.vars, a.code, "raw")
	return a.kind != "rom" && f.Format == code && f.Stateless == a.stateless && (f.Stateless || f.TemplateFormat == vars)
}

// String lists the requested properties, by their place in the definition.
func (a *askedFirmware) String() string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for _, f := range a.features {
		add("feature %s=%q", f.Name, yesNo[f.Enabled])
	}
	if a.kind != "" {
		add("os/loader/@type=%q", a.kind)
	}
	if a.code != "" {
		add("os/loader/@format=%q", a.code)
	}
	if a.vars != "" {
		add("os/nvram/@format=%q", a.vars)
	}
	if a.secure != device.Unset {
		add("os/loader/@secure=%q", yesNo[a.secure])
	}
	if a.smm == device.Off {
		add("features/smm off")
	}
	if a.stateless {
		add("os/loader/@stateless=%q", "yes")
	}
	if a.sleepToMem {
		add("pm/suspend-to-mem")
	}
	if a.sleepToDisk {
		add("pm/suspend-to-disk")
	}
	if len(all) == 0 {
		return ""
	}
	return " with " + strings.Join(all, ", ")
}

var yesNo = map[device.Switch]string{device.On: "yes", device.Off: "no"}

// takeFirmware enters the firmware, its template and its needs in the definition.
func takeFirmware(def *domain.Definition, f *resources.Firmware) {
	o := &def.OS
	o.Loader.Path, o.Loader.Type = f.Code, "rom"
	if f.Flash {
		o.Loader.Type, o.Loader.ReadOnly = "pflash", device.On
		setFormat(&o.Loader.Format, f.Format)
	}
	useTemplate(def, f)
	secureFirmware(def, f)
}

// useTemplate sets the firmware's own template for the guest's variables, unless the definition names one.
func useTemplate(def *domain.Definition, f *resources.Firmware) {
	n := &def.OS.NVRAM
	if n.Template != "" || f.Template == "" {
		return
	}
	n.Template = f.Template
	setFormat(&n.Format, f.TemplateFormat)
}

// setFormat sets the format of a file unless it is the default, raw.
func setFormat(format *string, is string) {
	if *format == "" && is != "raw" {
		*format = is
	}
}

// secureFirmware enables what Secure Boot needs of the machine.
func secureFirmware(def *domain.Definition, f *resources.Firmware) {
	if f.Has("requires-smm") && def.OS.Loader.Secure != device.Off {
		def.Features.SMM, def.OS.Loader.Secure = device.On, device.On
	}
}

// findTemplate finds the template for firmware that the definition names by path. It takes the first
// description of that image that fits, or else libvirt's own list. Unknown firmware is left as it is.
func findTemplate(def *domain.Definition, all []resources.Firmware) error {
	o := &def.OS
	for _, f := range all {
		if !f.Flash || f.Code != o.Loader.Path || !f.Suits(o.Arch, o.Machine) || f.Stateless || o.Loader.Secure == device.On && !f.Has("requires-smm") {
			continue
		}
		if err := checkNamed(def, &f); err != nil {
			return err
		}
		setFormat(&o.Loader.Format, f.Format)
		if o.NVRAM.Path == "" || cmp.Or(o.NVRAM.Format, "raw") == f.TemplateFormat { // otherwise the file must exist
			useTemplate(def, &f)
		}
		if o.NVRAM.Path == "" { // a guest with variables keeps its machine as it is
			secureFirmware(def, &f)
		}
		o.Loader.ReadOnly = device.On
		return nil
	}
	if o.NVRAM.Template = resources.ListedTemplate(o.Loader.Path); o.NVRAM.Template != "" {
		o.Loader.ReadOnly = device.On
	}
	return nil
}

// checkNamed refuses firmware, named by its path, that contradicts the definition.
func checkNamed(def *domain.Definition, f *resources.Firmware) error {
	o := &def.OS
	switch {
	case o.Loader.Format != "" && o.Loader.Format != f.Format:
		return fault.New(fault.Unsupported, fault.Config, "os/loader/@format: the firmware %s is %s, not %s; leave the format out", f.Code, f.Format, o.Loader.Format)
	case o.NVRAM.Format != "" && o.NVRAM.Format != f.TemplateFormat && o.NVRAM.Path == "":
		return fault.New(fault.Unsupported, fault.Config, "os/nvram/@format: the template %s is %s, not %s; leave the format out, or name a file of that format",
			f.Template, f.TemplateFormat, o.NVRAM.Format)
	case f.Has("requires-smm") && def.Features.SMM == device.Off && o.NVRAM.Path == "":
		return fault.New(fault.Unsupported, fault.Config, "features/smm: the firmware %s needs SMM; remove <smm state='off'/>, or name other firmware", f.Code)
	}
	return nil
}

// makeNVRAM creates a guest's variable store from the template, at its first start or when a reset is asked
// for. The store outlives the instance, unless the guest is transient.
func (l *Launch) makeNVRAM(ctx context.Context) error {
	o := l.Instance.Definition.OS
	if o.NVRAM.Path == "" || !keepsVariables(&o) {
		return nil
	}
	there, err := machine.FileExists(ctx, l.Sc, o.NVRAM.Path)
	if err != nil || there && !l.opts.ResetNVRAM {
		return err
	}
	if err := checkTemplate(&o); err != nil {
		return err
	}
	err = copyTemplate(ctx, l.Sc, &o.NVRAM)
	l.Instance.MadeNVRAM = err == nil && !there
	return fault.Wrap(err, machine.Failure(err), fault.Host, "cannot make the guest's UEFI variables")
}

// checkTemplate refuses to make variables without a template, or on a block device.
func checkTemplate(o *domain.OS) error {
	switch {
	case o.NVRAM.Type == "block":
		return fault.New(fault.Unsupported, fault.Config, "os/nvram/@type: UEFI variables are not written to a disk; copy the template to %s yourself", o.NVRAM.Path)
	case o.NVRAM.Template == "":
		return fault.New(fault.Failed, fault.Config,
			"no template in format %s for the UEFI variables of %s is known on this host; name one (<nvram template='...'>), or copy the guest's variables to %s",
			cmp.Or(o.NVRAM.Format, "raw"), o.Loader.Path, o.NVRAM.Path)
	}
	return nil
}

// DropHalfNVRAM removes the incomplete variable store of an interrupted start.
func DropHalfNVRAM(ctx context.Context, sc scope.Scope, r *machine.Instance) {
	path := r.Definition.OS.NVRAM.Path
	if path == "" || r.Definition.OS.NVRAM.Template == "" {
		return
	}
	held := sc.FoldersFor(path)
	if err := fsguard.Run(ctx, path, func() error { return machine.RemoveNamed(savestate.Partial(path), held) }); err != nil {
		r.Log.Warn("cannot remove an incomplete file of UEFI variables", "path", savestate.Partial(path), "error", err)
	}
}

// maxTemplate bounds a template of UEFI variables, in bytes.
const maxTemplate = 64 << 20

// copyTemplate makes variables from their template, which must have the same format.
func copyTemplate(ctx context.Context, sc scope.Scope, n *domain.NVRAM) error {
	text, err := readTemplate(ctx, sc, n.Template)
	if err != nil {
		return err
	}
	if n.Format == "qcow2" && !bytes.HasPrefix(text, []byte("QFI\xfb")) {
		return fault.New(fault.Unsupported, fault.Config, "os/nvram/@format: the template %s is not qcow2; leave the format out, or name a qcow2 template", n.Template)
	}
	return writeVariables(ctx, sc, n.Path, text)
}

// copyFile copies a small file atomically.
func copyFile(ctx context.Context, sc scope.Scope, from, to string) error {
	text, err := readTemplate(ctx, sc, from)
	if err != nil {
		return err
	}
	return writeVariables(ctx, sc, to, text)
}

// readTemplate reads a template of at most maxTemplate bytes.
func readTemplate(ctx context.Context, sc scope.Scope, from string) ([]byte, error) {
	held := sc.FoldersFor(from)
	return fsguard.Do(ctx, from, func() ([]byte, error) {
		in, err := image.OpenWithin(from, unix.O_RDONLY, held)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		text, err := io.ReadAll(io.LimitReader(in, maxTemplate+1))
		if len(text) > maxTemplate {
			return nil, fault.New(fault.Invalid, fault.Config, "%s is larger than the %d MiB that UEFI variables may have; name a smaller template", from, maxTemplate>>20)
		}
		return text, err
	}, nil)
}

// writeVariables writes a small file atomically. On a busy disk this may take long.
func writeVariables(ctx context.Context, sc scope.Scope, to string, text []byte) error {
	fill := func(f *os.File) error {
		return fsguard.RunLong(ctx, to, func() error {
			if err := image.RecordBeforeWrite(f); err != nil { // path to may be a disk of another guest, which must not read it as an image
				return err
			}
			_, err := f.Write(text)
			return err
		})
	}
	return savestate.WriteImage(ctx, sc, to, fill, (*os.File).Sync)
}
