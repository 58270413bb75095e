package authz

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// CheckDocument checks the XML of a client: the object that it would make or change, and the files that it names.
// On is the object of the call, if there is one. A guest may keep what its definitions already name. Document
// returns the object that the XML would make.
func (g *Authorizer) CheckDocument(w Principal, verb Permission, on Resource, doc string) (Resource, error) {
	rules := g.rules.Load()
	if rules == nil || w.Trusted() {
		return on, nil
	}
	root, err := xmltree.Parse(doc)
	if err != nil {
		return on, err
	}
	switch root.Name {
	case "domain":
		return g.domain(w, verb, doc)
	case "network":
		return g.network(w, doc)
	case "pool":
		return Resource{Kind: Pool, Name: root.Child("name").Text()}, g.pool(w, root)
	case "volume":
		places := walker{rules.placesFor(g, w, verb, on)}
		return on, cmp.Or(places.walk(root, root.Child("backingStore")), places.walk(root, root.Child("target").Child("encryption")))
	}
	places := rules.placesFor(g, w, verb, on)
	places.known = g.named(on)
	return on, walker{places}.walk(nil, root)
}

// domain checks a whole definition as it is parsed, not as it is written.
func (g *Authorizer) domain(w Principal, verb Permission, doc string) (Resource, error) {
	def, err := domainxml.Parse(doc, domainxml.Options{})
	if err != nil {
		return Resource{}, err
	}
	marks, err := fleet.ReadMarks(def.Metadata)
	if err != nil {
		return Resource{}, err
	}
	rules := g.rules.Load()
	wanted := NewGuest(def.Name, normalUUID(def.UUID), marks.Labels)
	places := rules.placesFor(g, w, verb, wanted)
	if err := rules.Check(w, verb, wanted); err != nil {
		return wanted, err
	}
	had := []Resource{g.GuestByName(def.Name), g.GuestByUUID(normalUUID(def.UUID))}
	for _, there := range had {
		if there.Kind != Guest {
			continue
		}
		if err := rules.owner(w, verb, there, def.Name, def.UUID); err != nil {
			return wanted, err
		}
		places.known = append(places.known, g.named(there)...)
		wanted.replaces = wanted.replaces || there.member.View.Current() != nil
	}
	if err := cmp.Or(rules.claims(w, marks, had...), g.CheckPriority(w, marks.Priority, had...), g.checkWeights(w, def, had...)); err != nil {
		return wanted, err
	}
	if err := (walker{places}).definition(def); err != nil {
		return wanted, err
	}
	// A socket without a mode connects in a new definition and listens in one of a saved image. Only the call
	// knows which definition this is, so both must be allowed. A document that cannot be parsed this way is
	// refused by the call.
	if fresh, err := domainxml.Parse(doc, domainxml.Options{Submitted: true}); err == nil {
		return wanted, walker{places}.definition(fresh)
	}
	return wanted, nil
}

// definition checks a parsed definition.
func (w walker) definition(def *domain.Definition) error {
	root, err := understood(def)
	if err != nil {
		return err
	}
	return w.walk(nil, root)
}

// owner checks the existing object that has the name or the UUID of a document. If the client may not see that
// object and did not name it, the error only says that one exists.
func (r *Rules) owner(w Principal, verb Permission, there Resource, name, id string) error {
	err := r.Check(w, verb, there)
	if err == nil || there.Name == name {
		return err
	}
	if _, sees := r.Allows(w, Read, there); sees {
		return err
	}
	return fault.New(fault.Denied, fault.Call, "%s may not give %q the UUID %s: another object has it, which this client may not change", w, name, id)
}

// normalUUID normalizes a UUID: documents may spell it in many ways.
func normalUUID(id string) string {
	if parsed, err := uuid.Parse(strings.TrimSpace(id)); err == nil {
		return parsed.String()
	}
	return id
}

