package authz

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// use is a path, a network or a secret as a definition uses it. The same file read and written, or as another
// format, is not the same use: what a guest may read of a disk that it shares with others
// it may not write, and what it wrote into a raw disk must not be read as a header.
type use struct{ as, path string }

// joins marks a network among what a definition names, mingles one of which
// it says what concerns the others there, links a link that it has called so, listens an address of the host's at which a display
// waits for whoever comes, and speaks the end of the agent's channel.
const (
	joins   = "network"
	mingles = "network's others"
	links   = "link"
	listens = "listens"
	speaks  = "speaks"
)

// pathly are the attributes whose values are paths, and pathlyTexts the elements whose
// texts are. One that begins at no root is none that can be judged.
var (
	pathly      = []string{"file", "path", "socket", "template", "evdev", "rendernode"}
	pathlyTexts = []string{"kernel", "initrd", "dtb", "loader", "nvram", "emulator", "path", "backend"}
)

// own are the uses of paths by an element itself, which is in another or in none. Where
// a device shows inside its guest is no place of the host.
func own(in, e *xmltree.Element) []use {
	if e.Name == "target" || e.Name == "cmdline" {
		return nil
	}
	var found []use
	as := role(in, e)
	if text := strings.TrimSpace(e.Text()); strings.HasPrefix(text, "/") || text != "" && isPath(pathlyTexts, e.Name, in, e) {
		found = append(found, use{as, text})
	}
	if in != nil && in.Name == "tpm" && e.Attr("type") == "passthrough" && e.Child("device").Attr("path") == "" {
		found = append(found, use{"backend/device node@path", "/dev/tpm0"}) // which is meant where none is named
	}
	if e.Name == "gl" && e.Attr("rendernode") == "" && e.Attr("enable") == "yes" {
		found = append(found, use{as + "@rendernode", "/dev/dri"}) // the host's first graphics adapter
	}
	for _, a := range e.Attrs {
		if strings.HasPrefix(a.Value, "/") || a.Value != "" && isPath(pathly, a.Name, in, e) {
			found = append(found, use{as + "@" + a.Name, a.Value})
		}
	}
	return found
}

// isPath says whether a name stands for a path: by itself, or because it names a source. Only the
// source of an interface is a link by that name.
func isPath(names []string, name string, in, e *xmltree.Element) bool {
	return slices.Contains(names, name) || (name == "dev" || name == "dir") && e.Name == "source" && (in == nil || in.Name != "interface")
}

func isDisk(e *xmltree.Element) bool {
	return e != nil && slices.Contains([]string{"disk", "backingStore", "mirror"}, e.Name)
}

// role says what an element's paths are used as.
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

// isNode says whether an element tells which device of the host's is behind the one that it is in.
func isNode(in, e *xmltree.Element) bool {
	return e.Name == "source" && (in.Name == "input" || in.Attr("type") == "dev") || e.Name == "device" && in.Name == "backend"
}

// ofNode says whether it is a device of the host's that is no disk. What a link leads to is
// not asked of it, so it lies where nobody but root makes links.
func (u use) ofNode() bool {
	return strings.Contains(u.as, " node@") || u.as == "backend" || strings.HasSuffix(u.as, "/backend")
}

// ofDisk says whether it is the data of a disk.
func (u use) ofDisk() bool {
	return strings.HasPrefix(u.as, "disk/source") || strings.HasPrefix(u.as, "backingStore/source")
}

// ofProgram says whether it is run on the host.
func (u use) ofProgram() bool { return u.as == "emulator" || strings.HasSuffix(u.as, "/emulator") }

// stocks are the programs, the firmware and the devices of the host that every guest may
// use, by what it may use them as.
var stocks = map[string][]string{
	"emulator":       {"/usr/bin/qemu-system-*"},
	"os/loader":      firmware,
	"nvram@template": firmware,
	"rng/backend":    {"/dev/urandom", "/dev/random", "/dev/hwrng"},
}

var firmware = []string{"/usr/share/OVMF/*", "/usr/share/qemu/*", "/usr/share/seabios/*", "/usr/share/edk2/*"}

// stock says whether every guest may use that so.
func (u use) stock() bool {
	if filepath.Clean(u.path) != u.path {
		return false
	}
	for as, globs := range stocks {
		if (u.as == as || strings.HasSuffix(u.as, "/"+as)) && slices.ContainsFunc(globs, func(glob string) bool { return fleet.Matches(glob, u.path) }) {
			return true
		}
	}
	return false
}

// uses are all that a document names, and what for.
func uses(in, e *xmltree.Element) []use {
	if e == nil || e.Name == "metadata" || e.Name == "description" || e.Name == "title" {
		return nil
	}
	found := append(own(in, e), opened(e)...)
	if network := joined(e); network != "" {
		found = append(found, use{joins, network})
	}
	if network := mingled(e); network != "" {
		found = append(found, use{mingles, network})
	}
	if link := linked(e); link != "" {
		found = append(found, use{links, link})
	}
	if address := listened(e); address != "" {
		found = append(found, use{listens, address})
	}
	if end := spoken(e); end != "" {
		found = append(found, use{speaks, end})
	}
	for _, child := range e.Elements() {
		found = append(found, uses(e, child)...)
	}
	return found
}
