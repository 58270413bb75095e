package seclabel_test

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/seclabel"
)

func TestProfile_Text(t *testing.T) {
	p := seclabel.Profile{Name: "lodge-x", Peer: "lodged", Network: true, Rules: []seclabel.Rule{
		{Path: "/var/lib/images/a b.qcow2", May: "rwk", For: "image 1"},
		{Path: "/room/usr", Tree: true, May: "rm"},
		{Path: "/var/lib/images/a b.qcow2", May: "rwk"},
		{Path: "/x/[1],{2}^*?", May: "r"},
	}}
	const want = `profile "lodge-x" flags=(attach_disconnected) {
  "/room/usr/" r,
  "/room/usr/**" rm,
  "/var/lib/images/a b.qcow2" rwk,
  "/x/\[1\]\,\{2\}\^\*\?" r,
  signal (receive) peer="unconfined",
  ptrace (readby, tracedby) peer="unconfined",
  signal (receive) peer="lodged",
  ptrace (readby, tracedby) peer="lodged",
  signal (send, receive) peer="lodge-x",
  unix (create, bind, listen, accept, getattr, setattr, getopt, setopt, send, receive, shutdown),
  network inet,
  network inet6,
  network netlink raw,
}
`
	text, err := p.Text()
	if err != nil || text != want {
		t.Errorf("it says (%v)\n%s", err, text)
	}
}

// hostile are paths that try to add more to a profile than a path.
var hostile = []string{
	"/a\" rw,\n  /etc/shadow r,\n  \"/b", "/a\nfile,\n", "/a\\", "/a\\\" rw,", "/@{HOME}/x", "/a\x00b", "/a\x7f", "/a\tb", "relative", "", "#include <x>",
	"/" + strings.Repeat("x", 5000),
}

// plain are odd paths without a second meaning.
var plain = []string{
	"/a b", "/a,b", "/{a,b}", "/**", "/a?", "/[a-z]", "/^x", "/a#b", "/a'b", "/é/ü", "/a}", "/a -> b", "/a@b", "/a=b", "/a rwx", "/a,", "/<x>", "/a(b)", "/a!b", "/$x", "/a%b", "/a~b", "/a|b", "/a;b", "/a&b", "/a`b", "/\xff",
}

// line matches every form of a rule for a file.
var line = regexp.MustCompile(`^  "/([^"\\*?\[\]{}^,\x00-\x1f\x7f]|\\[*?\[\]{}^,])*(/\*\*|/)?" [rwmk]{1,4},$`)

// holds checks that a profile has only rules for files.
func holds(t *testing.T, p seclabel.Profile) {
	t.Helper()
	text, err := p.Text()
	if err != nil {
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%q fails: %v", p.Rules[0].Path, err)
		}
		return
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	rules := lines[1 : len(lines)-fixedLines]
	if len(rules) == 0 || len(rules) > 2*len(p.Rules) {
		t.Fatalf("%q makes %d lines:\n%s", p.Rules[0].Path, len(rules), text)
	}
	for _, l := range rules {
		if !line.MatchString(l) {
			t.Errorf("%q makes the line %q", p.Rules[0].Path, l)
		}
	}
}

// fixedLines are the lines after the rules for files.
const fixedLines = 5

func of(path string, tree bool) seclabel.Profile {
	return seclabel.Profile{Name: "lodge-x", Peer: "unconfined", Rules: []seclabel.Rule{{Path: path, Tree: tree, May: "rw"}}}
}

// Promise: I9
func TestProfile_HostilePaths(t *testing.T) {
	for _, path := range hostile {
		if text, err := of(path, false).Text(); err == nil {
			t.Errorf("%q is taken:\n%s", path, text)
		}
	}
	for _, path := range plain {
		if _, err := of(path, false).Text(); err != nil {
			t.Errorf("%q is refused: %v", path, err)
		}
		holds(t, of(path, false))
		holds(t, of(path, true))
	}
	for _, path := range []string{"/", "//", "/./", "/x/.."} {
		if text, err := of(path, true).Text(); !fault.Is(err, fault.Invalid) {
			t.Errorf("all below %q is taken (%v):\n%s", path, err, text)
		}
	}
	for _, name := range []string{"", "a b", "x\"", "a\n", "a{b}", "//", strings.Repeat("x", 300)} {
		p := of("/x", false)
		p.Name = name
		if text, err := p.Text(); err == nil {
			t.Errorf("the name %q is taken:\n%s", name, text)
		}
	}
	p := of("/x", false)
	p.Peer = "x\" },\n"
	holds(t, p)
	p.Rules[0].May = "rwx,"
	if text, err := p.Text(); err == nil {
		t.Errorf("what may not be allowed is:\n%s", text)
	}
}

// Promise: I9
func FuzzProfile_Path(f *testing.F) {
	for _, path := range append(hostile, plain...) {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		holds(t, of(path, false))
		holds(t, of(path, true))
	})
}

// TestProfile_AcceptedByParser compiles profiles with AppArmor's own parser, without a kernel.
// Promise: I9
func TestProfile_AcceptedByParser(t *testing.T) {
	parser, err := exec.LookPath("apparmor_parser")
	if err != nil {
		t.Skip("needs apparmor_parser, of the package apparmor: ", err)
	}
	h := seclabel.At(kernel.Root{}, parser)
	p := seclabel.Profile{Name: "lodge-x", Peer: "unconfined", Network: true, Rules: []seclabel.Rule{{Path: "/room/usr", Tree: true, May: "rm"}}}
	for _, path := range plain {
		p.Rules = append(p.Rules, seclabel.Rule{Path: path, May: "rwk"}, seclabel.Rule{Path: path, Tree: true, May: "r"})
	}
	if err := h.Compile(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	// The parser does refuse a text that is no profile.
	if out, err := exec.CommandContext(t.Context(), parser, "-Q", "-K", "/dev/null/none").CombinedOutput(); err == nil {
		t.Errorf("it takes anything: %s", out)
	}
}