func understood(def *domain.Definition) (*xmltree.Element, error) {
	text, err := domainxml.Format(def, domainxml.Style{})
	if err != nil {
		return nil, err
	}
	return xmltree.Parse(text)
}

// named returns what a guest's definitions name now.
func (g *Authorizer) named(o Resource) []use {
	if o.Kind != Guest || o.member.View == nil {
		return nil
	}
	var found []use
	for _, def := range []*domain.Definition{o.member.View.Active, o.member.View.Inactive} {
		if def == nil {
			continue
		}
		if root, err := understood(def); err == nil { // else nothing is known, so nothing is allowed
			found = append(found, uses(nil, root)...)
		}
	}
	return found
}

// CheckPriority checks a guest's new priority. Below 0 it starts before other guests and is killed after them when the
// host runs out of memory. A guest may keep its priority or lower its rank.
func (g *Authorizer) CheckPriority(w Principal, priority int, had ...Resource) error {
	keeps := func(o Resource) bool { return o.member.Marks != nil && o.member.Marks.Priority <= priority }
	if priority >= 0 || slices.ContainsFunc(had, keeps) {
		return nil
	}
	return g.beyond(w, Define, "a priority below 0, which puts guests of others last")
}

// checkWeights checks a guest's weights in the competition for processors and disks. A guest may keep its weights or
// lower them.
func (g *Authorizer) checkWeights(w Principal, def *domain.Definition, had ...Resource) error {
	if def.Tune.Shares == 0 && def.Blkio.Weight == 0 {
		return nil
	}
	shares, weight := hotplug.DefaultWeights(g.Guests)
	usual := fmt.Sprintf("weights above the usual ones (%d of processors, %d of disks), which take from guests of others", shares, weight)
	for _, o := range had {
		if o.member.View == nil {
			continue
		}
		for _, d := range []*domain.Definition{o.member.View.Active, o.member.View.Inactive} {
			if d != nil {
				shares, weight = max(shares, d.Tune.Shares), max(weight, uint64(d.Blkio.Weight))
			}
		}
	}
	if def.Tune.Shares <= shares && uint64(def.Blkio.Weight) <= weight {
		return nil
	}
	return g.beyond(w, Define, usual)
}

// claims checks the volumes that marks name: they are deleted with the tile of the guest. Volumes that the
// guest's marks already name may stay.
func (r *Rules) claims(w Principal, marks *fleet.Marks, had ...Resource) error {
	for _, v := range marks.Volumes {
		kept := slices.ContainsFunc(had, func(o Resource) bool { return o.member.Marks != nil && slices.Contains(o.member.Marks.Volumes, v) })
		if kept {
			continue
		}
		if err := r.Check(w, Volumes, Resource{Kind: Pool, Name: v.Pool, Part: v.Name}); err != nil {
			return err
		}
	}
	return nil
}

