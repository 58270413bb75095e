package savestate

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// RedefineSaved replaces the definition in a saved image and, unless Then is NoState, the state after the
// restore. The machine must stay the same.
func RedefineSaved(ctx context.Context, r *machine.Registry, sc scope.Scope, path string, o SaveOptions) error {
	if err := sc.Check(); err != nil {
		return err
	}
	ctx, stop := context.WithTimeoutCause(ctx, machine.ModifyLimit, fault.New(fault.Timeout, fault.Host, "%v is the limit", machine.ModifyLimit))
	defer stop()
	f, err := fsguard.Do(ctx, path, func() (*os.File, error) { return image.OpenAs(path, os.O_RDWR) }, func(f *os.File) { _ = f.Close() })
	if err != nil {
		return err
	}
	return fsguard.RunLong(ctx, path, func() error {
		defer f.Close()
		return redefineImage(ctx, r, f, o)
	})
}

// redefineImage does this without a time limit of its own, because writing may take long.
func redefineImage(ctx context.Context, r *machine.Registry, f *os.File, o SaveOptions) error {
	path, leave, err := LockHeader(ctx, r, f)
	if err != nil {
		return err
	}
	defer leave()
	if err = settleHeader(r, f, path); err == nil {
		_, err = ReadSaved(f, o)
	}
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Config, "cannot redefine the saved image %s", f.Name())
	}
	change, err := PlanHeader(f, o)
	if err == nil {
		err = ChangeHeader(r, f, path, change)
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot rewrite the header of %s", f.Name())
}

// PlanHeader returns the change of a valid header. The stream behind the header stays in place, and so does
// libvirt's cookie, if there is one.
func PlanHeader(f *os.File, o SaveOptions) (c HeaderChange, err error) {
	head := make([]byte, SaveHeaderLen)
	if _, err := f.ReadAt(head, 0); err != nil {
		return c, err
	}
	word := func(i int) []byte { return head[16+4*i : 20+4*i] }
	length := binary.NativeEndian.Uint32(word(1))
	if length > MaxSaveXML {
		return c, errors.New("it was changed just now")
	}
	before := make([]byte, SaveHeaderLen+length)
	if _, err := f.ReadAt(before, 0); err != nil {
		return c, err
	}
	old := before[SaveHeaderLen:]
	text, _, _ := bytes.Cut(old, []byte{0})
	if o.XML != "" {
		text = []byte(o.XML)
	}
	data := append(slices.Clone(text), 0)
	if at := binary.NativeEndian.Uint32(word(4)); at != 0 && int(at) < len(old) {
		cookie, _, _ := bytes.Cut(old[at:], []byte{0})
		binary.NativeEndian.PutUint32(word(4), uint32(len(data)))
		data = append(append(data, cookie...), 0)
	}
	if len(data) > len(old) {
		return c, fault.New(fault.Invalid, fault.XML, "the new definition is %d bytes too long for the image", len(data)-len(old))
	}
	if o.Then != domain.NoState {
		binary.NativeEndian.PutUint32(word(2), boolWord(o.Then == domain.Running))
	}
	after := make([]byte, len(before))
	copy(after[copy(after, head):], data)
	return newHeaderChange(before, after), nil
}

// ManagedSavedXML returns the definition in the guest's managed save image.
func ManagedSavedXML(ctx context.Context, g *machine.Guest, sc scope.Scope, secure bool) (string, error) {
	if !g.View().ManagedSave {
		return "", errNoManagedSave()
	}
	return SavedXML(ctx, g.Reg, sc, ManagedSavePath(g), secure)
}

// RedefineManagedSave is RedefineSaved for the guest's managed save image.
func RedefineManagedSave(ctx context.Context, g *machine.Guest, sc scope.Scope, o SaveOptions) error {
	return g.Perform(ctx, sc, lifecycle.Start, domain.JobModify, machine.ModifyLimit, func() (machine.Work, error) {
		if !g.Record.ManagedSave {
			return nil, errNoManagedSave()
		}
		if err := limitSavedPaths(g, sc, o.XML); err != nil {
			return nil, err
		}
		path := ManagedSavePath(g)
		return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
			return nil, RedefineSaved(ctx, g.Reg, sc, path, o)
		}, nil
	})
}

