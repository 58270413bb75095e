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
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Document checks what a client hands in as XML: the object that it would make
// or change, and the files that it names. On is the object of the call, if it has
// one. What a guest's definition names already may stay in it. It gives the
// object that the document would make.
func (g *Gate) Document(w Who, verb Verb, on Object, doc string) (Object, error) {
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
		return Object{Kind: Pool, Name: root.Child("name").Text()}, g.pool(w, root)
	case "volume":
		places := walker{rules.placesFor(g, w, verb, on)}
		return on, cmp.Or(places.walk(root, root.Child("backingStore")), places.walk(root, root.Child("target").Child("encryption")))
	}
	places := rules.placesFor(g, w, verb, on)
	places.known = g.named(on)
	return on, walker{places}.walk(nil, root)
}

// domain checks a whole definition, as it is understood and not as it is written.
func (g *Gate) domain(w Who, verb Verb, doc string) (Object, error) {
	def, err := domainxml.Parse(doc, domainxml.Options{})
	if err != nil {
		return Object{}, err
	}
	marks, err := fleet.ReadMarks(def.Metadata)
	if err != nil {
		return Object{}, err
	}
	rules := g.rules.Load()
	wanted := NewGuest(def.Name, plain(def.UUID), marks.Labels)
	places := rules.placesFor(g, w, verb, wanted)
	if err := rules.Check(w, verb, wanted); err != nil {
		return wanted, err
	}
	had := []Object{g.GuestByName(def.Name), g.GuestByUUID(plain(def.UUID))}
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
	if err := cmp.Or(rules.claims(w, marks, had...), g.Rank(w, marks.Priority, had...), g.weigh(w, def, had...)); err != nil {
		return wanted, err
	}
	if err := (walker{places}).definition(def); err != nil {
		return wanted, err
	}
	// A socket without a mode connects in a new definition and listens in that of a saved image. Only
	// the call knows which this is, so both have to be allowed. What cannot be read so is refused by the call.
	if fresh, err := domainxml.Parse(doc, domainxml.Options{Submitted: true}); err == nil {
		return wanted, walker{places}.definition(fresh)
	}
	return wanted, nil
}

// definition checks a definition as it is understood.
func (w walker) definition(def *domain.Definition) error {
	root, err := understood(def)
	if err != nil {
		return err
	}
	return w.walk(nil, root)
}

// owner checks what has the name or the UUID already that a document gives. Of one that
// the client may not see, and did not name, only this is told: that it is there.
func (r *Rules) owner(w Who, verb Verb, there Object, name, id string) error {
	err := r.Check(w, verb, there)
	if err == nil || there.Name == name {
		return err
	}
	if _, sees := r.Allows(w, Read, there); sees {
		return err
	}
	return fault.New(fault.Denied, fault.Call, "%s may not give %q the UUID %s: it is that of another, which is not this client's to change", w, name, id)
}

