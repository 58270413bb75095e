package domainxml

import (
	"time"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

func describeGraphics(n *node, d *device.Graphics) {
	n.need("type", &d.Type, "vnc", "spice")
	describePorts(n, d)
	n.str("keymap", &d.KeyMap)
	if d.Type == "spice" {
		n.str("defaultMode", &d.Spice.DefaultMode, "any", "secure", "insecure")
	}
	describePassword(n, d)
	n.str("connected", &d.Connected, "keep", "disconnect", "fail")
	if d.Type == "vnc" {
		n.str("sharePolicy", &d.SharePolicy, "allow-exclusive", "force-shared", "ignore")
		n.yes("powerControl", &d.PowerControl)
	}
	each(n, "listen", &d.Listens, describeListen)
	if d.Type == "spice" {
		describeSpice(n, d)
	}
	n.in("audio", func(n *node) { num(n, "id", &d.AudioID) })
	n.in("alias", func(n *node) { n.str("name", &d.Alias) })
}

// describePorts describes ports and the first address, which is in an attribute and
// in a <listen> element.
func describePorts(n *node, d *device.Graphics) {
	num(n, "port", &d.Port)
	if d.Type == "spice" {
		num(n, "tlsPort", &d.TLSPort)
	}
	n.yes("autoport", &d.AutoPort)
	if d.Type == "vnc" {
		num(n, "websocket", &d.WebSocket)
	}
	var address, socket string
	if len(d.Listens) > 0 {
		address = d.Listens[0].Address
		socket = d.Listens[0].Socket
	}
	said := n.e.Child("listen").Attr("address")
	if n.str("listen", &address); n.strict && address != "" && said != "" && said != address {
		n.refuse("listen", "%q is not the address %q of the first <listen>; leave one of them out", address, said)
	}
	if n.reading() && address != "" && n.e.Child("listen") == nil {
		d.Listens = []device.Listen{{Type: "address", Address: address}}
	}
	if d.Type != "vnc" {
		return
	}
	if n.str("socket", &socket); n.reading() && socket != "" && n.e.Child("listen") == nil {
		d.Listens = []device.Listen{{Type: "socket", Socket: socket}}
	}
}

func describePassword(n *node, d *device.Graphics) {
	if n.reading() {
		for _, a := range n.e.Attrs {
			d.HasPassword = d.HasPassword || a.Name == "passwd"
		}
	}
	if n.writing && !n.style.Secure {
		return
	}
	if d.HasPassword {
		n.said("passwd", &d.Password)
	}
	n.str("passwdValidTo", &d.PasswordValidTo)
	if _, err := time.Parse("2006-01-02T15:04:05", d.PasswordValidTo); n.strict && d.PasswordValidTo != "" && err != nil {
		n.invalid("passwdValidTo", "%q is not a time such as 2030-12-31T23:59:59", d.PasswordValidTo)
	}
}

func describeListen(n *node, l *device.Listen) {
	n.need("type", &l.Type, "address", "network", "socket", "none")
	if n.strict && l.Type != "network" && n.e.Attr("network") != "" {
		n.invalid("network", "it is for type network, not %s", l.Type)
	}
	switch l.Type {
	case "address":
		n.str("address", &l.Address)
	case "network":
		n.str("address", &l.Address)
		n.str("network", &l.Network)
	case "socket":
		n.str("socket", &l.Socket)
	}
}

func describeSpice(n *node, d *device.Graphics) {
	s := &d.Spice
	each(n, "channel", &s.Channels, func(n *node, c *device.SpiceChannel) {
		n.str("name", &c.Name)
		n.str("mode", &c.Mode, "any", "secure", "insecure")
	})
	n.in("image", func(n *node) {
		n.choice("compression", &s.ImageCompression, "auto_glz", "auto_lz", "quic", "glz", "lz", "off")
	})
	n.in("jpeg", func(n *node) { n.choice("compression", &s.JPEGCompression, "auto", "never", "always") })
	n.in("zlib", func(n *node) { n.choice("compression", &s.ZlibCompression, "auto", "never", "always") })
	n.in("playback", func(n *node) { n.on("compression", &s.Playback) })
	n.in("streaming", func(n *node) { n.str("mode", &s.Streaming, "filter", "all", "off") })
	n.in("mouse", func(n *node) { n.str("mode", &s.Mouse, "server", "client") })
	n.in("clipboard", func(n *node) { n.yes("copypaste", &s.Clipboard) })
	n.in("filetransfer", func(n *node) { n.yes("enable", &s.FileTransfer) })
	n.in("gl", func(n *node) {
		n.yes("enable", &d.GL)
		n.str("rendernode", &d.RenderNode)
	})
}

func describeVideo(n *node, d *device.Video) {
	n.in("model", func(n *node) {
		n.str("type", &d.Model, "vga", "cirrus", "qxl", "virtio", "bochs", "ramfb", "vmvga", "none")
		num(n, "ram", &d.RAM)
		num(n, "vram", &d.VRAM)
		num(n, "vram64", &d.VRAM64)
		num(n, "vgamem", &d.VGAMem)
		num(n, "heads", &d.Heads)
		n.yes("primary", &d.Primary)
		n.on("blob", &d.Blob)
		n.in("acceleration", func(n *node) { n.yes("accel3d", &d.Accel3D) })
		n.in("resolution", func(n *node) {
			n.present("x", "y")
			if n.strict && (n.e.Attr("x") == "0" || n.e.Attr("y") == "0") {
				n.refuse("", "a resolution is not 0; leave it out")
			}
			num(n, "x", &d.ResolutionX)
			num(n, "y", &d.ResolutionY)
		})
	})
	n.info(&d.Info)
}

func describeSound(n *node, d *device.Sound) {
	n.need("model", &d.Model, "ich6", "ich9", "ac97", "es1370", "sb16", "usb", "pcspk")
	each(n, "codec", &d.Codecs, func(n *node, c *string) { n.str("type", c, "duplex", "micro", "output") })
	n.in("audio", func(n *node) { num(n, "id", &d.AudioID) })
	n.info(&d.Info)
}

func describeAudio(n *node, d *device.Audio) {
	n.present("id")
	positive(n, "id", &d.ID)
	n.need("type", &d.Type, "none", "spice")
}
