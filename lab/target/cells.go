package target

import (
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Cell is a node of memory with its processors.
type Cell struct {
	ID   int
	CPUs string // as libvirt writes a set: 0,1,2
}

// cells reads the nodes out of a host's capabilities.
func cells(document string) ([]Cell, error) {
	var c struct {
		Cells []struct {
			ID   int `xml:"id,attr"`
			CPUs []struct {
				ID int `xml:"id,attr"`
			} `xml:"cpus>cpu"`
		} `xml:"host>topology>cells>cell"`
	}
	if err := xml.Unmarshal([]byte(document), &c); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.XML, "cannot read the daemon's capabilities")
	}
	var all []Cell
	for _, cell := range c.Cells {
		var set []string
		for _, cpu := range cell.CPUs {
			set = append(set, fmt.Sprint(cpu.ID))
		}
		if len(set) > 0 { // a node may have memory only
			all = append(all, Cell{cell.ID, strings.Join(set, ",")})
		}
	}
	return all, nil
}