// network checks a parsed definition: if a document says something twice, the value that takes effect must be
// the one that is checked.
func (g *Authorizer) network(w Principal, doc string) (Resource, error) {
	def, err := network.Parse(doc, false)
	if err != nil {
		return Resource{}, err
	}
	made := Resource{Kind: Network, Name: def.Name, written: network.Written(doc)}
	if err := g.Check(w, Networks, made); err != nil {
		return made, err
	}
	if there, err := g.Networks.ByUUID(def.UUID); err == nil {
		if err := g.rules.Load().owner(w, Networks, Resource{Kind: Network, Name: there.Name()}, def.Name, def.UUID); err != nil {
			return made, err
		}
	}
	if len(def.Options) > 0 {
		if err := g.beyond(w, Networks, "options of dnsmasq"); err != nil {
			return made, err
		}
	}
	if !def.Managed() { // guests use links of the host itself
		if err := g.beyond(w, Networks, "the host's links (forward mode '"+string(def.Forward.Mode)+"')"); err != nil {
			return made, err
		}
	}
	if name := def.Bridge.Name; name != "" && !g.mayNameBridge(w, def.Name, name) {
		if err := g.beyond(w, Networks, "a bridge that is called '"+name+"' (leave its name out, or call it as your networks may be called)"); err != nil {
			return made, err
		}
	}
	if len(def.Routes) > 0 { // which the host uses for its own packets
		if err := g.beyond(w, Networks, "routes of the host"); err != nil {
			return made, err
		}
	}
	if t := def.Forward.NAT; t.First.IsValid() || t.FirstPort > 0 && t.FirstPort < ownPorts {
		// Other machines know the host by its addresses and ports, and trust what root serves there.
		if err := g.beyond(w, Networks, "addresses outside, and ports below 1024, that guests appear by"); err != nil {
			return made, err
		}
	}
	for _, ip := range def.IPs {
		if !private(ip.Prefix()) { // the host would look for other machines behind its bridge
			if err := g.beyond(w, Networks, "the addresses "+ip.Prefix().String()+", which are not private"); err != nil {
				return made, err
			}
		}
		if device, err := g.routeInto(ip.Prefix(), g.bridgeOf(def.Name)); err != nil {
			return made, err
		} else if device != "" { // the host's packets for that network would go to guests
			if err := g.beyond(w, Networks, "the addresses "+ip.Prefix().String()+", into which the host has a route"); err != nil {
				return made, err
			}
		}
		if ip.TFTPRoot != "" { // dnsmasq, which may run as root, follows links there
			if err := g.beyond(w, Networks, "a folder served by TFTP"); err != nil {
				return made, err
			}
		}
	}
	return made, nil
}

// mayNameBridge says whether a client may give a network's bridge this name. It may keep its name.
func (g *Authorizer) mayNameBridge(w Principal, of, name string) bool {
	return g.bridgeOf(of) == name || g.rules.Load().mayNameLink(w, Networks, Resource{Kind: Network, Name: name}, "virbr")
}

// bridgeOf is the bridge of a network; empty: there is none.
func (g *Authorizer) bridgeOf(network string) string {
	n, err := g.Networks.ByName(network)
	if err != nil {
		return ""
	}
	name, _ := n.BridgeName() // empty if it has none
	return name
}

// ownPorts is the first port that users other than root can bind.
const ownPorts = 1024

// private says whether all addresses of a prefix are for private use. Link-local addresses are not: at one of
// them a cloud serves the login keys of its hosts.
func private(p netip.Prefix) bool {
	first := p.Masked().Addr()
	least := 48 // the length of a unique local prefix
	switch {
	case first.Is4() && first.As4()[0] == 10:
		least = 8
	case first.Is4() && first.As4()[0] == 172:
		least = 12
	case first.Is4():
		least = 16
	}
	return p.Bits() >= least && (first.IsPrivate() || first.Is6() && first.IsLinkLocalUnicast())
}

// pool checks a definition of a pool: its client can read and write everything in it.
func (g *Authorizer) pool(w Principal, root *xmltree.Element) error {
	rules := g.rules.Load()
	for _, name := range root.Elements("name") {
		o := Resource{Kind: Pool, Name: name.Text()}
		if err := rules.Check(w, Pools, o); err != nil {
			return err
		}
	}
	if there, err := g.Pools.ByUUID(normalUUID(root.Child("uuid").Text())); err == nil {
		if err := rules.owner(w, Pools, Resource{Kind: Pool, Name: there.Name()}, root.Child("name").Text(), there.UUID()); err != nil {
			return err
		}
	}
	places := rules.placesFor(g, w, Pools, Resource{Kind: Pool, Name: root.Child("name").Text()})
	if places.Anywhere {
		return nil
	}
	if root.Attr("type") != "dir" {
		return g.beyond(w, Pools, "a pool of type "+root.Attr("type"))
	}
	if target := root.Child("target").Child("path").Text(); !places.contains(target) && !slices.Contains(places.Where, target) {
		return places.refuse(target)
	}
	return walker{places}.walk(root, root.Child("source"))
}

