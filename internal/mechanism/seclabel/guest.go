package seclabel

import (
	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Guest is what one guest is called while it runs. Its journal is made of it.
type Guest struct {
	Model string
	// Process is the context of its processes, or the name of their profile.
	Process string
	// Own is the context of what is made for this guest alone and is nobody's file: its
	// chamber, its log. Empty under AppArmor.
	Own string `json:",omitempty"`
	// Image, Shared and Content are contexts of files: that this guest alone writes,
	// that several guests write, and that any guest may read. Empty under AppArmor, and
	// where files are not to be labelled.
	Image, Shared, Content string `json:",omitempty"`
	// Pair is what keeps it apart from other guests; nil: its label says something else.
	Pair *Pair `json:",omitempty"`
}

// Wish is what a definition says of labels.
type Wish struct {
	UUID string
	// Emulated says that the guest runs without KVM.
	Emulated bool
	// Label is one that the definition names; empty: one is made.
	Label string
	// Base is what it is made from; empty: the policy's.
	Base string
	// Leave says that files have the labels already that they need.
	Leave bool
}

// Name gives a guest what it is called. A pair that it has is its own until Forget.
func (h *Host) Name(w Wish) (Guest, error) {
	if h.Model == AppArmor {
		return h.nameProfile(w)
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
		h.nameFiles(&g, fixed, w.Leave)
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
		h.nameFiles(&g, base, w.Leave)
		return g, nil
	}
	pair, err := h.Pairs.Take(w.UUID)
	if err != nil {
		return g, err
	}
	own := base.within(pair.in(base.low()))
	g.Pair, g.Process = &pair, own.String()
	h.nameFiles(&g, own, w.Leave)
	return g, nil
}

// nameFiles gives what the guest's files are called: of the policy's types, at the
// level of its processes, at the lowest, and as the policy has it.
func (h *Host) nameFiles(g *Guest, process Context, leave bool) {
	own, shared := h.image, h.image
	if process.Level != "" {
		own, shared = h.image.within(process.Level), h.image.within(process.low())
	}
	g.Own = own.String()
	if !leave {
		g.Image, g.Shared, g.Content = own.String(), shared.String(), h.content.String()
	}
}

// nameProfile gives the guest's profile a name that no other guest of this host has,
// or the name of one that is loaded already.
func (h *Host) nameProfile(w Wish) (Guest, error) {
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
		return g, fault.Wrap(err, fault.Failed, fault.Host, "cannot tell which AppArmor profiles are loaded")
	}
	if loaded[w.Label] == "" {
		return g, fault.New(fault.NotFound, fault.Config, "the AppArmor profile %s is not loaded", w.Label)
	}
	return g, nil
}

// Made reports whether the guest's profile is one that is made for it alone.
func (h *Host) Made(g Guest, uuid string) bool {
	return g.Model == AppArmor && g.Process == h.prefix+uuid
}

// Hold notes that a guest that runs is called so, by an earlier daemon.
func (h *Host) Hold(g Guest, uuid string) {
	if h.Pairs != nil && g.Pair != nil {
		h.Pairs.Hold(*g.Pair, uuid)
	}
}

// Forget gives back what a guest was called, once nothing is called so any more.
func (h *Host) Forget(g Guest, uuid string) {
	if h.Pairs != nil && g.Pair != nil {
		h.Pairs.Release(*g.Pair, uuid)
	}
}
