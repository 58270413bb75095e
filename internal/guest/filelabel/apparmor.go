package filelabel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/mechanism/seclabel"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// Confine makes the AppArmor profile of a QEMU that starts, from its sandbox and the files that it is
// passed. It does nothing under SELinux.
func (l *Labels) Confine(ctx context.Context, place *sandbox.Spec, p *qemu.Plan, handed []*os.File) error {
	if l == nil || l.Host == nil || !l.Host.HasOwnProfile(l.Guest, l.UUID) {
		return nil
	}
	return l.inTurn(ctx, func() error {
		l.Profile = &seclabel.Profile{Name: l.Process, Peer: l.Host.Own, Network: place.HostNetwork || len(p.Listeners) > 0}
		for alias, a := range p.Disks {
			l.allowImages(p.Definition.Devices.ByAlias(alias), a)
		}
		l.addRules("", place.AccessList(), handed)
		return l.loadProfile(ctx)
	})
}

// loadProfile loads the profile into the kernel. The caller must have the turn.
func (l *Labels) loadProfile(ctx context.Context) error {
	if err := l.WriteJournal(); err != nil { // first: without the journal no later daemon would unload it
		return err
	}
	return l.Host.Load(ctx, *l.Profile)
}

// Admit permits the guest what a device needs: labels on its images, and rules for its files. place is nil
// if the sandbox has everything already.
func (l *Labels) Admit(ctx context.Context, p *qemu.Plan, dev device.Device, place *sandbox.Spec) error {
	if l == nil || l.Host == nil {
		return nil
	}
	if d, is := dev.(*device.Disk); is {
		if _, err := l.Lend(ctx, l.DiskLabels(d, p.Disks[d.Alias])); err != nil {
			return err
		}
	} else if l.Model == seclabel.SELinux {
		var outputs []FileLabel
		for path, f := range p.Files {
			if !IsHostFile(path) {
				outputs = append(outputs, FileLabel{f, l.Image, OwnerOf(dev)})
			}
		}
		if _, err := l.Lend(ctx, outputs); err != nil {
			return err
		}
	}
	if l.Profile == nil {
		return nil
	}
	return l.inTurn(ctx, func() error {
		var reach []sandbox.Access
		if place != nil {
			reach = place.AccessList()
		}
		if d, is := dev.(*device.Disk); is {
			l.allowImages(d, p.Disks[d.Alias])
		} else {
			l.addRules(OwnerOf(dev), reach, passedFiles(p))
		}
		return l.loadProfile(ctx)
	})
}

// allowImages permits the images that a disk is passed. Each image has rules of its own, because a block
// job may remove one.
func (l *Labels) allowImages(dev device.Device, a device.DiskAttachment) {
	d, is := dev.(*device.Disk)
	if !is {
		return
	}
	numbers := d.Nodes()
	for i, layer := range a.Layers {
		l.addRules(ImageOwner(numbers[i]), nil, []*os.File{layer.File})
	}
}

// addRules adds rules to the profile. A rule of the guest itself is not repeated for a device.
func (l *Labels) addRules(by string, reach []sandbox.Access, handed []*os.File) {
	add := func(rule seclabel.Rule) {
		general := rule
		general.For = ""
		if !slices.Contains(l.Profile.Rules, rule) && !slices.Contains(l.Profile.Rules, general) {
			l.Profile.Rules = append(l.Profile.Rules, rule)
		}
	}
	for _, a := range reach {
		rule := seclabel.Rule{Path: a.Path, Tree: a.Tree, May: "r", For: by}
		if a.Execute {
			rule.May = "rm"
		}
		if a.Write {
			rule.May = "rwk"
		}
		add(rule)
	}
	for _, f := range handed {
		if rule, is := ruleFor(f); is {
			rule.For = by
			add(rule)
		}
	}
}

// ruleFor returns the rule for an open file: its path as the kernel knows it, and its access mode. A file
// without a path needs no rule.
func ruleFor(f *os.File) (seclabel.Rule, bool) {
	if f == nil {
		return seclabel.Rule{}, false
	}
	var path string
	var how int
	err := withDescriptor(f, func(fd int) (err error) {
		if how, err = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err == nil {
			path, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		}
		return err
	})
	if err != nil || strings.HasSuffix(path, " (deleted)") {
		return seclabel.Rule{}, false
	}
	if strings.HasPrefix(path, "socket:") { // a listening socket has a path
		path = f.Name()
		return seclabel.Rule{Path: path, May: "rw"}, filepath.IsAbs(path)
	}
	if !filepath.IsAbs(path) {
		return seclabel.Rule{}, false
	}
	switch how & unix.O_ACCMODE {
	case unix.O_RDONLY:
		return seclabel.Rule{Path: path, May: "rk"}, true
	case unix.O_WRONLY:
		return seclabel.Rule{Path: path, May: "w"}, true
	}
	return seclabel.Rule{Path: path, May: "rwk"}, true
}

func imagesOf(a device.DiskAttachment) []*os.File {
	var all []*os.File
	for _, layer := range a.Layers {
		all = append(all, layer.File)
	}
	return all
}

// passedFiles returns all files that a plan passes to QEMU.
func passedFiles(p *qemu.Plan) []*os.File {
	var all []*os.File
	for _, a := range p.Disks {
		all = append(all, imagesOf(a)...)
	}
	for _, n := range p.NICs {
		all = append(append(all, n.Tap...), n.VHost...)
	}
	for _, files := range []map[string]*os.File{p.Files, p.Sockets} {
		for _, f := range files {
			all = append(all, f)
		}
	}
	return all
}

// removeRules removes the rules of a device from the profile. The caller must have the turn.
func (l *Labels) removeRules(ctx context.Context, by string) error {
	if l.Profile == nil || l.Host == nil || by == "" {
		return nil
	}
	n, all := len(l.Profile.Rules), owners(by)
	l.Profile.Rules = slices.DeleteFunc(l.Profile.Rules, func(r seclabel.Rule) bool { return slices.Contains(all, r.For) })
	if len(l.Profile.Rules) == n {
		return nil
	}
	return l.loadProfile(ctx)
}

// unloadProfile removes the guest's profile from the kernel.
func (l *Labels) unloadProfile() error {
	if err := l.Root.RemoveProfile(l.Profile.Name); err != nil {
		return err
	}
	l.Profile = nil
	return nil
}
