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
// on is the object of the call, if there is one. A guest may keep the uses that its definitions already have.
// CheckDocument returns the object that the XML would make.
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
		return g.checkDomain(w, verb, doc)
	case "network":
		return g.checkNetwork(w, doc)
	case "pool":
		return Resource{Kind: Pool, Name: root.Child("name").Text()}, g.checkPool(w, root)
	case "volume":
		places := walker{rules.allowedUsesFor(g, w, verb, on)}
		return on, cmp.Or(places.walk(root, root.Child("backingStore")), places.walk(root, root.Child("target").Child("encryption")))
	}
	places := rules.allowedUsesFor(g, w, verb, on)
	places.existing = g.currentUses(on)
	return on, walker{places}.walk(nil, root)
}

// checkDomain checks a whole definition in the form that is stored, and not the text of the client: a parser that
// reads an element differently would otherwise bypass the check.
func (g *Authorizer) checkDomain(w Principal, verb Permission, doc string) (Resource, error) {
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
	places := rules.allowedUsesFor(g, w, verb, wanted)
	if err := rules.Check(w, verb, wanted); err != nil {
		return wanted, err
	}
	had := []Resource{g.GuestByName(def.Name), g.GuestByUUID(normalUUID(def.UUID))}
	for _, there := range had {
		if there.Kind != Guest {
			continue
		}
		if err := rules.checkExisting(w, verb, there, def.Name, def.UUID); err != nil {
			return wanted, err
		}
		places.existing = append(places.existing, g.currentUses(there)...)
		wanted.replaces = wanted.replaces || there.member.View.Current() != nil
	}
	if err := cmp.Or(rules.checkMarkedVolumes(w, marks, had...), g.CheckPriority(w, marks.Priority, had...), g.CheckShares(w, marks.Memory.Shares, had...), g.checkWeights(w, def, had...)); err != nil {
		return wanted, err
	}
	if err := (walker{places}).checkDefinition(def); err != nil {
		return wanted, err
	}
	// A socket without a mode connects in a new definition and listens in one of a saved image. Only the call
	// knows which definition this is, so both must be allowed. A document that cannot be parsed this way is
	// refused by the call.
	if fresh, err := domainxml.Parse(doc, domainxml.Options{Submitted: true}); err == nil {
		return wanted, walker{places}.checkDefinition(fresh)
	}
	return wanted, nil
}

// checkDefinition checks the uses of a parsed definition.
func (w walker) checkDefinition(def *domain.Definition) error {
	root, err := normalized(def)
	if err != nil {
		return err
	}
	return w.walk(nil, root)
}

