package seclabel

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Profile is the AppArmor profile of one guest's QEMU. It permits the needs of its sandbox and its arguments, and
// AppArmor refuses all else. It has no deny rules and includes no files, so the text is complete.
type Profile struct {
	Name string
	// Peer is the profile of the daemon, which signals and traces the guest.
	Peer string
	// Network lets QEMU use the host's network.
	Network bool
	Rules   []Rule
}

// Rule permits a file, or all files below a directory.
type Rule struct {
	Path string
	// Tree: the path is a directory, and the rule covers all below it.
	Tree bool `json:",omitempty"`
	// May holds the permitted letters: r, w, m (map executable), k (lock).
	May string
	// For names the device that needs the rule and can be removed before the guest ends; empty: none.
	For string `json:",omitempty"`
}

// name matches a profile's name: no character of it has a meaning in the parser's syntax.
var name = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,199}$`)

func checkName(text string) error {
	if !name.MatchString(text) {
		return fault.New(fault.Invalid, fault.Config, "%.100q is not a valid name of an AppArmor profile for guests; use letters, digits, and _ . -", text)
	}
	return nil
}

// permissions matches the letters that a rule may permit.
var permissions = regexp.MustCompile(`^[rwmk]{1,4}$`)

// maxPath bounds a path in a profile, in bytes: the kernel's PATH_MAX.
const maxPath = 4096

// quotePath quotes a path so that the parser reads it literally. Paths that cannot be quoted safely are
// refused: with quotes, backslashes, variables or control characters.
func quotePath(path string) (string, error) {
	if !strings.HasPrefix(path, "/") || len(path) > maxPath {
		return "", fault.New(fault.Invalid, fault.Config, "%.100q is not a valid path in an AppArmor profile: it is not absolute, or too long", path)
	}
	var b strings.Builder
	for i, c := range []byte(path) {
		switch {
		case c < ' ' || c == 0x7f || c == '"' || c == '\\' || c == '@' && strings.HasPrefix(path[i:], "@{"):
			return "", fault.New(fault.Invalid, fault.Config, "AppArmor does not support the path %.200q; rename it without %q", path, string(rune(c)))
		case strings.IndexByte("*?[]{}^,", c) >= 0: // else they are patterns
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	return b.String(), nil
}

// peer matches the name of the daemon's own profile.
var peer = regexp.MustCompile(`^[A-Za-z0-9/_.-]{1,200}$`)

// Text returns the profile in the parser's syntax; equal rules give equal text.
func (p Profile) Text() (string, error) {
	if err := checkName(p.Name); err != nil {
		return "", err
	}
	lines := []string{}
	for _, r := range p.Rules {
		if !permissions.MatchString(r.May) {
			return "", fault.New(fault.Internal, fault.Host, "%q is not a permission of a profile", r.May)
		}
		path, err := quotePath(r.Path)
		if err != nil {
			return "", err
		}
		if r.Tree {
			// The parser reads several slashes as one.
			if filepath.Clean(r.Path) == "/" {
				return "", fault.New(fault.Invalid, fault.Config, "%.100q would permit the guest the whole host; name a directory", r.Path)
			}
			lines = append(lines, fmt.Sprintf("  \"%s/\" r,\n", strings.TrimSuffix(path, "/")))
			path = strings.TrimSuffix(path, "/") + "/**"
		}
		lines = append(lines, fmt.Sprintf("  \"%s\" %s,\n", path, r.May))
	}
	slices.Sort(lines)
	var b strings.Builder
	// Files that are handed over lie in another mount namespace, and keep their path from there.
	fmt.Fprintf(&b, "profile \"%s\" flags=(attach_disconnected) {\n", p.Name)
	for _, line := range slices.Compact(lines) {
		b.WriteString(line)
	}
	for _, by := range p.peers() {
		fmt.Fprintf(&b, "  signal (receive) peer=\"%s\",\n  ptrace (readby, tracedby) peer=\"%s\",\n", by, by)
	}
	fmt.Fprintf(&b, "  signal (send, receive) peer=\"%s\",\n", p.Name)
	b.WriteString("  unix (create, bind, listen, accept, getattr, setattr, getopt, setopt, send, receive, shutdown),\n")
	if p.Network {
		b.WriteString("  network inet,\n  network inet6,\n  network netlink raw,\n")
	}
	b.WriteString("}\n")
	return b.String(), nil
}

// peers are the profiles that may signal and trace the guest: the daemon's, and unconfined for an
// administrator.
func (p Profile) peers() []string {
	const free = "unconfined"
	if p.Peer == free || !peer.MatchString(p.Peer) {
		return []string{free}
	}
	return []string{free, p.Peer}
}
