package authz

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// use is how a definition uses a path, a network or a secret. Reading and writing a file are different uses,
// and so are different formats: a guest must not write a disk that it shares for reading, and its writes
// into a raw disk must not be parsed as an image header.
type use struct{ as, path string }

// These mark uses that are not files. joins: a network that is joined. mingles: a network with other guests that
// a setting affects. links: a link with a given name. listens: an address at which a display accepts
// connections. speaks: the end of the agent's channel.
const (
	joins   = "network"
	mingles = "network's others"
	links   = "link"
	listens = "listens"
	speaks  = "speaks"
)

// pathAttributes are the attributes with paths as values, and pathTexts the elements with paths as texts. A
// relative path cannot be checked and is refused.
var (
	pathAttributes = []string{"file", "path", "socket", "template", "evdev", "rendernode"}
	pathTexts      = []string{"kernel", "initrd", "dtb", "loader", "nvram", "emulator", "path", "backend"}
)

// ownUses are the uses of paths by an element itself; in is its parent or nil. Device names inside the guest are
// not paths of the host.
func ownUses(in, e *xmltree.Element) []use {
	if e.Name == "target" || e.Name == "cmdline" {
		return nil
	}
	var found []use
	as := role(in, e)
	if text := strings.TrimSpace(e.Text()); strings.HasPrefix(text, "/") || text != "" && isPath(pathTexts, e.Name, in, e) {
		found = append(found, use{as, text})
	}
	if in != nil && in.Name == "tpm" && e.Attr("type") == "passthrough" && e.Child("device").Attr("path") == "" {
		found = append(found, use{"backend/device node@path", "/dev/tpm0"}) // the default device
	}
	if e.Name == "gl" && e.Attr("rendernode") == "" && e.Attr("enable") == "yes" {
		found = append(found, use{as + "@rendernode", "/dev/dri"}) // the host's first graphics adapter
	}
	for _, a := range e.Attrs {
		if strings.HasPrefix(a.Value, "/") || a.Value != "" && isPath(pathAttributes, a.Name, in, e) {
			found = append(found, use{as + "@" + a.Name, a.Value})
		}
	}
	return found
}

// isPath says whether a name stands for a path: always, or because it names a source. Only an interface's
// source names a link by that attribute.
func isPath(names []string, name string, in, e *xmltree.Element) bool {
	return slices.Contains(names, name) || (name == "dev" || name == "dir") && e.Name == "source" && (in == nil || in.Name != "interface")
}

func isDisk(e *xmltree.Element) bool {
	return e != nil && slices.Contains([]string{"disk", "backingStore", "mirror"}, e.Name)
}

// role says what an element uses its paths as.
func role(in, e *xmltree.Element) string {
	as := e.Name
	if in != nil {
		as = in.Name + "/" + as
	}
	switch {
	case e.Name == "source" && isDisk(in):
		format := in.Child("driver").Attr("type")
		if in.Name != "disk" {
			format = in.Child("format").Attr("type")
		}
		if format == "" {
			format = "raw"
		}
		as += " " + format
		if in.Name == "disk" && in.Child("readonly") == nil && in.Attr("device") != "cdrom" {
			as += " written"
		}
	case e.Name == "loader" && e.Attr("readonly") == "no":
		as += " written"
	case e.Name == "gl", in != nil && isNode(in, e):
		as += " node"
	case e.Name == "source" && in != nil && in.Name != "interface": // of a character device
		as += " " + in.Attr("type") + " " + cmp.Or(e.Attr("mode"), "connect") + " " + cmp.Or(e.Attr("append"), "off")
	}
	return as
}

// isNode says whether an element names the host's device behind its parent.
func isNode(in, e *xmltree.Element) bool {
	return e.Name == "source" && (in.Name == "input" || in.Attr("type") == "dev") || e.Name == "device" && in.Name == "backend"
}

// ofNode says whether the use is of a device of the host other than a disk. Symbolic links are not resolved
// for it, so it must lie where only root can make links.
func (u use) ofNode() bool {
	return strings.Contains(u.as, " node@") || u.as == "backend" || strings.HasSuffix(u.as, "/backend")
}

// ofDisk says whether the use is of a disk's data.
func (u use) ofDisk() bool {
	return strings.HasPrefix(u.as, "disk/source") || strings.HasPrefix(u.as, "backingStore/source")
}

// ofProgram says whether the use is a program that is run on the host.
func (u use) ofProgram() bool { return u.as == "emulator" || strings.HasSuffix(u.as, "/emulator") }

// hostFiles are the programs, the firmware and the devices of the host that every guest may use, by the kind of
// use.
var hostFiles = map[string][]string{
	"emulator":       {"/usr/bin/qemu-system-*"},
	"os/loader":      firmware,
	"nvram@template": firmware,
	"rng/backend":    {"/dev/urandom", "/dev/random", "/dev/hwrng"},
}

var firmware = []string{"/usr/share/OVMF/*", "/usr/share/qemu/*", "/usr/share/seabios/*", "/usr/share/edk2/*"}

// isHostFile says whether every guest may make this use.
func (u use) isHostFile() bool {
	if filepath.Clean(u.path) != u.path {
		return false
	}
	for as, globs := range hostFiles {
		if (u.as == as || strings.HasSuffix(u.as, "/"+as)) && slices.ContainsFunc(globs, func(glob string) bool { return fleet.Matches(glob, u.path) }) {
			return true
		}
	}
	return false
}

// uses are all uses in an element and inside it.
func uses(in, e *xmltree.Element) []use {
	if e == nil || e.Name == "metadata" || e.Name == "description" || e.Name == "title" {
		return nil
	}
	found := append(ownUses(in, e), secretUses(e)...)
	if network := joinedNetwork(e); network != "" {
		found = append(found, use{joins, network})
	}
	if network := affectedNetwork(e); network != "" {
		found = append(found, use{mingles, network})
	}
	if link := linkName(e); link != "" {
		found = append(found, use{links, link})
	}
	if address := listenAddress(e); address != "" {
		found = append(found, use{listens, address})
	}
	if end := agentSocket(e); end != "" {
		found = append(found, use{speaks, end})
	}
	for _, child := range e.Elements() {
		found = append(found, uses(e, child)...)
	}
	return found
}
