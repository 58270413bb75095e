package authz

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// use is one use that a definition makes of the host: of a path, a network, a secret, a link or an address. role is
// the element and how it uses the path. Reading and writing a file are different uses, and so are different formats:
// a guest must not write a disk that it shares for reading, and its writes into a raw disk must not be parsed as an
// image header.
type use struct{ role, path string }

// Roles of uses that are not files.
const (
	useNetwork         = "network"          // an interface joins it
	useOthersOnNetwork = "network's others" // a setting of an interface affects the other guests on it
	useLink            = "link"             // an interface gives its link on the host this name
	useListen          = "listens"          // a display accepts connections at this address
	useAgentChannel    = "speaks"           // the definition chooses the host's end of the guest agent's channel
)

// pathAttributes are the attributes with paths as values, and pathTexts are the elements with paths as text. A
// relative path cannot be checked and is refused. A value that begins with a slash counts as a path in any attribute
// or element.
var (
	pathAttributes = []string{"file", "path", "socket", "template", "evdev", "rendernode"}
	pathTexts      = []string{"kernel", "initrd", "dtb", "loader", "nvram", "emulator", "path", "backend"}
)

// ownUses returns the uses of paths by an element itself, without its children; in is its parent or nil. Device names
// inside the guest (<target>) are not paths of the host.
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

// role returns the role of an element's paths: the element, and how it uses them.
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
	return strings.Contains(u.role, " node@") || u.role == "backend" || strings.HasSuffix(u.role, "/backend")
}

// ofDisk says whether the use is of a disk's data.
func (u use) ofDisk() bool {
	return strings.HasPrefix(u.role, "disk/source") || strings.HasPrefix(u.role, "backingStore/source")
}

// ofProgram says whether the use is a program that is run on the host.
func (u use) ofProgram() bool { return u.role == "emulator" || strings.HasSuffix(u.role, "/emulator") }

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
		if (u.role == as || strings.HasSuffix(u.role, "/"+as)) && slices.ContainsFunc(globs, func(glob string) bool { return fleet.Matches(glob, u.path) }) {
			return true
		}
	}
	return false
}

// uses returns all uses by an element and its children.
func uses(in, e *xmltree.Element) []use {
	if e == nil || e.Name == "metadata" || e.Name == "description" || e.Name == "title" {
		return nil
	}
	found := append(ownUses(in, e), secretUses(e)...)
	if network := joinedNetwork(e); network != "" {
		found = append(found, use{useNetwork, network})
	}
	if network := affectedNetwork(e); network != "" {
		found = append(found, use{useOthersOnNetwork, network})
	}
	if link := linkName(e); link != "" {
		found = append(found, use{useLink, link})
	}
	if address := listenAddress(e); address != "" {
		found = append(found, use{useListen, address})
	}
	if end := agentSocket(e); end != "" {
		found = append(found, use{useAgentChannel, end})
	}
	for _, child := range e.Elements() {
		found = append(found, uses(e, child)...)
	}
	return found
}