// limitSavedPaths records the folders for the disks of a definition for the image, and applies the Bound of ctx
// as for Define. Another client may start the guest from the image.
func limitSavedPaths(g *machine.Guest, sc scope.Scope, doc string) error {
	if doc == "" || sc.Folders() == nil && sc.Limits() == nil {
		return nil
	}
	def, err := domainxml.Parse(doc, domainxml.Options{})
	if err != nil {
		return err
	}
	whole, err := Completed(def)
	if err == nil {
		err = machine.ReserveQuota(sc, g.UUID, whole, doc)
	}
	if err != nil {
		return err
	}
	return provision.SetInstancePathLimits(g, sc, def)
}

func errNoManagedSave() error {
	return fault.New(fault.WrongState, fault.Domain, "the domain does not have a managed save image")
}

// Completed returns a definition completed as Define would, and refuses one that could not be defined. The
// definition in a saved image is used as it is, but its bounds must hold: otherwise its start could take
// all memory. The device aliases must be valid, because file names are made from them.
func Completed(def *domain.Definition) (*domain.Definition, error) {
	whole := def.Clone()
	if err := domainxml.Complete(whole, &domainxml.Host{}); err != nil {
		return nil, err
	}
	qemu.AssignAliases(whole)
	return whole, qemu.CheckAliases(&whole.Devices)
}

// redefined parses the definition that replaces the one of a saved machine, and refuses a different
// machine.
func redefined(saved *domain.Definition, doc string) (*domain.Definition, error) {
	was, err := Completed(saved)
	if err != nil {
		return nil, err
	}
	def, err := domainxml.Parse(doc, domainxml.Options{})
	if err != nil {
		return nil, err
	}
	whole, err := Completed(def)
	if err != nil {
		return nil, err
	}
	for _, differs := range []struct {
		what          string
		before, after any
	}{
		{"name", saved.Name, def.Name},
		{"uuid", saved.UUID, def.UUID},
		{"architecture", saved.OS.Arch, def.OS.Arch},
		{"machine", saved.OS.Machine, def.OS.Machine},
		{"memory", saved.Memory, def.Memory},
		{"memory of cells and modules together", was.Memory, whole.Memory},
		{"maxMemory", saved.MaxMemory, def.MaxMemory},
		{"memory slots", saved.MemorySlots, def.MemorySlots},
		{"vCPUs", saved.VCPUs.Current, def.VCPUs.Current},
		{"maximum of vCPUs", saved.VCPUs.Max, def.VCPUs.Max},
	} {
		if before, after := fmt.Sprint(differs.before), fmt.Sprint(differs.after); before != after {
			return nil, fault.New(fault.Invalid, fault.Config,
				"the saved machine cannot be changed: its %s must stay %s, and the new definition has %s", differs.what, before, after)
		}
	}
	before, after := machineDevices(saved), machineDevices(def)
	if lost := subtract(before, after); len(lost) > 0 {
		return nil, fault.New(fault.Invalid, fault.Config,
			"the saved machine cannot be changed: it has %s, and the new definition does not; start from the image's own definition", strings.Join(lost, ", "))
	}
	if added := subtract(after, before); len(added) > 0 {
		return nil, fault.New(fault.Invalid, fault.Config, "the saved machine cannot be changed: it has no %s", strings.Join(added, ", "))
	}
	provision.KeepQueues(def, saved)
	return def, nil
}

// subtract returns the elements of all that are not in some.
func subtract(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(some, name) })
}

// machineDevices names the devices in a machine's saved state, with their addresses.
func machineDevices(def *domain.Definition) []string {
	var names []string
	for _, d := range def.Devices.All() {
		switch d.(type) {
		case *device.Graphics, *device.Audio:
			continue // on the host's side only
		}
		name := d.Kind()
		if at := d.Common().Address; at != nil {
			name += " at " + at.String()
		}
		names = append(names, name)
	}
	return names
}