// plain writes a UUID as that of an object: documents may spell it in many ways.
func plain(id string) string {
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

// named gives what a guest's definitions name now.
func (g *Gate) named(o Object) []use {
	if o.Kind != Guest || o.member.View == nil {
		return nil
	}
	var found []use
	for _, def := range []*domain.Definition{o.member.View.Active, o.member.View.Inactive} {
		if def == nil {
			continue
		}
		if root, err := understood(def); err == nil { // else nothing is known, and so nothing allowed
			found = append(found, uses(nil, root)...)
		}
	}
	return found
}

// Rank checks the priority that a guest is to have. Below 0 it starts before guests of others,
// and outlives them where the host's memory runs out. What it has, or less, it may keep.
func (g *Gate) Rank(w Who, priority int, had ...Object) error {
	keeps := func(o Object) bool { return o.member.Marks != nil && o.member.Marks.Priority <= priority }
	if priority >= 0 || slices.ContainsFunc(had, keeps) {
		return nil
	}
	return g.beyond(w, Define, "a priority below 0, which puts guests of others last")
}

// weigh checks what a guest is to weigh against others where they want the same processors and
// disks. What it weighs, or less, it may keep.
func (g *Gate) weigh(w Who, def *domain.Definition, had ...Object) error {
	if def.Tune.Shares == 0 && def.Blkio.Weight == 0 {
		return nil
	}
	shares, weight := g.Guests.UsualWeights()
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

// claims checks the volumes that marks name: they are deleted along with the tile that
// the marks make a guest part of. Those that it was marked with before may stay.
func (r *Rules) claims(w Who, marks *fleet.Marks, had ...Object) error {
	for _, v := range marks.Volumes {
		kept := slices.ContainsFunc(had, func(o Object) bool { return o.member.Marks != nil && slices.Contains(o.member.Marks.Volumes, v) })
		if kept {
			continue
		}
		if err := r.Check(w, Volumes, Object{Kind: Pool, Name: v.Pool, Part: v.Name}); err != nil {
			return err
		}
	}
	return nil
}

// network checks a definition as it is understood: where a document says something
// twice, what is judged has to be what counts.
func (g *Gate) network(w Who, doc string) (Object, error) {
	def, err := network.Parse(doc, false)
	if err != nil {
		return Object{}, err
	}
	made := Object{Kind: Network, Name: def.Name, written: network.Written(doc)}
	if err := g.Check(w, Networks, made); err != nil {
		return made, err
	}
	if there, err := g.Networks.ByUUID(def.UUID); err == nil {
		if err := g.rules.Load().owner(w, Networks, Object{Kind: Network, Name: there.Name()}, def.Name, def.UUID); err != nil {
			return made, err
		}
	}
	if len(def.Options) > 0 {
		if err := g.beyond(w, Networks, "options of dnsmasq"); err != nil {
			return made, err
		}
	}
	if !def.Managed() { // guests are on links of the host itself
		if err := g.beyond(w, Networks, "the host's links (forward mode '"+string(def.Forward.Mode)+"')"); err != nil {
			return made, err
		}
	}
	if name := def.Bridge.Name; name != "" && !g.callsBridge(w, def.Name, name) {
		if err := g.beyond(w, Networks, "a bridge that is called '"+name+"' (leave its name out, or call it as your networks may be called)"); err != nil {
			return made, err
		}
	}
	if len(def.Routes) > 0 { // by which the host itself sends
		if err := g.beyond(w, Networks, "routes of the host"); err != nil {
			return made, err
		}
	}
	if t := def.Forward.NAT; t.First.IsValid() || t.FirstPort > 0 && t.FirstPort < ownPorts {
		// By its addresses and ports others know the host, and what root does on it.
		if err := g.beyond(w, Networks, "addresses outside, and ports below 1024, that guests appear by"); err != nil {
			return made, err
		}
	}
	for _, ip := range def.IPs {
		if !private(ip.Prefix()) { // the host would look for others' machines behind its bridge
			if err := g.beyond(w, Networks, "the addresses "+ip.Prefix().String()+", which are not private"); err != nil {
				return made, err
			}
		}
		if device, err := g.routeInto(ip.Prefix(), g.bridgeOf(def.Name)); err != nil {
			return made, err
		} else if device != "" { // what the host sends there would go to guests
			if err := g.beyond(w, Networks, "the addresses "+ip.Prefix().String()+", into which the host has a route"); err != nil {
				return made, err
			}
		}
		if ip.TFTPRoot != "" { // dnsmasq, which may be root, follows the links there
			if err := g.beyond(w, Networks, "a folder served by TFTP"); err != nil {
				return made, err
			}
		}
	}
	return made, nil
}

// callsBridge says whether a client may call the bridge of a network so, as that may be already.
func (g *Gate) callsBridge(w Who, of, name string) bool {
	return g.bridgeOf(of) == name || g.rules.Load().calls(w, Networks, Object{Kind: Network, Name: name}, "virbr")
}

// bridgeOf is the bridge of a network; empty: there is none.
func (g *Gate) bridgeOf(network string) string {
	n, err := g.Networks.ByName(network)
	if err != nil {
		return ""
	}
	name, _ := n.BridgeName() // of one that has none it is empty
	return name
}

// ownPorts are those below, which root alone uses.
const ownPorts = 1024

// private says whether all addresses of a prefix are for private use. Those of a link alone
// are where a host in a cloud is told who may log in.
func private(p netip.Prefix) bool {
	first := p.Masked().Addr()
	least := 48 // a unique local prefix
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

// pool checks a definition of a pool: whoever makes one may read and write what
// lies in it.
func (g *Gate) pool(w Who, root *xmltree.Element) error {
	rules := g.rules.Load()
	for _, name := range root.Elements("name") {
		o := Object{Kind: Pool, Name: name.Text()}
		if err := rules.Check(w, Pools, o); err != nil {
			return err
		}
	}
	if there, err := g.Pools.ByUUID(plain(root.Child("uuid").Text())); err == nil {
		if err := rules.owner(w, Pools, Object{Kind: Pool, Name: there.Name()}, root.Child("name").Text(), there.UUID()); err != nil {
			return err
		}
	}
	places := rules.placesFor(g, w, Pools, Object{Kind: Pool, Name: root.Child("name").Text()})
	if places.Anywhere {
		return nil
	}
	if root.Attr("type") != "dir" {
		return g.beyond(w, Pools, "a pool of type "+root.Attr("type"))
	}
	if target := root.Child("target").Child("path").Text(); !places.lies(target) && !slices.Contains(places.Where, target) {
		return places.refuse(target)
	}
	return walker{places}.walk(root, root.Child("source"))
}

// beyond checks that the client may do something wherever and whatever it is.
func (g *Gate) beyond(w Who, verb Verb, what string) error {
	if !g.Held(w) || g.rules.Load().Images(w, verb, Object{Kind: Everything}).Anywhere {
		return nil
	}
	return fault.New(fault.Denied, fault.Call, "%s may not use %s: that takes a rule with the right %q for everything", w, what, verb)
}

// places are folders, with the pools' own among them, and what may stay.
type places struct {
	Places
	who   Who
	pools []string // globs
	known []use
	// joins says whether the client may see a network, and so join it, and mingles whether it
	// may say there what concerns the others.
	joins, mingles func(network string) bool
	// opens says whether the client may use a secret.
	opens func(use) bool
	// calls says whether the client may call a link of a guest so.
	calls func(link string) bool
	// agent says that the client may speak to the guest's agent.
	agent bool
}

func (r *Rules) placesFor(g *Gate, w Who, verb Verb, o Object) places {
	p := places{Places: r.Images(w, verb, o), who: w, joins: func(network string) bool {
		_, yes := r.Allows(w, Read, Object{Kind: Network, Name: network})
		return yes
	}}
	p.mingles = func(network string) bool {
		_, yes := r.Allows(w, Networks, Object{Kind: Network, Name: network})
		return yes
	}
	p.opens = func(u use) bool { return g.mayOpen(p.Secrets, u) }
	p.calls = func(link string) bool { return r.calls(w, Define, Left(link, ""), "vnet") }
	_, p.agent = r.Allows(w, Agent, o)
	for _, place := range p.Where {
		if glob, ofPool := strings.CutPrefix(place, "pool:"); ofPool {
			p.pools = append(p.pools, glob)
		}
	}
	p.Where = g.folders(p.Where)
	return p
}

// folders puts the folders of pools in the place of their names.
func (g *Gate) folders(where []string) []string {
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

// lies says whether a path lies in one of the places.
func (p *places) lies(path string) bool {
	if p.Anywhere {
		return true
	}
	if filepath.Clean(path) != path || !filepath.IsAbs(path) {
		return false
	}
	return image.LiesIn(path, p.Where)
}

// holds says whether a use of a path is allowed: where it lies, because the guest uses
// it so already, or because every guest may read it. No place for files is one for programs,
// which the host would run.
func (p *places) holds(u use) bool {
	lies := p.lies(u.path) && !u.ofProgram() && (p.Anywhere || !u.ofNode() || image.InDev(u.path))
	return lies || slices.Contains(p.known, u) || u.stock()
}

// refuse says why something is not allowed.
func (p *places) refuse(what string) error {
	if !strings.HasPrefix(what, "/") {
		return fault.New(fault.Denied, fault.Call, "%s may not use %s: it reaches beyond what the rules give this client", p.who, what)
	}
	if len(p.Where) == 0 {
		return fault.New(fault.Denied, fault.Call, "%s may not use %s: the rules give this client no place for files", p.who, what)
	}
	return fault.New(fault.Denied, fault.Call, "%s may not use %s: files have to lie in %s", p.who, what, strings.Join(p.Where, ", "))
}

// Path checks a path that a call names by itself: a disk of the guest, or a file that
// the call writes, which has to lie in the places.
func (g *Gate) Path(w Who, verb Verb, on Object, path string, writes bool) error {
	rules := g.rules.Load()
	if rules == nil || w.Trusted() {
		return nil
	}
	p := rules.placesFor(g, w, verb, on)
	if p.lies(path) || !writes && slices.ContainsFunc(g.named(on), func(u use) bool { return u.path == path && u.ofDisk() }) {
		return nil
	}
	return p.refuse(path)
}

// Program checks a program that the daemon would run to see what it can do. The host's
// own QEMUs anybody may have it look at.
func (g *Gate) Program(w Who, path string) error {
	if (use{"emulator", path}).stock() {
		return nil
	}
	return g.beyond(w, Define, "the program "+path)
}

// walker looks through a document for what reaches beyond its guest.
type walker struct{ places }

// hostly are parts of a definition that take something of the host which lies in
// no folder. Each needs a rule with images: any.
var hostly = map[string]bool{"hostdev": true, "shmem": true, "lease": true, "seclabel": true, "resource": true, "bootloader": true}

// peaceful are the types of interfaces and character devices that reach nothing
// of the host which the walk does not see. An interface of type user is none: by it a
// guest reaches what listens on the host for the host alone, as others' displays do.
var (
	peacefulNICs  = []string{"network"}
	peacefulChars = []string{"", "pty", "null", "vc", "unix", "file", "pipe", "dev", "stdio", "spicevmc", "spiceport", "qemu-vdagent"}
	peacefulDisks = []string{"", "file", "block", "volume"}
)

// walk checks an element, which is in another or in none, and all that is in it.
func (w walker) walk(in, e *xmltree.Element) error {
	if w.Anywhere || e == nil || e.Name == "metadata" || e.Name == "description" || e.Name == "title" {
		return nil
	}
	if err := w.judge(in, e); err != nil {
		return err
	}
	for _, child := range e.Elements() {
		if err := w.walk(e, child); err != nil {
			return err
		}
	}
	return nil
}

// judge checks an element by itself. What a client may say there as he likes is listed in
// testdata/free.txt.
func (w walker) judge(in, e *xmltree.Element) error {
	if e.Space != "" || hostly[e.Name] && !isOrdinary(in, e) {
		return w.refuse("<" + e.Name + ">")
	}
	if err := w.kind(in, e); err != nil {
		return err
	}
	for _, u := range own(in, e) {
		switch {
		case w.holds(u):
		case u.ofProgram():
			return w.refuse("the program " + u.path)
		case u.ofNode() && w.lies(u.path):
			return w.refuse("the device " + u.path + ", which does not lie in /dev")
		default:
			return w.refuse(u.path)
		}
	}
	for _, u := range opened(e) {
		if !w.opens(u) && !slices.Contains(w.known, u) {
			return w.refuse(u.as + " '" + u.path + "'")
		}
	}
	return nil
}

// isOrdinary says whether a label is one that each guest is given anyway, as a definition that
// ran tells.
func isOrdinary(in, e *xmltree.Element) bool {
	return e.Name == "seclabel" && in != nil && in.Name == "domain" && e.Attr("type") == "dynamic" && len(e.Children) == 0
}

// kind checks the types of devices, and of what is behind sources of random numbers.
func (w walker) kind(in, e *xmltree.Element) error {
	sort, allowed := e.Attr("type"), []string(nil)
	switch e.Name {
	case "disk", "backingStore", "mirror":
		allowed = peacefulDisks
		if pool := e.Child("source").Attr("pool"); pool != "" {
			return w.volume(pool)
		}
	case "interface":
		allowed = peacefulNICs
		if network := joined(e); network != "" && !w.joins(network) && !slices.Contains(w.known, use{joins, network}) {
			return w.refuse("network '" + network + "'")
		}
		if network := mingled(e); network != "" && !w.mingles(network) && !slices.Contains(w.known, use{mingles, network}) {
			return w.refuse("an interface that says <mtu>, or that it is not isolated, on network '" + network + "', which takes the right \"networks\" (leave it out, and it is as the network has it)")
		}
		if link := linked(e); link != "" && !w.calls(link) && !slices.Contains(w.known, use{links, link}) {
			return w.refuse("a link that is called '" + link + "' (leave <target> out, and it is given a name)")
		}
	case "graphics", "listen":
		if address := listened(e); address != "" && !slices.Contains(w.known, use{listens, address}) {
			return w.refuse("a display that listens on '" + address + "'")
		}
		return nil
	case "serial", "parallel", "console", "channel", "smartcard", "redirdev":
		allowed = peacefulChars
		if end := spoken(e); end != "" && !w.agent && !slices.Contains(w.known, use{speaks, end}) {
			return w.refuse("the channel of the guest's agent with an end of its own, which takes the right \"agent\" (or leave <source> out, and type it unix)")
		}
	case "backend":
		if in == nil || in.Name != "rng" {
			return nil
		}
		allowed = peacefulChars
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

// joined is the network that an interface is on; empty: none.
func joined(e *xmltree.Element) string {
	if e.Name != "interface" {
		return ""
	}
	return e.Child("source").Attr("network")
}

// mingled is the network of which an interface says what concerns the others there: that it reaches
// them even where their ports are isolated, or how large a packet may be, for the kernel has a bridge
// take the least of its ports; empty: it says neither.
func mingled(e *xmltree.Element) string {
	if e.Child("port").Attr("isolated") != "no" && e.Child("mtu").Attr("size") == "" {
		return ""
	}
	return joined(e)
}

// linked is what an interface has its link on the host called; empty: as the daemon likes.
func linked(e *xmltree.Element) string {
	if e.Name != "interface" {
		return ""
	}
	return e.Child("target").Attr("dev")
}

// calls says whether a client may call a link of the host's so: as what it may define, or as
// the daemon would. By any name it could take one that the host is to have for itself, such as
// docker0, before the host does.
func (r *Rules) calls(w Who, v Verb, o Object, row string) bool {
	number, ofRow := strings.CutPrefix(o.Name, row)
	if _, err := strconv.ParseUint(number, 10, 32); ofRow && err == nil {
		return true
	}
	_, yes := r.Allows(w, v, o)
	return yes
}

// spoken is the host's end of the channel of a guest's agent, where it is not the daemon's own;
// empty: it is that, or it is no such channel. Who has that end has the guest do what he likes, as root.
func spoken(e *xmltree.Element) string {
	sort, path := e.Attr("type"), e.Child("source").Attr("path")
	if e.Name != "channel" || !guest.IsAgents(e.Child("target").Attr("name")) || sort == "unix" && path == "" {
		return ""
	}
	return sort + " " + path
}

// listened is where a display can be reached from elsewhere than its host; empty: it
// cannot, or it is said by another element.
func listened(e *xmltree.Element) string {
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
