package hostnet

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Firewall is the one nftables table of a daemon. Its layout:
//
//	chain forward      hook forward:     iifname vmap @leaving, then oifname vmap @entering
//	chain postrouting  hook postrouting: iifname vmap @translated
//	chain BRIDGE_out   packets that guests behind the bridge send on: accepts some, refuses all else
//	chain BRIDGE_in    packets to these guests: accepts some, refuses all else
//	chain BRIDGE_nat   source addresses of packets that leave
//
// A packet costs two look-ups, whatever the number of networks. A network's rules
// are replaced or removed in one transaction, without a change to another's. There
// is no chain for input: nftables cannot accept a packet that another table refuses,
// and no rule of this table refuses a guest's DHCP or DNS.
type Firewall struct {
	table nftables.Table
	// mu makes one unit of a read of the table and the transactions that depend on
	// it. It is held for a few requests to the kernel, each bounded; a
	// restore makes a few for each network that it puts back.
	mu      sync.Mutex
	applied map[string]ForwardRules // rules in force by bridge, unless another program removed them; guarded by mu
	laid    bool                    // this daemon has made the parts that all networks share; guarded by mu
}

// NewFirewall names the table of a daemon. It is made with the first rules.
func NewFirewall(table string) *Firewall {
	return &Firewall{table: nftables.Table{Name: table, Family: nftables.TableFamilyINet}, applied: map[string]ForwardRules{}}
}

// ForwardRules are the rules for traffic between a network's guests and the rest.
type ForwardRules struct {
	Bridge  string
	Subnets []Subnet     // subnets behind the bridge that may pass at all; none isolates
	Uplinks []string     // links that traffic may take; none allows all
	NAT     *Translation // nil passes addresses unchanged
}

// Subnet is an address range behind a bridge.
type Subnet struct {
	Prefix netip.Prefix
	NAT    bool // addresses are translated, and only answers come back in
}

// Translation gives the addresses that replace guests' addresses on the way out.
type Translation struct {
	// FirstPort and LastPort bound the source ports of TCP and UDP.
	FirstPort, LastPort uint16
	// First and Last bound the source addresses; invalid, or of the other
	// family, takes that of the link that the packet leaves by.
	First, Last netip.Addr
}

const firewallWait = 10 * time.Second

func firewallConn() (*nftables.Conn, error) {
	return nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return c.SetDeadline(time.Now().Add(firewallWait))
	}))
}

// Apply puts a network's rules in force, in place of those of the same bridge.
func (f *Firewall) Apply(r ForwardRules) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := firewallConn()
	if err == nil {
		err = f.apply(c, r)
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot set the firewall rules of bridge %q", r.Bridge)
}

func (f *Firewall) apply(c *nftables.Conn, r ForwardRules) error {
	there, err := f.exists(c)
	if err != nil {
		return err
	}
	c.AddTable(&f.table)
	maps := f.maps()
	if !there || !f.laid {
		if err := f.lay(c, maps); err != nil {
			return err
		}
	}
	rules := r.compile()
	for i, m := range maps {
		chain := &nftables.Chain{Name: r.Bridge + chainSuffix[i], Table: &f.table}
		c.AddChain(chain)
		c.FlushChain(chain)
		for _, exprs := range rules[i] {
			c.AddRule(&nftables.Rule{Table: &f.table, Chain: chain, Exprs: exprs})
		}
		jump := &expr.Verdict{Kind: expr.VerdictJump, Chain: chain.Name}
		if err := c.SetAddElements(m, []nftables.SetElement{{Key: linkKey(r.Bridge), VerdictData: jump}}); err != nil {
			return err
		}
	}
	if err := c.Flush(); err != nil {
		return err
	}
	f.laid, f.applied[r.Bridge] = true, r
	return nil
}