// checkExisting checks the existing object that has the name or the UUID of a document. If the client may not see that
// object and did not name it, the error only says that one exists.
func (r *Rules) checkExisting(w Principal, verb Permission, there Resource, name, id string) error {
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

// normalized returns a definition as the tree of the XML that is stored.
func normalized(def *domain.Definition) (*xmltree.Element, error) {
	text, err := domainxml.Format(def, domainxml.Style{})
	if err != nil {
		return nil, err
	}
	return xmltree.Parse(text)
}

// currentUses returns the uses that a guest's live and stored definitions have now.
func (g *Authorizer) currentUses(o Resource) []use {
	if o.Kind != Guest || o.member.View == nil {
		return nil
	}
	var found []use
	for _, def := range []*domain.Definition{o.member.View.Active, o.member.View.Inactive} {
		if def == nil {
			continue
		}
		if root, err := normalized(def); err == nil { // else nothing is known, so nothing is allowed
			found = append(found, uses(nil, root)...)
		}
	}
	return found
}

// CheckPriority checks a guest's new priority. A guest with a priority below 0 starts before others, and is killed
// after them when the host runs out of memory. A guest may keep the number that it has in had, or take a higher one.
func (g *Authorizer) CheckPriority(w Principal, priority int, had ...Resource) error {
	keeps := func(o Resource) bool { return o.member.Marks != nil && o.member.Marks.Priority <= priority }
	if priority >= 0 || slices.ContainsFunc(had, keeps) {
		return nil
	}
	return g.requireEverything(w, Define, "a priority below 0, which puts guests of others last")
}

// CheckShares checks a guest's new shares of the host's memory. A guest may keep its shares or lower them; more than the
// usual ones take from guests of others.
func (g *Authorizer) CheckShares(w Principal, shares int, had ...Resource) error {
	keeps := func(o Resource) bool { return o.member.Marks != nil && o.member.Marks.Memory.Shares >= shares }
	if shares <= fleet.UsualShares || slices.ContainsFunc(had, keeps) {
		return nil
	}
	return g.requireEverything(w, Define, fmt.Sprintf("more than %d shares of memory, which take from guests of others", fleet.UsualShares))
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
	return g.requireEverything(w, Define, usual)
}

// checkMarkedVolumes checks the right to the volumes that marks name, because these are deleted with the tile of the
// guest. Volumes that the guest's marks already name may stay.
func (r *Rules) checkMarkedVolumes(w Principal, marks *fleet.Marks, had ...Resource) error {
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

// checkNetwork checks a parsed definition: if an element comes twice in a document, the value that takes effect must
// be the one that is checked.
func (g *Authorizer) checkNetwork(w Principal, doc string) (Resource, error) {
	def, err := network.Parse(doc, false)
	if err != nil {
		return Resource{}, err
	}
	made := Resource{Kind: Network, Name: def.Name, definitionBytes: network.StoredBytes(doc)}
	if err := g.Check(w, Networks, made); err != nil {
		return made, err
	}
	if there, err := g.Networks.ByUUID(def.UUID); err == nil {
		if err := g.rules.Load().checkExisting(w, Networks, Resource{Kind: Network, Name: there.Name()}, def.Name, def.UUID); err != nil {
			return made, err
		}
	}
	if len(def.Options) > 0 {
		if err := g.requireEverything(w, Networks, "options of dnsmasq"); err != nil {
			return made, err
		}
	}
	if !def.Managed() { // guests use links of the host itself
		if err := g.requireEverything(w, Networks, "the host's links (forward mode '"+string(def.Forward.Mode)+"')"); err != nil {
			return made, err
		}
	}
	if name := def.Bridge.Name; name != "" && !g.mayNameBridge(w, def.Name, name) {
		if err := g.requireEverything(w, Networks, "a bridge that is called '"+name+"' (leave its name out, or call it as your networks may be called)"); err != nil {
			return made, err
		}
	}
	if len(def.Routes) > 0 { // which the host uses for its own packets
		if err := g.requireEverything(w, Networks, "routes of the host"); err != nil {
			return made, err
		}
	}
	if t := def.Forward.NAT; t.First.IsValid() || t.FirstPort > 0 && t.FirstPort < firstUnprivilegedPort {
		// Other machines know the host by its addresses and ports, and trust what root serves there.
		if err := g.requireEverything(w, Networks, "addresses outside, and ports below 1024, that guests appear by"); err != nil {
			return made, err
		}
	}
	for _, ip := range def.IPs {
		if !isPrivate(ip.Prefix()) { // the host would look for other machines behind its bridge
			if err := g.requireEverything(w, Networks, "the addresses "+ip.Prefix().String()+", which are not private"); err != nil {
				return made, err
			}
		}
		if device, err := g.routeInto(ip.Prefix(), g.bridgeOf(def.Name)); err != nil {
			return made, err
		} else if device != "" { // the host's packets for that network would go to guests
			if err := g.requireEverything(w, Networks, "the addresses "+ip.Prefix().String()+", into which the host has a route"); err != nil {
				return made, err
			}
		}
		if ip.TFTPRoot != "" { // dnsmasq, which may run as root, follows links there
			if err := g.requireEverything(w, Networks, "a folder served by TFTP"); err != nil {
				return made, err
			}
		}
	}
	return made, nil
}

// mayNameBridge says whether a client may give a network's bridge this name. The bridge may keep its name.
func (g *Authorizer) mayNameBridge(w Principal, network, name string) bool {
	return g.bridgeOf(network) == name || g.rules.Load().mayNameLink(w, Networks, Resource{Kind: Network, Name: name}, "virbr")
}

// bridgeOf returns the name of a network's bridge; empty: there is none.
func (g *Authorizer) bridgeOf(network string) string {
	n, err := g.Networks.ByName(network)
	if err != nil {
		return ""
	}
	name, _ := n.BridgeName() // empty if it has none
	return name
}

// firstUnprivilegedPort is the first port that users other than root can bind.
const firstUnprivilegedPort = 1024

// isPrivate says whether all addresses of a prefix are for private use (RFC 1918, RFC 4193), or link-local IPv6.
// Link-local IPv4 addresses are not: at 169.254.169.254 a cloud serves the login keys of its hosts.
func isPrivate(p netip.Prefix) bool {
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

// checkPool checks a definition of a pool: its client can read and write everything in it.
func (g *Authorizer) checkPool(w Principal, root *xmltree.Element) error {
	rules := g.rules.Load()
	for _, name := range root.Elements("name") {
		o := Resource{Kind: Pool, Name: name.Text()}
		if err := rules.Check(w, Pools, o); err != nil {
			return err
		}
	}
	if there, err := g.Pools.ByUUID(normalUUID(root.Child("uuid").Text())); err == nil {
		if err := rules.checkExisting(w, Pools, Resource{Kind: Pool, Name: there.Name()}, root.Child("name").Text(), there.UUID()); err != nil {
			return err
		}
	}
	places := rules.allowedUsesFor(g, w, Pools, Resource{Kind: Pool, Name: root.Child("name").Text()})
	if places.Anywhere {
		return nil
	}
	if root.Attr("type") != "dir" {
		return g.requireEverything(w, Pools, "a pool of type "+root.Attr("type"))
	}
	if target := root.Child("target").Child("path").Text(); !places.containsPath(target) && !slices.Contains(places.Places, target) {
		return places.refuse(target)
	}
	return walker{places}.walk(root, root.Child("source"))
}

// requireEverything checks that a rule for everything, with images: any, gives the client a right. what is the
// object in the error.
func (g *Authorizer) requireEverything(w Principal, verb Permission, what string) error {
	if !g.Restricted(w) || g.rules.Load().AllowedPaths(w, verb, Resource{Kind: Everything}).Anywhere {
		return nil
	}
	return fault.New(fault.Denied, fault.Call, "%s may not use %s: that needs a rule with the right %q for everything", w, what, verb)
}

// allowedUses is what the rules let a client's document use, for one permission on one object.
type allowedUses struct {
	AllowedPaths
	who      Principal
	pools    []string // globs of the pools whose volumes may be named
	existing []use    // those of the guest's present definitions, which may stay
	// mayJoin says whether an interface may join a network: the client has the right read for it.
	mayJoin func(network string) bool
	// mayAffect says whether an interface may have settings that affect other guests on the network: the client has
	// the right networks for it.
	mayAffect func(network string) bool
	// mayOpen says whether a disk or volume may be opened with a secret.
	mayOpen func(use) bool
	// mayName says whether a guest's link on the host may have this name.
	mayName func(link string) bool
	// mayUseAgent says that the client has the right agent for the guest.
	mayUseAgent bool
}

func (r *Rules) allowedUsesFor(g *Authorizer, w Principal, verb Permission, o Resource) allowedUses {
	p := allowedUses{AllowedPaths: r.AllowedPaths(w, verb, o), who: w, mayJoin: func(network string) bool {
		_, yes := r.Allows(w, Read, Resource{Kind: Network, Name: network})
		return yes
	}}
	p.mayAffect = func(network string) bool {
		_, yes := r.Allows(w, Networks, Resource{Kind: Network, Name: network})
		return yes
	}
	p.mayOpen = func(u use) bool { return g.mayUseSecret(p.Secrets, u) }
	p.mayName = func(link string) bool { return r.mayNameLink(w, Define, RemovedGuest(link, ""), "vnet") }
	_, p.mayUseAgent = r.Allows(w, Agent, o)
	for _, place := range p.Places {
		if glob, ofPool := strings.CutPrefix(place, "pool:"); ofPool {
			p.pools = append(p.pools, glob)
		}
	}
	p.Places = g.folders(p.Places)
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

// containsPath says whether a path lies inside one of the places. It does not resolve links.
func (p *allowedUses) containsPath(path string) bool {
	if p.Anywhere {
		return true
	}
	if filepath.Clean(path) != path || !filepath.IsAbs(path) {
		return false
	}
	return image.LiesIn(path, p.Places)
}

// allows says whether a use of a path is allowed: by its place, because the guest already uses it in this way,
// or because every guest may read it. Places for files never allow programs, because the host would run them.
func (p *allowedUses) allows(u use) bool {
	liesInPlace := p.containsPath(u.path) && !u.ofProgram() && (p.Anywhere || !u.ofNode() || image.InDev(u.path))
	return liesInPlace || slices.Contains(p.existing, u) || u.isHostFile()
}

// refuse returns the error for a use that is not allowed: of a path, or of something else that the text names.
func (p *allowedUses) refuse(what string) error {
	if !strings.HasPrefix(what, "/") {
		return fault.New(fault.Denied, fault.Call, "%s may not use %s: the rules do not give this client access to it", p.who, what)
	}
	if len(p.Places) == 0 {
		return fault.New(fault.Denied, fault.Call, "%s may not use %s: the rules give this client no folder for files", p.who, what)
	}
	return fault.New(fault.Denied, fault.Call, "%s may not use %s: files must be in %s", p.who, what, strings.Join(p.Places, ", "))
}

// CheckPath checks a path that a call names directly: a disk of the guest, or a file that the call writes, which
// must be inside the places.
func (g *Authorizer) CheckPath(w Principal, verb Permission, on Resource, path string, writes bool) error {
	rules := g.rules.Load()
	if rules == nil || w.Trusted() {
		return nil
	}
	p := rules.allowedUsesFor(g, w, verb, on)
	if p.containsPath(path) || !writes && slices.ContainsFunc(g.currentUses(on), func(u use) bool { return u.path == path && u.ofDisk() }) {
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
	return g.requireEverything(w, Define, "the program "+path)
}

// walker walks a document and checks each use of the host.
type walker struct{ allowedUses }

// hostElements are elements that use resources of the host other than files. Each needs a rule with images: any.
var hostElements = map[string]bool{
	"hostdev":    true, // a device of the host
	"shmem":      true, // memory that other guests may have, too
	"lease":      true, // a lock that others hold
	"seclabel":   true, // the label that confines QEMU; isOrdinary permits the default one
	"resource":   true, // a control group of another guest or of the host
	"bootloader": true, // a program that runs on the host
}

// The types of devices that use nothing of the host but paths, networks and pools, which the walk checks. All other
// types need images: any. An interface of type user is not in the list: through it a guest reaches services that
// listen on 127.0.0.1, such as the displays of other guests.
var (
	harmlessNICs  = []string{"network"}
	harmlessChars = []string{"", "pty", "null", "vc", "unix", "file", "pipe", "dev", "stdio", "spicevmc", "spiceport", "qemu-vdagent"}
	harmlessDisks = []string{"", "file", "block", "volume"}
)

// walk checks an element and all elements inside it; in is its parent, or nil. Metadata and descriptions use nothing.
func (w walker) walk(in, e *xmltree.Element) error {
	if w.Anywhere || e == nil || e.Name == "metadata" || e.Name == "description" || e.Name == "title" {
		return nil
	}
	if err := w.checkElement(in, e); err != nil {
		return err
	}
	for _, child := range e.Elements() {
		if err := w.walk(e, child); err != nil {
			return err
		}
	}
	return nil
}

// checkElement checks one element. testdata/free.txt lists the elements and attributes that need no right.
func (w walker) checkElement(in, e *xmltree.Element) error {
	if e.Space != "" || hostElements[e.Name] && !isOrdinary(in, e) {
		return w.refuse("<" + e.Name + ">")
	}
	if err := w.checkType(in, e); err != nil {
		return err
	}
	for _, u := range ownUses(in, e) {
		switch {
		case w.allows(u):
		case u.ofProgram():
			return w.refuse("the program " + u.path)
		case u.ofNode() && w.containsPath(u.path):
			return w.refuse("the device " + u.path + ", which does not lie in /dev")
		default:
			return w.refuse(u.path)
		}
	}
	for _, u := range secretUses(e) {
		if !w.mayOpen(u) && !slices.Contains(w.existing, u) {
			return w.refuse(u.role + " '" + u.path + "'")
		}
	}
	return nil
}

// isOrdinary says whether an element is the default security label, which each guest gets anyway. The definition of
// a guest that ran contains one.
func isOrdinary(in, e *xmltree.Element) bool {
	return e.Name == "seclabel" && in != nil && in.Name == "domain" && e.Attr("type") == "dynamic" && len(e.Children) == 0
}

// checkType checks the type of a device, of its backend, and of the uses that are not paths.
func (w walker) checkType(in, e *xmltree.Element) error {
	sort, allowed := e.Attr("type"), []string(nil)
	switch e.Name {
	case "disk", "backingStore", "mirror":
		allowed = harmlessDisks
		if pool := e.Child("source").Attr("pool"); pool != "" {
			return w.checkVolumePool(pool)
		}
	case "interface":
		allowed = harmlessNICs
		if network := joinedNetwork(e); network != "" && !w.mayJoin(network) && !slices.Contains(w.existing, use{useNetwork, network}) {
			return w.refuse("network '" + network + "'")
		}
		if network := affectedNetwork(e); network != "" && !w.mayAffect(network) && !slices.Contains(w.existing, use{useOthersOnNetwork, network}) {
			return w.refuse("an interface with <mtu> or isolated='no' on network '" + network + "', which needs the right \"networks\" (without them the network's own settings apply)")
		}
		if link := linkName(e); link != "" && !w.mayName(link) && !slices.Contains(w.existing, use{useLink, link}) {
			return w.refuse("a link that is called '" + link + "' (leave <target> out, and it is given a name)")
		}
	case "graphics", "listen":
		if address := listenAddress(e); address != "" && !slices.Contains(w.existing, use{useListen, address}) {
			return w.refuse("a display that listens on '" + address + "'")
		}
		return nil
	case "serial", "parallel", "console", "channel", "smartcard", "redirdev":
		allowed = harmlessChars
		if end := agentSocket(e); end != "" && !w.mayUseAgent && !slices.Contains(w.existing, use{useAgentChannel, end}) {
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

// checkVolumePool checks the pool of a disk that names its pool and volume.
func (w walker) checkVolumePool(pool string) error {
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

// affectedNetwork returns the network whose other guests an interface's settings affect; empty: none. The settings
// are isolated='no', which reaches isolated ports, and the MTU, because the kernel gives a bridge the smallest MTU of
// its ports.
func affectedNetwork(e *xmltree.Element) string {
	if e.Child("port").Attr("isolated") != "no" && e.Child("mtu").Attr("size") == "" {
		return ""
	}
	return joinedNetwork(e)
}

// linkName returns the name of an interface's link on the host; empty: the daemon chooses.
func linkName(e *xmltree.Element) string {
	if e.Name != "interface" {
		return ""
	}
	return e.Child("target").Attr("dev")
}

// mayNameLink says whether a client may give a link on the host the name of o: the rules let it define an object of
// that name, or it is one of the daemon's own, which are prefix and a number. With any other name the client could
// take one that the host needs, such as docker0, before the host does.
func (r *Rules) mayNameLink(w Principal, v Permission, o Resource, prefix string) bool {
	number, isOwn := strings.CutPrefix(o.Name, prefix)
	if _, err := strconv.ParseUint(number, 10, 32); isOwn && err == nil {
		return true
	}
	_, yes := r.Allows(w, v, o)
	return yes
}

// agentSocket returns the host's end of the guest agent's channel if the definition chooses it; empty: the daemon
// chooses it, or it is another channel. A process with that end can run anything in the guest, as root.
func agentSocket(e *xmltree.Element) string {
	sort, path := e.Attr("type"), e.Child("source").Attr("path")
	if e.Name != "channel" || !machine.IsAgentChannel(e.Child("target").Attr("name")) || sort == "unix" && path == "" {
		return ""
	}
	return sort + " " + path
}

// listenAddress returns the address on which a display accepts other hosts; empty: it does not, or another element
// names the address.
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
