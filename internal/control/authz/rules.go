package authz

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
)

// Bounds of a file of rules.
const (
	maxFile  = 1 << 20 // bytes
	maxRules = 1000
	maxItems = 1000 // of one list
)

// Rules are a parsed file of rules. They are immutable.
type Rules struct {
	path string
	list []*rule
}

// rule allows some clients some actions. No rule forbids anything: an action that no rule allows is refused.
type rule struct {
	name string
	who  []matcher
	may  permissionSet
	// namesObjects says that the rule covers only the objects named below; otherwise it covers everything.
	namesObjects bool
	guests       []fleet.Selector
	pools        []string // globs
	networks     []string // globs
	// anyFile says that definitions may name any file of the host. Otherwise images are the places for files.
	anyFile bool
	images  []string
	// secrets are the secrets that definitions may use, as globs for UUIDs and for usages.
	secrets []string
	// quota bounds the total of the objects that the rule covers.
	quota usage
}

// ReadRules reads a file of rules. An error names the line and the mistake.
func ReadRules(path string) (*Rules, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Config, "cannot read the rules")
	}
	defer func() { _ = f.Close() }()
	if err := checkOwner(f); err != nil {
		return nil, err
	}
	if err := checkFolders(path); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Config, "cannot read the rules")
	}
	return ParseRules(path, text)
}

// checkFolders refuses rules that another user could replace, in a folder above them or above a link that
// leads to them.
func checkFolders(path string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Config, "cannot look at %s", path)
	}
	for _, at := range []string{path, real} {
		at, err := filepath.Abs(at)
		for at != "/" && err == nil {
			at = filepath.Dir(at)
			var st unix.Stat_t
			if err = unix.Stat(at, &st); err == nil && st.Mode&unix.S_ISVTX != 0 {
				st.Mode &^= 0o022 // in a sticky folder, others cannot replace files that they do not own
			}
			if err == nil && !onlyOursWritable(st.Uid, st.Mode) {
				return fault.New(fault.Denied, fault.Config, "users other than root can replace %s, because they can write to %s; chown it to root and chmod it go-w", path, at)
			}
		}
		if err != nil {
			return fault.Wrap(err, fault.Failed, fault.Config, "cannot look at %s", at)
		}
	}
	return nil
}

// onlyOursWritable says whether only root and the daemon's user can write to a file or folder.
func onlyOursWritable(uid, mode uint32) bool {
	return safepath.TrustedOwner(uid) && mode&0o022 == 0
}

// checkOwner refuses rules that a user other than root and the daemon's can write.
func checkOwner(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Config, "cannot look at %s", f.Name())
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fault.New(fault.Invalid, fault.Config, "%s is not a regular file", f.Name())
	case !onlyOursWritable(st.Uid, st.Mode):
		return fault.New(fault.Denied, fault.Config, "%s can be written by users other than root; chown it to root and chmod it go-w", f.Name())
	}
	return nil
}

// ParseRules parses the text of a file of rules.
func ParseRules(path string, text []byte) (*Rules, error) {
	r := &Rules{path: path}
	if err := r.parse(text); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, fault.Config, "%s", path)
	}
	return r, nil
}

func ruleError(at *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: %s", at.Line, fmt.Sprintf(format, args...))
}

func (r *Rules) parse(text []byte) error {
	if len(text) > maxFile {
		return fmt.Errorf("a file of rules has at most %d bytes", maxFile)
	}
	var doc yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&doc); err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	if err := decoder.Decode(new(yaml.Node)); err != io.EOF { //nolint:errorlint // the decoder returns io.EOF unwrapped
		return fmt.Errorf("there is more than one document")
	}
	top, err := fields(doc.Content[0], "the file", "version", "rules")
	if err != nil {
		return err
	}
	if v := top["version"]; v == nil || v.Value != "1" {
		return ruleError(doc.Content[0], "the file lacks \"version: 1\", the only supported version")
	}
	if top["rules"] == nil || top["rules"].Kind != yaml.SequenceNode {
		return ruleError(doc.Content[0], "the file has no list of rules")
	}
	if n := len(top["rules"].Content); n > maxRules {
		return ruleError(top["rules"], "%d rules are too many; at most %d", n, maxRules)
	}
	for _, node := range top["rules"].Content {
		one, err := parseRule(node)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(r.list, func(other *rule) bool { return other.name == one.name }) {
			return ruleError(node, "there are two rules %q", one.name)
		}
		r.list = append(r.list, one)
	}
	return nil
}

