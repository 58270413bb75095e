package domainxml

import (
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

func describeNIC(n *node, d *device.NIC) {
	n.implied("type", "user")
	n.need("type", &d.Type, "network", "bridge", "direct", "user", "ethernet")
	n.yes("trustGuestRxFilters", &d.TrustGuestRxFilters)
	n.in("mac", func(n *node) { n.mac("address", &d.MAC) })
	n.in("source", func(n *node) { describeNICSource(n, d) })
	n.in("bandwidth", func(n *node) {
		object(n, "inbound", &d.Inbound, describeRate)
		object(n, "outbound", &d.Outbound, describeRate)
	})
	n.in("port", func(n *node) { n.yes("isolated", &d.Isolated) })
	n.in("target", func(n *node) {
		n.str("dev", &d.Target)
		n.yes("managed", &d.Managed)
	})
	n.in("model", func(n *node) {
		if n.str("type", &d.Model); n.reading() {
			d.Model = strings.ToLower(d.Model)
		}
	})
	n.in("driver", func(n *node) { describeNICDriver(n, d) })
	n.in("link", func(n *node) { n.str("state", &d.Link, "up", "down") })
	n.in("mtu", func(n *node) { num(n, "size", &d.MTU) })
	n.info(&d.Info)
}

func (n *node) mac(attr string, p *string) {
	if n.str(attr, p); n.writing || *p == "" {
		return
	}
	mac, err := device.ParseMAC(*p)
	if err != nil {
		n.invalid(attr, "%v", err)
		return
	}
	if mac[0]&1 == 1 {
		n.invalid(attr, "%s is a multicast address", *p)
	}
	*p = mac.String()
}

func describeNICSource(n *node, d *device.NIC) {
	switch d.Type {
	case "network":
		n.str("network", &d.Network)
		n.str("portgroup", &d.PortGroup)
		// A running guest's interface shows the bridge that its network led to.
		n.str("bridge", &d.Bridge)
		n.ignore("portid")
	case "bridge":
		n.str("bridge", &d.Bridge)
	case "direct":
		n.str("dev", &d.HostDev)
		n.str("mode", &d.DirectMode, "vepa", "bridge", "private", "passthrough")
	}
}

func describeRate(n *node, r *device.Rate) {
	num(n, "average", &r.Average)
	num(n, "peak", &r.Peak)
	num(n, "floor", &r.Floor)
	num(n, "burst", &r.Burst)
}

func describeNICDriver(n *node, d *device.NIC) {
	n.str("name", &d.Backend, "vhost", "qemu")
	n.str("txmode", &d.TxMode, "iothread", "timer")
	n.on("ioeventfd", &d.IOEventFD)
	n.on("event_idx", &d.EventIdx)
	num(n, "queues", &d.Queues)
	num(n, "rx_queue_size", &d.RxQueue)
	num(n, "tx_queue_size", &d.TxQueue)
	n.on("rss", &d.RSS)
	n.on("rss_hash_report", &d.RSSHash)
	n.virtio(&d.IOMMU, &d.ATS, &d.Packed)
	n.in("host", func(n *node) {
		describeOffloads(n, &d.Host)
		n.on("mrg_rxbuf", &d.MrgRxBuf)
	})
	n.in("guest", func(n *node) { describeOffloads(n, &d.Guest) })
}

func describeOffloads(n *node, o *device.Offloads) {
	n.on("csum", &o.Csum)
	n.on("gso", &o.GSO)
	n.on("tso4", &o.TSO4)
	n.on("tso6", &o.TSO6)
	n.on("ecn", &o.ECN)
	n.on("ufo", &o.UFO)
}