// beyond checks that the client has a right for every object.
func (g *Authorizer) beyond(w Principal, verb Permission, what string) error {
	if !g.Restricted(w) || g.rules.Load().Images(w, verb, Resource{Kind: Everything}).Anywhere {
		return nil
	}
	return fault.New(fault.Denied, fault.Call, "%s may not use %s: that needs a rule with the right %q for everything", w, what, verb)
}

// allowedUses are folders, the folders of pools, and uses that may stay.
type allowedUses struct {
	AllowedPaths
	who   Principal
	pools []string // globs
	known []use
	// joins says whether the client may see a network and so join it. mingles says whether it may change how
	// the network treats others.
	joins, mingles func(network string) bool
	// opens says whether the client may use a secret.
	opens func(use) bool
	// calls says whether the client may give a guest's link this name.
	calls func(link string) bool
	// agent says that the client may speak to the guest's agent.
	agent bool
}

func (r *Rules) placesFor(g *Authorizer, w Principal, verb Permission, o Resource) allowedUses {
	p := allowedUses{AllowedPaths: r.Images(w, verb, o), who: w, joins: func(network string) bool {
		_, yes := r.Allows(w, Read, Resource{Kind: Network, Name: network})
		return yes
	}}
	p.mingles = func(network string) bool {
		_, yes := r.Allows(w, Networks, Resource{Kind: Network, Name: network})
		return yes
	}
	p.opens = func(u use) bool { return g.mayUseSecret(p.Secrets, u) }
	p.calls = func(link string) bool { return r.mayNameLink(w, Define, RemovedGuest(link, ""), "vnet") }
	_, p.agent = r.Allows(w, Agent, o)
	for _, place := range p.Where {
		if glob, ofPool := strings.CutPrefix(place, "pool:"); ofPool {
			p.pools = append(p.pools, glob)
		}
	}
	p.Where = g.folders(p.Where)
	return p
}

// folders replaces the names of pools by their folders.
func (g *Authorizer) folders(where []string) []string {
	var found []string
	for _, place := range where {
		glob, ofPool := strings.CutPrefix(place, "pool:")
		if !ofPool {
			found = append(found, place)
			continue
		}
		for _, p := range g.Pools.List() {
			if target := p.View().Target; fleet.Matches(glob, p.Name()) && target != "" && target != "/dev" {
				found = append(found, target)
			}
		}
	}
	return found
}

// contains says whether a path is inside one of the places.
func (p *allowedUses) contains(path string) bool {
	if p.Anywhere {
		return true
	}
	if filepath.Clean(path) != path || !filepath.IsAbs(path) {
		return false
	}
	return image.LiesIn(path, p.Where)
}

// allows says whether a use of a path is allowed: by its place, because the guest already uses it in this way,
// or because every guest may read it. Places for files never allow programs, because the host would run them.
func (p *allowedUses) allows(u use) bool {
	lies := p.contains(u.path) && !u.ofProgram() && (p.Anywhere || !u.ofNode() || image.InDev(u.path))
	return lies || slices.Contains(p.known, u) || u.isHostFile()
}

// refuse returns the error for a use that is not allowed.
func (p *allowedUses) refuse(what string) error {
	if !strings.HasPrefix(what, "/") {
		return fault.New(fault.Denied, fault.Call, "%s may not use %s: the rules do not give this client access to it", p.who, what)
	}
	if len(p.Where) == 0 {
		return fault.New(fault.Denied, fault.Call, "%s may not use %s: the rules give this client no folder for files", p.who, what)
	}
	return fault.New(fault.Denied, fault.Call, "%s may not use %s: files must be in %s", p.who, what, strings.Join(p.Where, ", "))
}