// Remove removes a network's rules, and with the last network the table. Rules
// that do not exist are no error.
func (f *Firewall) Remove(bridge string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := firewallConn()
	if err == nil {
		err = f.remove(c, bridge)
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot remove the firewall rules of bridge %q", bridge)
}

func (f *Firewall) remove(c *nftables.Conn, bridge string) error {
	there, err := f.exists(c)
	if err != nil {
		return err
	}
	if there {
		if err := f.take(c, bridge); err != nil {
			return err
		}
	}
	delete(f.applied, bridge)
	return nil
}

// take removes the rules of a network that exist, which may be fewer than were made.
func (f *Firewall) take(c *nftables.Conn, bridge string) error {
	now, err := f.look(c)
	if err != nil {
		return err
	}
	_, own := f.applied[bridge]
	last := len(f.applied) == 0 || own && len(f.applied) == 1
	for i, m := range f.maps() {
		if now.jumps[i][bridge] {
			if err := c.SetDeleteElements(m, []nftables.SetElement{{Key: linkKey(bridge)}}); err != nil {
				return err
			}
			delete(now.jumps[i], bridge)
		}
		last = last && len(now.jumps[i]) == 0
	}
	for _, suffix := range chainSuffix {
		if chain := (&nftables.Chain{Name: bridge + suffix, Table: &f.table}); now.chains[chain.Name] {
			c.FlushChain(chain)
			c.DelChain(chain)
		}
	}
	if last {
		c.DelTable(&f.table)
	}
	return c.Flush()
}

// firewallState is the part of the table that exists in the kernel.
type firewallState struct {
	chains map[string]bool
	jumps  [3]map[string]bool // by map, the bridges that are in it; nil for a map that is not there
}

func (f *Firewall) look(c *nftables.Conn) (now firewallState, err error) {
	now.chains = map[string]bool{}
	chains, err := c.ListChainsOfTableFamily(f.table.Family)
	if err != nil {
		return now, err
	}
	for _, chain := range chains {
		if chain.Table.Name == f.table.Name {
			now.chains[chain.Name] = true
		}
	}
	sets, err := c.GetSets(&f.table)
	if err != nil {
		return now, err
	}
	for i, m := range f.maps() {
		if !slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == m.Name }) {
			continue
		}
		elements, err := c.GetSetElements(m)
		if err != nil {
			return now, err
		}
		now.jumps[i] = make(map[string]bool, len(elements))
		for _, e := range elements {
			now.jumps[i][unix.ByteSliceToString(e.Key)] = true
		}
	}
	return now, nil
}

func (f *Firewall) exists(c *nftables.Conn) (bool, error) {
	_, err := c.ListTableOfFamily(f.table.Name, f.table.Family)
	if errors.Is(err, syscall.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// chainSuffix are the ends of the names of a network's chains, in the order of
// maps and of compile.
var chainSuffix = [3]string{"_out", "_in", "_nat"}

func (f *Firewall) maps() [3]*nftables.Set {
	var maps [3]*nftables.Set
	for i, name := range [3]string{"leaving", "entering", "translated"} {
		maps[i] = &nftables.Set{
			Table: &f.table, Name: name, ID: uint32(i + 1), IsMap: true,
			KeyType: nftables.TypeIFName, DataType: nftables.TypeVerdict, KeyByteOrder: binaryutil.NativeEndian,
		}
	}
	return maps
}

// lay makes the maps and chains that all networks share, or repairs them.
func (f *Firewall) lay(c *nftables.Conn, maps [3]*nftables.Set) error {
	for _, m := range maps {
		if err := c.AddSet(m, nil); err != nil {
			return err
		}
	}
	accept := nftables.ChainPolicyAccept
	forward := c.AddChain(&nftables.Chain{
		Name: "forward", Table: &f.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &accept,
	})
	post := c.AddChain(&nftables.Chain{
		Name: "postrouting", Table: &f.table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource, Policy: &accept,
	})
	c.FlushChain(forward)
	c.FlushChain(post)
	lookup := func(chain *nftables.Chain, key expr.MetaKey, m *nftables.Set) {
		c.AddRule(&nftables.Rule{Table: &f.table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: key, Register: 1},
			&expr.Lookup{SourceRegister: 1, DestRegister: 0, IsDestRegSet: true, SetName: m.Name, SetID: m.ID},
		}})
	}
	lookup(forward, expr.MetaKeyIIFNAME, maps[0])
	lookup(forward, expr.MetaKeyOIFNAME, maps[1])
	lookup(post, expr.MetaKeyIIFNAME, maps[2])
	return nil
}

// linkKey returns the name of a link as the kernel compares it: zero-padded.
func linkKey(name string) []byte {
	var key [MaxName + 1]byte
	copy(key[:], name)
	return key[:]
}
