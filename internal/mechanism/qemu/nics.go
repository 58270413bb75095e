package qemu

import (
	"fmt"
	"os"
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

func (b *builder) nics() error {
	for _, n := range b.Definition.Devices.NICs {
		if err := b.nic(n); err != nil {
			return err
		}
	}
	return nil
}

// nic adds a network card and the host's end of it.
func (b *builder) nic(n *device.NIC) error {
	if err := b.netdev(n); err != nil {
		return err
	}
	driver, props, err := b.card(n)
	if err != nil {
		return err
	}
	props.add("netdev", "host"+n.Alias)
	props.add("id", n.Alias)
	props.text("mac", n.MAC)
	props.number("bootindex", b.boot.of(n))
	if err := b.place(&props, &n.Info); err != nil {
		return err
	}
	return b.addDevice(driver, props)
}

func (b *builder) netdev(n *device.NIC) error {
	id := "host" + n.Alias
	a := b.NICs[n.Alias]
	switch {
	case n.Type == "user" && a != nil && a.Wire != nil:
		b.add("netdev", properties{{"type", "socket"}, {"fd", b.passFile(a.Wire, "wire-"+n.Alias)}, {"id", id}})
		return nil
	case n.Type == "user":
		b.add("netdev", properties{{"type", "user"}, {"id", id}})
		return nil
	case a != nil && len(a.Tap) > 0:
	case b.dryRun:
		return nil
	default:
		return invalid("interface %s has no connection to the host", n.MAC)
	}
	props := properties{{"type", "tap"}}
	b.passAll(&props, "fd", n.Alias, a.Tap)
	if len(a.VHost) > 0 {
		props.add("vhost", true)
		b.passAll(&props, "vhostfd", n.Alias, a.VHost)
	}
	props.add("id", id)
	b.add("netdev", props)
	return nil
}

// UserNetwork returns the arguments for a QEMU without a guest that serves a network of type user on
// the first descriptor that is handed to it.
func UserNetwork() []string {
	return []string{
		"-name", "lodge-user-network", "-machine", "none", "-m", "0", "-no-user-config", "-nodefaults", "-display", "none", "-sandbox", ownSeccompOptions,
		"-netdev", `{"type":"user","id":"user"}`,
		"-netdev", fmt.Sprintf(`{"type":"socket","id":"wire","fd":"%d"}`, firstFile),
		"-netdev", `{"type":"hubport","id":"user-port","hubid":0,"netdev":"user"}`,
		"-netdev", `{"type":"hubport","id":"wire-port","hubid":0,"netdev":"wire"}`,
	}
}

// passAll hands over the files of all queues: one file under the singular name, several
// under the plural.
func (b *builder) passAll(props *properties, name, alias string, files []*os.File) {
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = b.passFile(f, fmt.Sprintf("%s-%s-%d", name, alias, i))
	}
	if len(files) > 1 {
		name += "s"
	}
	props.add(name, strings.Join(names, ":"))
}

// cards are the supported emulated network cards.
var cards = []string{
	"e1000", "e1000e", "e1000-82544gc", "e1000-82545em", "rtl8139", "ne2k_pci", "pcnet", "i82550", "i82551",
	"i82557a", "i82557b", "i82557c", "i82558a", "i82558b", "i82559a", "i82559b", "i82559c", "i82559er", "i82562", "i82801",
	"igb", "tulip", "vmxnet3",
}

func (b *builder) card(n *device.NIC) (driver string, props properties, err error) {
	if strings.HasPrefix(n.Model, "virtio") {
		return b.virtioCard(n)
	}
	for _, model := range cards {
		if n.Model != model {
			continue
		}
		if n.Queues > 1 {
			return "", nil, unsupported("interface %s: model %s has one queue", n.MAC, n.Model)
		}
		return model, nil, nil
	}
	return "", nil, unsupported("interface %s: network cards of model %q are not built; use virtio, e1000e, e1000 or rtl8139", n.MAC, n.Model)
}

func (b *builder) virtioCard(n *device.NIC) (string, properties, error) {
	if n.TxMode != "" && n.TxMode != "iothread" && n.TxMode != "timer" {
		return "", nil, invalid("interface %s has the unknown txmode %q", n.MAC, n.TxMode)
	}
	props := properties{}
	switch n.TxMode {
	case "iothread":
		props.add("tx", "bh")
	case "timer":
		props.add("tx", "timer")
	}
	props.toggle("ioeventfd", n.IOEventFD)
	h, g := n.Host, n.Guest
	for _, o := range []struct {
		name string
		s    device.Switch
	}{
		{"csum", h.Csum},
		{"gso", h.GSO},
		{"host_tso4", h.TSO4},
		{"host_tso6", h.TSO6},
		{"host_ecn", h.ECN},
		{"host_ufo", h.UFO},
		{"mrg_rxbuf", n.MrgRxBuf},
		{"guest_csum", g.Csum},
		{"guest_tso4", g.TSO4},
		{"guest_tso6", g.TSO6},
		{"guest_ecn", g.ECN},
		{"guest_ufo", g.UFO},
		{"rss", n.RSS},
		{"hash", n.RSSHash},
	} {
		props.toggle(o.name, o.s)
	}
	queues := n.Queues
	if a := b.NICs[n.Alias]; a != nil && len(a.Tap) > 0 {
		queues = uint(len(a.Tap))
	}
	if queues > 1 {
		props.add("mq", true)
		if b.board != microvm {
			props.add("vectors", 2*queues+2)
		}
	}
	props.number("rx_queue_size", n.RxQueue)
	props.number("tx_queue_size", n.TxQueue)
	mtu := n.MTU
	if a := b.NICs[n.Alias]; a != nil && mtu == 0 {
		mtu = a.MTU
	}
	props.number("host_mtu", mtu)
	model := strings.TrimPrefix(n.Model, "virtio-net")
	driver, err := b.virtio("virtio-net", model, n.EventIdx, n.IOMMU, n.ATS, n.Packed, &props)
	return driver, props, err
}