// fields returns the values of a mapping, and refuses unknown keys.
func fields(node *yaml.Node, what string, known ...string) (map[string]*yaml.Node, error) {
	if node.Kind != yaml.MappingNode {
		return nil, ruleError(node, "%s is a list of \"name: value\" lines", what)
	}
	found := map[string]*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		switch {
		case !slices.Contains(known, key.Value):
			return nil, ruleError(key, "%s has no %q; it has %s", what, key.Value, strings.Join(known, ", "))
		case found[key.Value] != nil:
			return nil, ruleError(key, "%q comes twice", key.Value)
		}
		found[key.Value] = node.Content[i+1]
	}
	return found, nil
}

// items returns the items of a list; a single item may stand without one.
func items(node *yaml.Node, what string) ([]*yaml.Node, error) {
	list := []*yaml.Node{node}
	if node.Kind == yaml.SequenceNode {
		list = node.Content
	}
	switch {
	case len(list) == 0:
		return nil, ruleError(node, "%q is empty; remove it, or give it a value", what)
	case len(list) > maxItems:
		return nil, ruleError(node, "%d items under %q are too many; at most %d", len(list), what, maxItems)
	}
	for _, item := range list {
		if item.Kind != yaml.ScalarNode || item.Value == "" || item.Tag == "!!null" {
			return nil, ruleError(item, "the value of %q must be a word or a list of words", what)
		}
	}
	return list, nil
}

// ruleKeys are the keys of a rule whose values are lists, with the function that adds one item to the rule.
var ruleKeys = []struct {
	key string
	add func(*rule, *yaml.Node) error
}{
	{"who", (*rule).addClient},
	{"may", (*rule).addPermission},
	{"guests", (*rule).addGuests},
	{"pools", func(r *rule, n *yaml.Node) error {
		r.namesObjects, r.pools = true, append(r.pools, n.Value)
		return nil
	}},
	{"networks", func(r *rule, n *yaml.Node) error {
		r.namesObjects, r.networks = true, append(r.networks, n.Value)
		return nil
	}},
	{"images", (*rule).addImages},
	{"secrets", func(r *rule, n *yaml.Node) error { r.secrets = append(r.secrets, n.Value); return nil }},
}

func parseRule(node *yaml.Node) (*rule, error) {
	known := []string{"name", atMost}
	for _, p := range ruleKeys {
		known = append(known, p.key)
	}
	given, err := fields(node, "a rule", known...)
	if err != nil {
		return nil, err
	}
	if given["name"] == nil || given["name"].Kind != yaml.ScalarNode || given["name"].Value == "" {
		return nil, ruleError(node, "a rule has no name; errors and the audit need one")
	}
	r := &rule{name: given["name"].Value}
	for _, p := range ruleKeys {
		if given[p.key] == nil {
			continue
		}
		list, err := items(given[p.key], p.key)
		if err != nil {
			return nil, err
		}
		for _, item := range list {
			if err := p.add(r, item); err != nil {
				return nil, err
			}
		}
	}
	if given[atMost] != nil {
		if r.quota, err = parseQuota(given[atMost]); err != nil {
			return nil, err
		}
	}
	err = r.check(node, given["images"] != nil)
	if r.namesObjects && r.quota.definitions == 0 {
		r.quota.definitions = defaultDefinitions
	}
	return r, err
}

