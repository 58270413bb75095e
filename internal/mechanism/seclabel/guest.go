package seclabel

import (
	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Guest holds the labels of one guest while it runs. The guest's run record stores it.
type Guest struct {
	Model string
	// Process is the context of its processes, or the name of their profile.
	Process string
	// Own is the context of files that are made for this guest alone: its sandbox, its log. Empty under
	// AppArmor.
	Own string `json:",omitempty"`
	// Image, Shared and Content are the contexts of files that only this guest writes, that several guests
	// write, and that any guest may read. Empty under AppArmor, and if files are not to be labelled.
	Image, Shared, Content string `json:",omitempty"`
	// Pair separates the guest from others; nil: its label has no pair.
	Pair *Pair `json:",omitempty"`
}

// Request is the part of a definition that is about labels.
type Request struct {
	UUID string
	// Emulated: the guest runs without KVM.
	Emulated bool
	// Label is the label in the definition; empty: one is made.
	Label string
	// Base is the label to start from; empty: the policy's.
	Base string
	// Leave: files have the right labels already and are not labelled.
	Leave bool
}

// AssignLabel chooses the labels of a guest. Its pair stays taken until Release.
func (h *Host) AssignLabel(w Request) (Guest, error) {
	if h.Model == AppArmor {
		return h.assignProfile(w)
	}
	base := h.native
	if w.Emulated {
		base = h.emulated
	}
	g := Guest{Model: SELinux}
	if w.Label != "" {
		fixed, err := ParseContext(w.Label)
		if err != nil {
			return g, err
		}
		if pair, has := PairOf(w.Label); has {
			if err := h.Pairs.Claim(pair, w.UUID); err != nil {
				return g, err
			}
			g.Pair = &pair
		}
		g.Process = fixed.String()
		h.labelFiles(&g, fixed, w.Leave)
		return g, nil
	}
	if w.Base != "" {
		var err error
		if base, err = ParseContext(w.Base); err != nil {
			return g, err
		}
	}
	if !h.mcs {
		g.Process = base.String()
		h.labelFiles(&g, base, w.Leave)
		return g, nil
	}
	pair, err := h.Pairs.Take(w.UUID)
	if err != nil {
		return g, err
	}
	own := base.withLevel(pair.level(base.lowLevel()))
	g.Pair, g.Process = &pair, own.String()
	h.labelFiles(&g, own, w.Leave)
	return g, nil
}

// labelFiles sets the contexts of the guest's files: the policy's types, at the level of its processes, at
// the lowest level, and at the level that the policy has.
func (h *Host) labelFiles(g *Guest, process Context, leave bool) {
	own, shared := h.image, h.image
	if process.Level != "" {
		own, shared = h.image.withLevel(process.Level), h.image.withLevel(process.lowLevel())
	}
	g.Own = own.String()
	if !leave {
		g.Image, g.Shared, g.Content = own.String(), shared.String(), h.content.String()
	}
}

// assignProfile names the guest's profile: a unique name, or that of a loaded profile in the definition.
func (h *Host) assignProfile(w Request) (Guest, error) {
	g := Guest{Model: AppArmor, Process: h.prefix + w.UUID}
	switch {
	case w.Base != "":
		return g, fault.New(fault.Unsupported, fault.Config, "seclabel/baselabel of model apparmor is not supported: profiles are made from what the guest needs")
	case w.Label == "":
		return g, checkName(g.Process)
	}
	g.Process = w.Label
	if err := checkName(w.Label); err != nil {
		return g, err
	}
	loaded, err := h.Root.Profiles()
	if err != nil {
		return g, fault.Wrap(err, fault.Failed, fault.Host, "cannot list the loaded AppArmor profiles")
	}
	if loaded[w.Label] == "" {
		return g, fault.New(fault.NotFound, fault.Config, "the AppArmor profile %s is not loaded", w.Label)
	}
	return g, nil
}

// HasOwnProfile reports whether the guest's profile was made for it alone.
func (h *Host) HasOwnProfile(g Guest, uuid string) bool {
	return g.Model == AppArmor && g.Process == h.prefix+uuid
}

// Reserve records that a running guest has labels from an earlier daemon.
func (h *Host) Reserve(g Guest, uuid string) {
	if h.Pairs != nil && g.Pair != nil {
		h.Pairs.Reserve(*g.Pair, uuid)
	}
}

// Release frees a guest's labels, once no process or file has them any more.
func (h *Host) Release(g Guest, uuid string) {
	if h.Pairs != nil && g.Pair != nil {
		h.Pairs.Release(*g.Pair, uuid)
	}
}
