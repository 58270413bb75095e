package seclabel

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// parseLimit is how long a profile may take to be compiled and loaded.
const parseLimit = 30 * time.Second

// maxSaid bounds what is shown of what the parser says, in bytes.
const maxSaid = 1 << 10

// Load gives the kernel a profile, in place of one of the same name. The parser has
// no privilege but to do that, and reads nothing but the text: a profile that is
// replaced holds for processes that have it already.
func (h *Host) Load(ctx context.Context, p Profile) error {
	text, err := p.Text()
	if err != nil {
		return err
	}
	return h.parse(ctx, text, "--replace", "--skip-cache")
}

// Compile sees whether a profile could be loaded, without the kernel.
func (h *Host) Compile(ctx context.Context, p Profile) error {
	text, err := p.Text()
	if err != nil {
		return err
	}
	return h.parse(ctx, text, "--skip-kernel-load", "--skip-cache")
}

func (h *Host) parse(ctx context.Context, text string, args ...string) error {
	ctx, stop := context.WithTimeout(ctx, parseLimit)
	defer stop()
	c := exec.CommandContext(ctx, h.parser, append(args, "--quiet")...) //nolint:gosec // found in the daemon's own PATH
	c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	c.Stdin = strings.NewReader(text)
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	if err := kernel.Confined([]uintptr{unix.CAP_MAC_ADMIN}, c.Run); err != nil {
		words := strings.TrimSpace(said.String())
		return fault.Wrap(err, fault.Failed, fault.Host, "apparmor_parser does not take the guest's profile: %.*s", maxSaid, words)
	}
	return nil
}

// Unload takes the profile out that was made for a guest.
func (h *Host) Unload(name string) error { return h.Root.RemoveProfile(name) }