// CheckPath checks a path that a call names directly: a disk of the guest, or a file that the call writes, which
// must be inside the places.
func (g *Authorizer) CheckPath(w Principal, verb Permission, on Resource, path string, writes bool) error {
	rules := g.rules.Load()
	if rules == nil || w.Trusted() {
		return nil
	}
	p := rules.placesFor(g, w, verb, on)
	if p.contains(path) || !writes && slices.ContainsFunc(g.named(on), func(u use) bool { return u.path == path && u.ofDisk() }) {
		return nil
	}
	return p.refuse(path)
}

// CheckProgram checks a program that the daemon would run to probe it. Every client may have the host's own QEMUs
// probed.
func (g *Authorizer) CheckProgram(w Principal, path string) error {
	if (use{"emulator", path}).isHostFile() {
		return nil
	}
	return g.beyond(w, Define, "the program "+path)
}

// walker searches a document for uses beyond its guest.
type walker struct{ allowedUses }

// hostElements are elements that take resources of the host which are not files. Each needs a rule with images: any.
var hostElements = map[string]bool{"hostdev": true, "shmem": true, "lease": true, "seclabel": true, "resource": true, "bootloader": true}

// These are the types of interfaces and character devices that reach nothing of the host that the walk does
// not see. An interface of type user is not among them: through it a guest reaches services that listen only on
// the host, such as the displays of other guests.
var (
	harmlessNICs  = []string{"network"}
	harmlessChars = []string{"", "pty", "null", "vc", "unix", "file", "pipe", "dev", "stdio", "spicevmc", "spiceport", "qemu-vdagent"}
	harmlessDisks = []string{"", "file", "block", "volume"}
)

// walk checks an element and everything inside it; in is its parent, or nil.
func (w walker) walk(in, e *xmltree.Element) error {
	if w.Anywhere || e == nil || e.Name == "metadata" || e.Name == "description" || e.Name == "title" {
		return nil
	}
	if err := w.check(in, e); err != nil {
		return err
	}
	for _, child := range e.Elements() {
		if err := w.walk(e, child); err != nil {
			return err
		}
	}
	return nil
}

// check checks one element. testdata/free.txt lists what a client may write there freely.
func (w walker) check(in, e *xmltree.Element) error {
	if e.Space != "" || hostElements[e.Name] && !isOrdinary(in, e) {
		return w.refuse("<" + e.Name + ">")
	}
	if err := w.kind(in, e); err != nil {
		return err
	}
	for _, u := range ownUses(in, e) {
		switch {
		case w.allows(u):
		case u.ofProgram():
			return w.refuse("the program " + u.path)
		case u.ofNode() && w.contains(u.path):
			return w.refuse("the device " + u.path + ", which does not lie in /dev")
		default:
			return w.refuse(u.path)
		}
	}
	for _, u := range secretUses(e) {
		if !w.opens(u) && !slices.Contains(w.known, u) {
			return w.refuse(u.as + " '" + u.path + "'")
		}
	}
	return nil
}

// isOrdinary says whether a security label is one that each guest gets anyway. The definition of a guest that
// ran contains one.
func isOrdinary(in, e *xmltree.Element) bool {
	return e.Name == "seclabel" && in != nil && in.Name == "domain" && e.Attr("type") == "dynamic" && len(e.Children) == 0
}

