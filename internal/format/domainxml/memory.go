package domainxml

import (
	"fmt"
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/topology"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// maxMemory describes what modules of memory a guest can be given.
func (n *node) maxMemory(d *domain.Definition) {
	if n.writing && d.MaxMemory == 0 && d.MemorySlots == 0 {
		return
	}
	n.in("maxMemory", func(n *node) {
		num(n, "slots", &d.MemorySlots)
		n.bytes("", &d.MaxMemory)
	})
}

func describeMemory(n *node, d *device.Memory) {
	n.need("model", &d.Model, "dimm")
	n.str("access", &d.Access, "shared", "private")
	n.yes("discard", &d.Discard)
	n.in("source", func(n *node) {
		n.leafBytes("pagesize", &d.PageSize)
		n.in("nodemask", func(n *node) { n.textCPUs(&d.Nodes) })
	})
	n.in("target", func(n *node) {
		for _, name := range []string{"size", "node"} {
			if n.reading() && n.child(name) == nil {
				n.invalid("", "a memory device needs a %s", name)
			}
		}
		n.leafBytes("size", &d.Size)
		n.in("node", func(n *node) {
			cell := &d.Cell
			if textOptional(n, &cell); n.reading() {
				d.Cell = *cell
			}
		})
	})
	if n.reading() && d.Size == 0 {
		n.invalid("", "a memory device needs a target with a size and a node")
	}
	n.info(&d.Info)
}

// textCPUs describes a list of processors or cells between the tags.
func (n *node) textCPUs(p *topology.CPUSet) {
	if n.writing {
		if !p.IsEmpty() {
			n.e.Children = append(n.e.Children, xmltree.Text(p.String()))
		}
		return
	}
	set, err := topology.ParseCPUSet(strings.TrimSpace(n.e.Text()))
	if err != nil {
		n.invalid("", "%v", err)
	}
	*p = set
}

// describeDIMM describes a socket for memory. Its base is hexadecimal, whether it
// says so or not.
func describeDIMM(n *node, a *device.DIMM) {
	always(n, "slot", &a.Slot)
	if n.writing {
		if a.Base > 0 {
			n.set("base", fmt.Sprintf("0x%x", a.Base))
		}
		return
	}
	if text := n.e.Attr("base"); text != "" {
		parse(n, "base", "0x"+strings.TrimPrefix(strings.ToLower(text), "0x"), &a.Base)
		if a.Base == 0 {
			n.ignore("base")
		}
	}
}