// check refuses a rule that is incomplete, or that gives more than its author may have meant.
func (r *rule) check(node *yaml.Node, saysImages bool) error {
	switch {
	case len(r.who) == 0:
		return ruleError(node, "rule %q does not say \"who\"; \"everyone\" is a word for it", r.name)
	case r.may == 0:
		return ruleError(node, "rule %q has no \"may\"; give some of: %s", r.name, givablePermissions())
	case !r.namesObjects:
		r.anyFile = r.anyFile || !saysImages
	}
	if r.anyFile && len(r.secrets) > 0 {
		return ruleError(node, "rule %q names \"secrets\", and lets definitions use any file of the host, and any secret with that; say \"images\", as folders or pools, too", r.name)
	}
	if err := r.quota.checkQuota(r, node); err != nil {
		return err
	}
	for _, v := range hostPermissions {
		if r.namesObjects && r.may.has(v) {
			return ruleError(node, "rule %q gives %q, which reaches beyond the guests, pools and networks that it names; put it into a rule without them", r.name, v)
		}
	}
	return nil
}

func (r *rule) addPermission(node *yaml.Node) error {
	if node.Value == everything {
		r.may = 1<<permissionCount - 1
		return nil
	}
	v, known := ParsePermission(node.Value)
	if !known {
		return ruleError(node, "%q is no right; the rights are %s", node.Value, givablePermissions())
	}
	r.may |= 1 << v
	return nil
}

func (r *rule) addGuests(node *yaml.Node) error {
	s, err := fleet.ParseSelector(node.Value)
	if err != nil {
		return ruleError(node, "%v", err)
	}
	if s.NeedsState() {
		return ruleError(node, "rules select guests by name, uuid, label and tile, which are known before a guest is made; %q uses another key", node.Value)
	}
	r.namesObjects, r.guests = true, append(r.guests, s)
	return nil
}

func (r *rule) addImages(node *yaml.Node) error {
	switch place := node.Value; {
	case place == "any":
		r.anyFile = true
	case strings.HasPrefix(place, "pool:") && len(place) > len("pool:"):
		r.images = append(r.images, place)
	case filepath.IsAbs(place) && filepath.Clean(place) == place && place != "/":
		r.images = append(r.images, place)
	default:
		return ruleError(node, "%q is no place of images; say /a/folder, pool:NAME or any", place)
	}
	return nil
}

func (r *rule) addClient(node *yaml.Node) error {
	kind, value, _ := strings.Cut(node.Value, ":")
	p := matcher{text: node.Value}
	switch {
	case node.Value == "everyone":
		p.is = func(Principal) bool { return true }
	case kind == "user" && value != "":
		id, err := number(value, func() (string, error) {
			u, err := user.Lookup(value)
			if err != nil {
				return "", err
			}
			return u.Uid, nil
		})
		if err != nil {
			return ruleError(node, "there is no user %q on this host", value)
		}
		p.is = isUser(id)
	case kind == "group" && value != "":
		id, err := number(value, func() (string, error) {
			g, err := user.LookupGroup(value)
			if err != nil {
				return "", err
			}
			return g.Gid, nil
		})
		if err != nil {
			return ruleError(node, "there is no group %q on this host", value)
		}
		p.is = isMember(id)
	case kind == "dn" && value != "":
		p.is = func(w Principal) bool { return w.Subject != "" && fleet.Matches(value, w.Subject) }
	default:
		return ruleError(node, "%q names no client; use user:NAME, group:NAME, dn:GLOB or everyone", node.Value)
	}
	r.who = append(r.who, p)
	return nil
}

// number parses an ID, or looks its name up.
func number(value string, lookup func() (string, error)) (uint32, error) {
	id, err := strconv.ParseUint(value, 10, 32)
	if err == nil {
		return uint32(id), nil
	}
	found, err := lookup()
	if err != nil {
		return 0, err
	}
	id, err = strconv.ParseUint(found, 10, 32)
	return uint32(id), err
}
