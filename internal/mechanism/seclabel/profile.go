package seclabel

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Profile is what AppArmor lets one guest's QEMU do: what its chamber and its
// arguments need, and nothing else. There are no rules that take anything away, and
// no files that are included: the text says all.
type Profile struct {
	Name string
	// Peer is the profile of the daemon, which ends and looks after the guest.
	Peer string
	// Network lets QEMU use the host's network.
	Network bool
	Rules   []Rule
}

// Rule allows a file, or all that lies in a directory.
type Rule struct {
	Path string
	// Tree says that it is a directory, and all that lies in it.
	Tree bool `json:",omitempty"`
	// May holds the letters of what is allowed: r, w, m (map executable), k (lock).
	May string
	// For names what needs it and can go before the guest does; empty: nothing does.
	For string `json:",omitempty"`
}

// name is what a profile may be called: nothing in it means anything to the parser.
var name = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,199}$`)

func checkName(text string) error {
	if !name.MatchString(text) {
		return fault.New(fault.Invalid, fault.Config, "%.100q is no name of a profile of AppArmor's for guests: letters, digits, and _ . -", text)
	}
	return nil
}

// may is what a rule can allow.
var may = regexp.MustCompile(`^[rwmk]{1,4}$`)

// maxPath bounds a path in a profile, in bytes: the kernel knows no longer ones.
const maxPath = 4096

// literal writes a path so that it means itself and nothing else. A path that
// holds what the parser has no sure way to write is refused: quotes, backslashes,
// variables, and what is no text.
func literal(path string) (string, error) {
	if !strings.HasPrefix(path, "/") || len(path) > maxPath {
		return "", fault.New(fault.Invalid, fault.Config, "%.100q can be no path in a profile of AppArmor's: it is not absolute, or too long", path)
	}
	var b strings.Builder
	for i, c := range []byte(path) {
		switch {
		case c < ' ' || c == 0x7f || c == '"' || c == '\\' || c == '@' && strings.HasPrefix(path[i:], "@{"):
			return "", fault.New(fault.Invalid, fault.Config, "the path %.200q cannot be told to AppArmor: rename it, without %q", path, string(rune(c)))
		case strings.IndexByte("*?[]{}^,", c) >= 0: // else they are patterns
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	return b.String(), nil
}

// peer is what may stand for the daemon's own profile.
var peer = regexp.MustCompile(`^[A-Za-z0-9/_.-]{1,200}$`)

// Text is the profile as the parser takes it, the same for the same needs.
func (p Profile) Text() (string, error) {
	if err := checkName(p.Name); err != nil {
		return "", err
	}
	lines := []string{}
	for _, r := range p.Rules {
		if !may.MatchString(r.May) {
			return "", fault.New(fault.Internal, fault.Host, "%q is nothing that a profile may allow", r.May)
		}
		path, err := literal(r.Path)
		if err != nil {
			return "", err
		}
		if r.Tree {
			// However it is written: the parser takes several slashes for one.
			if filepath.Clean(r.Path) == "/" {
				return "", fault.New(fault.Invalid, fault.Config, "%.100q would let a guest have the whole host in AppArmor's eyes: name a directory", r.Path)
			}
			lines = append(lines, fmt.Sprintf("  \"%s/\" r,\n", strings.TrimSuffix(path, "/")))
			path = strings.TrimSuffix(path, "/") + "/**"
		}
		lines = append(lines, fmt.Sprintf("  \"%s\" %s,\n", path, r.May))
	}
	slices.Sort(lines)
	var b strings.Builder
	// What is handed over lies in another mount namespace, and has its path from there.
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

// peers are who may signal the guest and look at it: the daemon, and an administrator
// who is not confined.
func (p Profile) peers() []string {
	const free = "unconfined"
	if p.Peer == free || !peer.MatchString(p.Peer) {
		return []string{free}
	}
	return []string{free, p.Peer}
}
