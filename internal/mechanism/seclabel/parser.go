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

// parseTimeout bounds the compilation and loading of a profile.
const parseTimeout = 30 * time.Second

// maxOutput bounds the shown output of the parser, in bytes.
const maxOutput = 1 << 10

// Load loads a profile into the kernel, and replaces one of the same name. The parser has only the
// privilege to do that, and reads only the text. A replaced profile applies to processes that have it
// already.
func (h *Host) Load(ctx context.Context, p Profile) error {
	text, err := p.Text()
	if err != nil {
		return err
	}
	return h.parse(ctx, text, "--replace", "--skip-cache")
}

// Compile checks that a profile can be loaded, without the kernel.
func (h *Host) Compile(ctx context.Context, p Profile) error {
	text, err := p.Text()
	if err != nil {
		return err
	}
	return h.parse(ctx, text, "--skip-kernel-load", "--skip-cache")
}

func (h *Host) parse(ctx context.Context, text string, args ...string) error {
	ctx, stop := context.WithTimeout(ctx, parseTimeout)
	defer stop()
	c := exec.CommandContext(ctx, h.parser, append(args, "--quiet")...) //nolint:gosec // found in the daemon's own PATH
	c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	c.Stdin = strings.NewReader(text)
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	if err := kernel.RunConfined([]uintptr{unix.CAP_MAC_ADMIN}, c.Run); err != nil {
		words := strings.TrimSpace(said.String())
		return fault.Wrap(err, fault.Failed, fault.Host, "apparmor_parser refuses the guest's profile: %.*s", maxOutput, words)
	}
	return nil
}

// Unload removes the profile of a guest from the kernel.
func (h *Host) Unload(name string) error { return h.Root.RemoveProfile(name) }
