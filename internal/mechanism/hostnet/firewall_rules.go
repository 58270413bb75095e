package hostnet

import (
	"net"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// compile returns the rules of the three chains of a network: out, in and nat.
//
// A packet that passes the out chain returns from it and is not accepted there, so
// that it also goes through the in chain of its destination network.
func (r ForwardRules) compile() [3][][]expr.Any {
	var out, in, nat [][]expr.Any
	out = append(out, rule(linkIs(expr.MetaKeyOIFNAME, r.Bridge), pass()))
	in = append(in, rule(linkIs(expr.MetaKeyIIFNAME, r.Bridge), pass()))
	for _, s := range r.Subnets {
		for _, uplink := range r.uplinks() {
			out = append(out, rule(
				within(source, s.Prefix), anyLink(expr.MetaKeyOIFNAME, uplink), pass()))
			answers := []expr.Any(nil)
			if s.NAT {
				answers = connectionKnown()
			}
			in = append(in, rule(
				within(destination, s.Prefix), anyLink(expr.MetaKeyIIFNAME, uplink), answers, pass()))
			if s.NAT && r.NAT != nil {
				nat = append(nat, r.NAT.rules(s.Prefix, uplink)...)
			}
		}
	}
	out = append(out, rule(refuse()))
	in = append(in, rule(refuse()))
	return [3][][]expr.Any{out, in, nat}
}

// uplinks gives the links to make rules for; "" stands for any.
func (r ForwardRules) uplinks() []string {
	if len(r.Uplinks) == 0 {
		return []string{""}
	}
	return r.Uplinks
}

// rules translate the source addresses of packets that leave a subnet. Packets to
// the subnet itself, and to the link's broadcast and multicast addresses, stay as
// they are.
func (t Translation) rules(from netip.Prefix, uplink string) [][]expr.Any {
	nat := [][]expr.Any{rule(within(destination, from), pass())}
	toAll := []string{"224.0.0.0/24", "255.255.255.255/32"}
	if from.Addr().Is6() {
		toAll = []string{"ff02::/16"}
	}
	for _, all := range toAll {
		nat = append(nat, rule(within(destination, netip.MustParsePrefix(all)), pass()))
	}
	leaves := rule(within(source, from), anyLink(expr.MetaKeyOIFNAME, uplink))
	if t.FirstPort != 0 {
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			nat = append(nat, rule(protocol(proto), leaves, t.translate(from, true)))
		}
	}
	return append(nat, rule(leaves, t.translate(from, false)))
}

// translate gives the last step of a rule: the new source.
func (t Translation) translate(from netip.Prefix, ports bool) []expr.Any {
	var steps []expr.Any
	const addrMin, addrMax, portMin, portMax = 1, 2, 3, 4
	if ports {
		steps = append(steps,
			&expr.Immediate{Register: portMin, Data: binaryutil.BigEndian.PutUint16(t.FirstPort)},
			&expr.Immediate{Register: portMax, Data: binaryutil.BigEndian.PutUint16(t.LastPort)})
	}
	if t.First.BitLen() != from.Addr().BitLen() {
		masq := &expr.Masq{}
		if ports {
			masq.ToPorts, masq.RegProtoMin, masq.RegProtoMax = true, portMin, portMax
		}
		return append(steps, masq)
	}
	family := uint32(unix.NFPROTO_IPV4)
	if t.First.Is6() {
		family = unix.NFPROTO_IPV6
	}
	snat := &expr.NAT{Type: expr.NATTypeSourceNAT, Family: family, RegAddrMin: addrMin, RegAddrMax: addrMax, Specified: ports}
	if ports {
		snat.RegProtoMin, snat.RegProtoMax = portMin, portMax
	}
	return append(steps,
		&expr.Immediate{Register: addrMin, Data: t.First.AsSlice()},
		&expr.Immediate{Register: addrMax, Data: t.Last.AsSlice()}, snat)
}

func rule(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// pass ends the chain and lets the packet go on.
func pass() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}} }

func refuse() []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}
}

func linkIs(key expr.MetaKey, name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: linkKey(name)}}
}

func anyLink(key expr.MetaKey, name string) []expr.Any {
	if name == "" {
		return nil
	}
	return linkIs(key, name)
}

func protocol(p byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{p}}}
}

// side is an address of a packet.
type side int

const (
	source side = iota
	destination
)

// within matches packets of a prefix's family with an address inside it.
func within(s side, p netip.Prefix) []expr.Any {
	length := uint32(p.Addr().BitLen() / 8)
	family, offset := byte(unix.NFPROTO_IPV4), uint32(12)
	if p.Addr().Is6() {
		family, offset = unix.NFPROTO_IPV6, 8
	}
	if s == destination {
		offset += length
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: length, Mask: net.CIDRMask(p.Bits(), int(length)*8), Xor: make([]byte, length)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// connectionKnown matches packets that belong to a connection begun before.
func connectionKnown() []expr.Any {
	mask := binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}
