package authz

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

const example = `
version: 1
rules:
  - name: operators
    who: [user:1001, "group:2000", "dn:CN=*,O=Ops"]
    may: [read, start, stop]
    guests: ["web-*", "label=team:web", "tile=shop/3"]
  - name: builders
    who: user:1002
    may: [read, define, change, volumes]
    guests: build-*
    pools: [build]
    networks: [default]
    images: ["pool:build", /srv/build]
  - name: owners
    who: user:1003
    may: all
  - name: watchers
    who: everyone
    may: read
    guests: public-*
`

func user1(uid uint32, groups ...uint32) Principal {
	return LocalPrincipal(listener.Peer{PID: 7, UID: uid, GID: uid, Groups: groups})
}

// Promise: A1
func TestRules_Allows(t *testing.T) {
	r, err := ParseRules("access.yaml", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	ops := Principal{Subject: "CN=alice,O=Ops", Address: "10.0.0.1:5"}
	web, db := NewGuest("web-1", "", nil), NewGuest("db", "", nil)
	for _, c := range []struct {
		what string
		who  Principal
		verb Permission
		on   Resource
		want bool
	}{
		{"a name", user1(1001), Start, web, true},
		{"another name", user1(1001), Start, db, false},
		{"a label", user1(1001), Stop, NewGuest("db", "", fleet.Labels{"team": "web"}), true},
		{"a label's other value", user1(1001), Stop, NewGuest("db", "", fleet.Labels{"team": "db"}), false},
		{"a tile", user1(1001), Stop, NewGuest("x", "", fleet.Labels{"tile": "shop/3"}), true},
		{"another verb", user1(1001), Define, web, false},
		{"a group", user1(5, 2000), Start, web, true},
		{"another group", user1(5, 2001), Start, web, false},
		{"a certificate", ops, Start, web, true},
		{"another certificate", Principal{Subject: "CN=alice,O=Dev"}, Start, web, false},
		{"a subject that a local user cannot have", user1(0x7fffffff), Start, web, false},
		{"a list", user1(1001), Read, Resource{}, true},
		{"a pool", user1(1002), Volumes, Resource{Kind: Pool, Name: "build"}, true},
		{"another pool", user1(1002), Volumes, Resource{Kind: Pool, Name: "default"}, false},
		{"a pool that no rule names", user1(1001), Read, Resource{Kind: Pool, Name: "build"}, false},
		{"a network", user1(1002), Read, Resource{Kind: Network, Name: "default"}, true},
		{"the host", user1(1002), Read, Resource{Kind: Everything}, false},
		{"everything", user1(1003), Monitor, db, true},
		{"everything else", user1(1003), Secrets, Resource{Kind: Everything}, true},
		{"anybody", user1(9), Read, NewGuest("public-1", "", nil), true},
		{"anybody, more", user1(9), Start, NewGuest("public-1", "", nil), false},
		{"root", user1(0), Monitor, db, true},
		{"an unknown client that looks like root", LocalPrincipal(listener.Peer{Unknown: os.ErrInvalid}), Start, db, false},
		{"an unknown client that looks like a user", LocalPrincipal(listener.Peer{UID: 1001, Unknown: os.ErrInvalid}), Start, web, false},
		{"an unknown client that looks like a group's", LocalPrincipal(listener.Peer{GID: 2000, Unknown: os.ErrInvalid}), Start, web, false},
		{"a remote client that looks like root", Principal{Subject: "CN=x"}, Start, db, false},
	} {
		err := r.Check(c.who, c.verb, c.on)
		if (err == nil) != c.want {
			t.Errorf("%s: %v", c.what, err)
		}
		if err != nil && !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v is no refusal", c.what, err)
		}
	}
}

// Promise: A1
func TestRules_RefusalNamesMissingRight(t *testing.T) {
	r, err := ParseRules("/etc/lodge/access.yaml", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	err = r.Check(user1(1001), Define, NewGuest("web-1", "", nil))
	for _, part := range []string{"user 1001", `"define"`, "domain 'web-1'", "operators, watchers", "/etc/lodge/access.yaml"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q says nothing of %s", err, part)
		}
	}
}

