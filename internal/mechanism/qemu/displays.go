package qemu

import (
	"net"
	"strconv"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// audios adds the host's ends of sound.
func (b *builder) audios() error {
	for _, a := range b.Definition.Devices.Audios {
		if a.Type != "none" && a.Type != "spice" {
			return unsupported("audio backends of type %q are not built", a.Type)
		}
		b.add("audiodev", properties{{"id", "audio" + number(a.ID)}, {"driver", a.Type}})
	}
	return nil
}

// audioOf returns the backend that a device uses: the one it names, or the first.
func (b *builder) audioOf(id uint) string {
	for _, a := range b.Definition.Devices.Audios {
		if id == 0 || id == a.ID {
			return "audio" + number(a.ID)
		}
	}
	return ""
}

func (b *builder) graphics() error {
	seen := map[string]bool{}
	for _, g := range b.Definition.Devices.Graphics {
		if seen[g.Type] {
			return unsupported("only one display of type %s is possible", g.Type)
		}
		seen[g.Type] = true
		if len(g.Listens) > 1 && !b.dryRun { // libvirt accepts such a definition as well
			return unsupported("devices/graphics/listen: the display of type %s has %d places to listen, and QEMU listens in one; keep one", g.Type, len(g.Listens))
		}
		var err error
		switch g.Type {
		case "vnc":
			err = b.vnc(g)
		case "spice":
			err = b.spice(g)
		default:
			err = unsupported("displays of type %q are not built", g.Type)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// listenOf returns the address of a display; the default is this host only.
func listenOf(g *device.Graphics) device.Listen {
	l := device.Listen{Type: "address"}
	if len(g.Listens) > 0 {
		l = g.Listens[0]
	}
	if l.Address == "" {
		l.Address = "127.0.0.1"
	}
	return l
}

// firstVNC is the port of VNC display 0.
const firstVNC = 5900

func (b *builder) vnc(g *device.Graphics) error {
	vnc := optionList{}
	switch l := listenOf(g); l.Type {
	case "socket":
		path, err := b.displaySocket(g)
		if err != nil {
			return err
		}
		if g.WebSocket != 0 { // QEMU would open the websocket on every address of the host
			return unsupported("a VNC display with a websocket beside a socket of the host's; let it listen on an address")
		}
		vnc.add("vnc", "unix:"+path)
	case "none":
		vnc.raw("none")
	default:
		port := g.Port
		if b.dryRun {
			port = max(port, firstVNC)
		}
		if err := checkVNCPort(port); err != nil {
			return err
		}
		if DaemonListens(g) {
			vnc.raw("none") // AfterStart passes the socket
			break
		}
		vnc.add("vnc", net.JoinHostPort(l.Address, strconv.Itoa(port-firstVNC)))
	}
	if g.WebSocket > 0 {
		vnc.add("websocket", strconv.Itoa(g.WebSocket))
	} else if g.WebSocket < 0 {
		vnc.raw("websocket=on")
	}
	vnc.text("share", g.SharePolicy)
	if needsPassword(g) {
		vnc.raw("password=on")
	}
	if b.dryRun { // a guest with such a password that was defined before this check can still start
		if err := CheckPassword(g); err != nil {
			return err
		}
	}
	vnc.onOff("power-control", g.PowerControl)
	if name := b.audioOf(g.AudioID); name != "" {
		vnc.add("audiodev", name)
	}
	b.addOption("vnc", vnc)
	if g.KeyMap != "" {
		if !isWord(g.KeyMap) {
			return invalid("%q is no keymap", g.KeyMap)
		}
		b.addWords("-k", g.KeyMap)
	}
	return nil
}

// maxVNCPassword is how many characters of a password VNC uses. A longer password would be accepted, but the rest
// would not be checked.
const maxVNCPassword = 8

// CheckPassword refuses a password that the display would check only in part.
func CheckPassword(g *device.Graphics) error {
	if g.Type == "vnc" && len(g.Password) > maxVNCPassword {
		return unsupported("VNC password is %d characters long, only %d permitted", len(g.Password), maxVNCPassword)
	}
	return nil
}

func needsPassword(g *device.Graphics) bool { return g.HasPassword || g.Password != "" }

// displaySocket is the path of a display's socket, chosen if the definition names none.
func (b *builder) displaySocket(g *device.Graphics) (string, error) {
	l := &g.Listens[0]
	if l.Socket == "" && !b.dryRun {
		path, err := socketIn(b.Dir, g.Type+".sock")
		if err != nil {
			return "", err
		}
		l.Socket = path
	}
	if len(l.Socket) > maxSocketPath {
		return "", invalid("the socket %s has a path of %d bytes and sockets allow %d", l.Socket, len(l.Socket), maxSocketPath)
	}
	return l.Socket, nil
}

func (b *builder) spice(g *device.Graphics) error {
	if !b.Capabilities.HasOption("spice", "") {
		return unsupported("this QEMU has no spice: it is built without, or the package with its modules for spice is missing")
	}
	if g.TLSPort != 0 {
		return noSpiceTLS("@tlsPort")
	}
	spice := optionList{}
	switch l := listenOf(g); l.Type {
	case "socket":
		path, err := b.displaySocket(g)
		if err != nil {
			return err
		}
		spice.raw("unix=on")
		spice.add("addr", path)
	case "none":
		spice.raw("port=0")
	default:
		if g.Port <= 0 && !b.dryRun {
			return invalid("a spice display needs a port")
		}
		spice.add("port", strconv.Itoa(max(g.Port, 0)))
		spice.add("addr", l.Address)
	}
	if !needsPassword(g) {
		spice.raw("disable-ticketing=on")
	}
	if err := spiceOptions(&spice, g.Spice); err != nil {
		return err
	}
	if g.GL == device.On {
		spice.raw("gl=on")
		spice.text("rendernode", g.RenderNode)
	}
	spice.raw("seamless-migration=on")
	b.addOption("spice", spice)
	if g.KeyMap != "" && isWord(g.KeyMap) {
		b.addWords("-k", g.KeyMap)
	}
	return nil
}

func noSpiceTLS(at string) error {
	return unsupported("devices/graphics/%s: spice over TLS is not built; have the display listen on this host only, without secure channels, and reach it by SSH", at)
}

func spiceOptions(spice *optionList, o device.SpiceOptions) error {
	if o.DefaultMode == "secure" {
		return noSpiceTLS("@defaultMode")
	}
	for _, c := range o.Channels {
		switch c.Mode {
		case "insecure":
			spice.add("plaintext-channel", c.Name)
		case "any", "":
		default:
			return noSpiceTLS("channel/@mode of channel " + c.Name)
		}
	}
	if o.DefaultMode == "insecure" {
		spice.raw("plaintext-channel=default")
	}
	spice.text("image-compression", o.ImageCompression)
	spice.text("jpeg-wan-compression", o.JPEGCompression)
	spice.text("zlib-glz-wan-compression", o.ZlibCompression)
	spice.onOff("playback-compression", o.Playback)
	spice.text("streaming-video", o.Streaming)
	switch o.Mouse {
	case "client":
		spice.raw("agent-mouse=on")
	case "server":
		spice.raw("agent-mouse=off")
	}
	if o.Clipboard == device.Off {
		spice.raw("disable-copy-paste=on")
	}
	if o.FileTransfer == device.Off {
		spice.raw("disable-agent-file-xfer=on")
	}
	return nil
}

func (b *builder) videos() error {
	for _, v := range b.Definition.Devices.Videos {
		if err := b.video(v); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) video(v *device.Video) error {
	props := properties{{"id", v.Alias}}
	primary := v.Primary == device.On
	driver := ""
	switch v.Model {
	case "none":
		return nil
	case "vga":
		driver = "VGA"
		props.number("vgamem_mb", v.VRAM>>10)
	case "cirrus":
		driver = "cirrus-vga"
	case "bochs":
		driver = "bochs-display"
		props.number("vgamem", v.VRAM<<10)
	case "ramfb":
		driver = "ramfb"
	case "vmvga":
		driver = "vmware-svga"
		props.number("vgamem_mb", v.VRAM>>10)
	case "qxl":
		driver = qxl(v, primary, &props)
	case "virtio":
		driver = b.virtioVideo(v, primary, &props)
	default:
		return unsupported("video devices of model %q are not built", v.Model)
	}
	if v.ResolutionX > 0 && v.ResolutionY > 0 {
		props.add("xres", v.ResolutionX)
		props.add("yres", v.ResolutionY)
	}
	if !primary && (v.Model == "vga" || v.Model == "cirrus" || v.Model == "vmvga") {
		return unsupported("video model %s can be the primary device only", v.Model)
	}
	if err := b.place(&props, &v.Info); err != nil {
		return err
	}
	return b.addDevice(driver, props)
}

// qxl sizes its memories in bytes and megabytes, in turn.
func qxl(v *device.Video, primary bool, props *properties) string {
	props.number("max_outputs", v.Heads)
	props.number("ram_size", v.RAM<<10)
	props.number("vram_size", v.VRAM<<10)
	props.add("vram64_size_mb", v.VRAM64>>10)
	props.number("vgamem_mb", v.VGAMem>>10)
	if primary {
		return "qxl-vga"
	}
	return "qxl"
}

func (b *builder) virtioVideo(v *device.Video, primary bool, props *properties) string {
	props.number("max_outputs", v.Heads)
	props.toggle("blob", v.Blob)
	gl := ""
	if v.Accel3D == device.On {
		gl = "-gl"
	}
	switch {
	case b.board == microvm || b.board == isapc: // it has no bus for it
		return "virtio-gpu" + gl + "-device"
	case primary:
		return "virtio-vga" + gl
	}
	return "virtio-gpu" + gl + "-pci"
}

// soundDrivers are the supported sound cards.
var soundDrivers = map[string]string{
	"ich6": "intel-hda", "ich9": "ich9-intel-hda", "ac97": "AC97", "es1370": "ES1370", "sb16": "sb16", "usb": "usb-audio",
}

// codecDrivers are the codecs of a high definition sound card.
var codecDrivers = map[string]string{"duplex": "hda-duplex", "micro": "hda-micro", "output": "hda-output"}

func (b *builder) sounds() error {
	for _, s := range b.Definition.Devices.Sounds {
		if s.Model == "pcspk" {
			continue // the board's
		}
		if err := b.sound(s); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) sound(s *device.Sound) error {
	driver, ok := soundDrivers[s.Model]
	if !ok {
		return unsupported("sound cards of model %q are not built", s.Model)
	}
	audio := b.audioOf(s.AudioID)
	props := properties{{"id", s.Alias}}
	isHDA := s.Model == "ich6" || s.Model == "ich9"
	if !isHDA {
		props.text("audiodev", audio)
	}
	if err := b.place(&props, &s.Info); err != nil {
		return err
	}
	if err := b.addDevice(driver, props); err != nil || !isHDA {
		return err
	}
	codecs := s.Codecs
	if len(codecs) == 0 {
		codecs = []string{"duplex"}
	}
	for i, codec := range codecs {
		driver, ok := codecDrivers[codec]
		if !ok {
			return unsupported("sound codecs of type %q are not built", codec)
		}
		props := properties{{"id", s.Alias + "-codec" + strconv.Itoa(i)}, {"bus", s.Alias + ".0"}, {"cad", i}}
		props.text("audiodev", audio)
		if err := b.addDevice(driver, props); err != nil {
			return err
		}
	}
	return nil
}