// kind checks the types of devices, and the sources of random number generators.
func (w walker) kind(in, e *xmltree.Element) error {
	sort, allowed := e.Attr("type"), []string(nil)
	switch e.Name {
	case "disk", "backingStore", "mirror":
		allowed = harmlessDisks
		if pool := e.Child("source").Attr("pool"); pool != "" {
			return w.volume(pool)
		}
	case "interface":
		allowed = harmlessNICs
		if network := joinedNetwork(e); network != "" && !w.joins(network) && !slices.Contains(w.known, use{joins, network}) {
			return w.refuse("network '" + network + "'")
		}
		if network := affectedNetwork(e); network != "" && !w.mingles(network) && !slices.Contains(w.known, use{mingles, network}) {
			return w.refuse("an interface with <mtu> or isolated='no' on network '" + network + "', which needs the right \"networks\" (without them the network's own settings apply)")
		}
		if link := linkName(e); link != "" && !w.calls(link) && !slices.Contains(w.known, use{links, link}) {
			return w.refuse("a link that is called '" + link + "' (leave <target> out, and it is given a name)")
		}
	case "graphics", "listen":
		if address := listenAddress(e); address != "" && !slices.Contains(w.known, use{listens, address}) {
			return w.refuse("a display that listens on '" + address + "'")
		}
		return nil
	case "serial", "parallel", "console", "channel", "smartcard", "redirdev":
		allowed = harmlessChars
		if end := agentSocket(e); end != "" && !w.agent && !slices.Contains(w.known, use{speaks, end}) {
			return w.refuse("the channel of the guest's agent with an end of its own, which needs the right \"agent\" (or leave <source> out, and type it unix)")
		}
	case "backend":
		if in == nil || in.Name != "rng" {
			return nil
		}
		allowed = harmlessChars
	default:
		return nil
	}
	if !slices.Contains(allowed, sort) {
		return w.refuse("<" + e.Name + " type='" + sort + "'>")
	}
	return nil
}

// volume checks a disk that names its pool and volume.
func (w walker) volume(pool string) error {
	if slices.ContainsFunc(w.pools, func(glob string) bool { return fleet.Matches(glob, pool) }) {
		return nil
	}
	return w.refuse("pool '" + pool + "'")
}

// joinedNetwork returns the network of an interface; empty: none.
func joinedNetwork(e *xmltree.Element) string {
	if e.Name != "interface" {
		return ""
	}
	return e.Child("source").Attr("network")
}

// affectedNetwork is the network with other guests that an interface's settings affect; empty: none. These are: reaching
// isolated ports, and the packet size, because the kernel gives a bridge the smallest MTU of its ports.
func affectedNetwork(e *xmltree.Element) string {
	if e.Child("port").Attr("isolated") != "no" && e.Child("mtu").Attr("size") == "" {
		return ""
	}
	return joinedNetwork(e)
}

// linkName is the name of an interface's link on the host; empty: the daemon chooses.
func linkName(e *xmltree.Element) string {
	if e.Name != "interface" {
		return ""
	}
	return e.Child("target").Attr("dev")
}

// mayNameLink says whether a client may give a link on the host this name: it is one that the rules let it define,
// or one that the daemon would choose. With any name it could take one that the host needs, such as docker0,
// before the host does.
func (r *Rules) mayNameLink(w Principal, v Permission, o Resource, row string) bool {
	number, ofRow := strings.CutPrefix(o.Name, row)
	if _, err := strconv.ParseUint(number, 10, 32); ofRow && err == nil {
		return true
	}
	_, yes := r.Allows(w, v, o)
	return yes
}

// agentSocket is the host's end of the guest agent's channel if it is not the daemon's own; empty: it is, or it is
// another channel. A process with that end can run anything in the guest, as root.
func agentSocket(e *xmltree.Element) string {
	sort, path := e.Attr("type"), e.Child("source").Attr("path")
	if e.Name != "channel" || !machine.IsAgentChannel(e.Child("target").Attr("name")) || sort == "unix" && path == "" {
		return ""
	}
	return sort + " " + path
}

// listenAddress is the address at which a display accepts other hosts; empty: none, or another element names it.
func listenAddress(e *xmltree.Element) string {
	address := ""
	switch {
	case e.Name == "graphics":
		address = e.Attr("listen")
	case e.Name == "listen" && e.Attr("type") == "network":
		return "network " + e.Attr("network")
	case e.Name == "listen":
		address = e.Attr("address")
	}
	if ip, err := netip.ParseAddr(address); err == nil && ip.IsLoopback() || address == "localhost" {
		return ""
	}
	return address
}