func TestRules_Images(t *testing.T) {
	r, err := ParseRules("access.yaml", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	if p := r.AllowedPaths(user1(1002), Define, NewGuest("build-1", "", nil)); p.Anywhere || strings.Join(p.Places, " ") != "pool:build /srv/build" {
		t.Errorf("builders: %+v", p)
	}
	if p := r.AllowedPaths(user1(1002), Define, NewGuest("web-1", "", nil)); p.Anywhere || len(p.Places) > 0 {
		t.Errorf("a guest that is not theirs: %+v", p)
	}
	if p := r.AllowedPaths(user1(1003), Define, NewGuest("web-1", "", nil)); !p.Anywhere {
		t.Errorf("owners: %+v", p)
	}
}

// Promise: A4
func TestParseRules_Invalid(t *testing.T) {
	rule := func(lines string) string {
		return "version: 1\nrules:\n  - name: x\n    " + strings.ReplaceAll(lines, "\n", "\n    ")
	}
	for text, want := range map[string]string{
		"":                                       "cannot be read",
		"rules: []":                              "version: 1",
		"version: 2\nrules: []":                  "version: 1",
		"version: 1":                             "no list of rules",
		"version: 1\nrules: []\nmore: 1":         `line 3: the file has no "more"`,
		"version: 1\nrules: []\n---\nversion: 1": "more than one document",
		rule("who: everyone"):                    "line 3: rule \"x\" has no \"may\"",
		rule("may: read"):                        "line 3: rule \"x\" does not say \"who\"",
		rule("who: everyone\nmay: fly"):          `line 5: "fly"`,
		rule("who: bob\nmay: read"):              `line 4: "bob" names no client`,
		rule("who: user:no-such-user-here\nmay: read"):                                       "line 4: there is no user",
		rule("who: group:no-such-group-here\nmay: read"):                                     "line 4: there is no group",
		rule("who: everyone\nmay: read\nguests: state=running"):                              "line 6: rules select guests by",
		rule("who: everyone\nmay: read\nguests: []"):                                         "line 6: \"guests\" is empty",
		rule("who: everyone\nmay: read\nguests: [[a]]"):                                      "line 6: the value of",
		rule("who: everyone\nmay: define\nsecrets: [a]"):                                     "any secret with that",
		rule("who: everyone\nmay: all\nguests: a"):                                           "which reaches beyond",
		rule("who: everyone\nmay: read\nmay: all"):                                           "line 6: \"may\" comes twice",
		rule("who: everyone\nmay: define\nimages: etc"):                                      "line 6: \"etc\" is no place",
		rule("who: everyone\nmay: define\nimages: /"):                                        "line 6: \"/\" is no place",
		rule("who: everyone\nmay: define\nimages: /a/../b"):                                  "is no place",
		rule("who: everyone\nmay: define\nat most: {}"):                                      "line 6: \"at most\" is empty",
		rule("who: everyone\nmay: define\nat most: {disks: 1}"):                              "it has guests, memory, vcpus, interfaces, definitions, networks, pools, volumes",
		rule("who: everyone\nmay: define\nat most: {guests: 0}"):                             "line 6: \"0\" is no number of guests",
		rule("who: everyone\nmay: define\nat most: {memory: 64}"):                            "line 6: \"64\" is no size",
		rule("who: everyone\nmay: read\nat most: {guests: 1}"):                               "gives no right to make or enlarge",
		rule("who: everyone\nmay: define\nat most: {guests: 1}\nnetworks: a"):                "for guests but names no object",
		rule("who: &a everyone\nmay: *a"):                                                    "must be a word",
		rule("who: everyone\nmay: read") + "\n  - name: x\n    who: everyone\n    may: read": "two rules",
		"version: 1\nrules:\n\t- name: x":                                                    "line",

		"version: 1\nrules: []\n" + strings.Repeat("\n", maxFile): "a file of rules has at most",
	} {
		_, err := ParseRules("access.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "access.yaml") {
			t.Errorf("%q: got %v, want something with %s", text, err, want)
		}
	}
}

// Promise: A4
func TestReadRules_WritableByOthers(t *testing.T) {
	above := t.TempDir()
	folder := filepath.Join(above, "lodge")
	path, link := filepath.Join(folder, "access.yaml"), filepath.Join(above, "link.yaml")
	aside := filepath.Join(above, "aside")
	byAside := filepath.Join(aside, "link.yaml")
	for _, err := range []error{
		os.Chmod(above, 0o755), os.Mkdir(folder, 0o755), os.WriteFile(path, []byte(example), 0o600), os.Symlink(path, link),
		os.Mkdir(aside, 0o755), os.Symlink(path, byAside),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what, of, by string
		mode         os.FileMode
		kind         fault.Kind
	}{
		{"root's alone", path, path, 0o600, 0},
		{"writable by all", path, path, 0o622, fault.Denied},
		{"in a folder writable by all", folder, path, 0o777, fault.Denied},
		{"by a link into a folder writable by all", folder, link, 0o777, fault.Denied},
		{"by a link in a folder writable by all", aside, byAside, 0o777, fault.Denied},
		{"below a group's folder", above, path, 0o775, fault.Denied},
		{"below a sticky folder", above, path, 0o777 | os.ModeSticky, 0},
		{"by a link", path, link, 0o600, 0},
	} {
		was, err := os.Stat(c.of)
		if err == nil {
			err = os.Chmod(c.of, c.mode)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadRules(c.by); c.kind == 0 && err != nil || c.kind != 0 && !fault.Is(err, c.kind) {
			t.Errorf("rules %s: %v", c.what, err)
		}
		if err := os.Chmod(c.of, was.Mode()); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzParseRules(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("version: 1\nrules: [{name: a, who: everyone, may: all}]"))
	for _, rule := range []string{
		"who: [\"user:0\", \"group:root\", \"dn:CN=*\"], may: [define, volumes], guests: [\"tile=a/*\", \"label=a:b\"], at most: {guests: 20, memory: 64GiB, vcpus: 64}, images: [\"pool:a\", /srv/a], secrets: \"/srv/*\"",
		"who: \"user:no-such-user\", may: read", "who: \"group:99999999999\", may: read", "who: bob, may: fly", "who: everyone, may: define, images: /a/../b", "who: everyone, may: define, at most: {memory: 64}",
		"who: &a everyone, may: *a", "who: everyone, may: read, guests: [[a]]", "who: everyone, may: read, may: all",
	} {
		f.Add([]byte("version: 1\nrules: [{name: a, " + rule + "}]"))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := ParseRules("access.yaml", text)
		if err != nil {
			return
		}
		for _, one := range r.list {
			if len(one.who) == 0 || one.may == 0 {
				t.Errorf("rule %q says nothing", one.name)
			}
		}
	})
}

// A guest with unknown labels is not a guest without labels: rules that require their absence do not cover it.
// Nor do they cover links, which have no labels.
//
// Promise: A1
func TestRules_UnknownLabels(t *testing.T) {
	r, err := ParseRules("access.yaml", []byte(`version: 1
rules:
  - {name: others, who: "user:1001", may: [read, stop], guests: ["!label=team:infra"], images: /srv}
  - {name: untiled, who: "user:1002", may: [read, stop], guests: ["web-*,!tile=infra/*"], images: /srv}
  - {name: named, who: "user:1003", may: [read, stop], guests: ["web-*"], images: /srv}
`))
	if err != nil {
		t.Fatal(err)
	}
	defined := &domain.Definition{Name: "web-1"}
	member := func(def *domain.Definition, problem string) fleet.Member {
		return fleet.Member{View: &guest.View{Name: "web-1", UUID: "u", Inactive: def}, Problem: problem}
	}
	for what, o := range map[string]Resource{
		"one that is being made": GuestResource(member(nil, "")), "one whose marks cannot be read": GuestResource(member(defined, "wrong")), "one that has left": RemovedGuest("web-1", "u"),
	} {
		for uid, want := range map[uint32]bool{1001: false, 1002: false, 1003: true} {
			if _, got := r.Allows(user1(uid), Stop, o); got != want {
				t.Errorf("%s: user %d may stop it: %v", what, uid, got)
			}
		}
	}
	for uid := uint32(1001); uid <= 1003; uid++ {
		if _, got := r.Allows(user1(uid), Stop, GuestResource(member(defined, ""))); !got {
			t.Errorf("user %d may not stop one without labels", uid)
		}
	}
}
