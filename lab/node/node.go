// Package node asks a daemon about the host that it runs on: what it is, and what it
// does at the moment. It is for a lab that runs elsewhere and sees no /proc of that
// host.
//
// What belongs here: libvirt's calls about the node, in the lab's own words and
// units. What does not: guests.
package node

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/machine"
)

// Caller makes calls at the daemon.
type Caller interface {
	Call(ctx context.Context, proc int32, args, ret xdr.Message) error
}

// Host is what values measured at the host depend on, as far as libvirt has words for
// it: it has none for the kernel, the governor and the load.
func Host(ctx context.Context, c Caller) (machine.Host, error) {
	var info xdr.NodeGetInfoRet
	var able xdr.ConnectGetCapabilitiesRet
	err := errors.Join(
		c.Call(ctx, xdr.ProcNodeGetInfo, nil, &info),
		c.Call(ctx, xdr.ProcConnectGetCapabilities, nil, &able),
	)
	if err != nil {
		return machine.Host{}, fault.Wrap(err, fault.Failed, fault.Host, "cannot get to know the daemon's host")
	}
	var doc capabilities
	if err := xml.Unmarshal([]byte(able.Capabilities), &doc); err != nil {
		return machine.Host{}, fault.Wrap(err, fault.Failed, fault.XML, "cannot read the daemon's capabilities")
	}
	h := machine.Host{Processors: int(info.CPUs), Memory: info.Memory << 10, Virtual: doc.virtual()}
	h.Processor, err = processor(ctx, c)
	h.Processor = cmp.Or(h.Processor, doc.processor())
	return h, err
}

// capabilities are what is read of a daemon's document.
type capabilities struct {
	CPU struct {
		Arch      string `xml:"arch"`
		Model     string `xml:"model"`
		Vendor    string `xml:"vendor"`
		Signature struct {
			Family   string `xml:"family,attr"`
			Model    string `xml:"model,attr"`
			Stepping string `xml:"stepping,attr"`
		} `xml:"signature"`
		Features []struct {
			Name string `xml:"name,attr"`
		} `xml:"feature"`
		Counters []struct {
			Name      string `xml:"name,attr"`
			Frequency int64  `xml:"frequency,attr"` // Hz
		} `xml:"counter"`
	} `xml:"host>cpu"`
}

// processor is named by what sets processors of one kind apart.
func (d *capabilities) processor() string {
	words := []string{d.CPU.Vendor, d.CPU.Model}
	if s := d.CPU.Signature; s.Family != "" {
		words = append(words, "family", s.Family, "model", s.Model, "stepping", s.Stepping)
	}
	text := strings.Join(slices.DeleteFunc(words, func(word string) bool { return word == "" }), " ")
	return cmp.Or(text, d.CPU.Arch)
}

// virtual is told by the feature that hypervisors show to their guests.
func (d *capabilities) virtual() bool {
	for _, f := range d.CPU.Features {
		if f.Name == "hypervisor" {
			return true
		}
	}
	return false
}

// processor asks for the name that the firmware has for it; "" where a daemon cannot
// tell.
func processor(ctx context.Context, c Caller) (string, error) {
	var ret xdr.ConnectGetSysinfoRet
	err := c.Call(ctx, xdr.ProcConnectGetSysinfo, &xdr.ConnectGetSysinfoArgs{}, &ret)
	if remote.Refused(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var doc struct {
		Entries []struct {
			Name string `xml:"name,attr"`
			Text string `xml:",chardata"`
		} `xml:"processor>entry"`
	}
	if err := xml.Unmarshal([]byte(ret.Sysinfo), &doc); err != nil {
		return "", fault.Wrap(err, fault.Failed, fault.XML, "cannot read what the firmware tells")
	}
	for _, e := range doc.Entries {
		if e.Name == "version" {
			return strings.Join(strings.Fields(e.Text), " "), nil
		}
	}
	return "", nil
}

// TSC is the frequency of the processors' time stamp counters in kHz, if a document
// of capabilities tells; 0 otherwise.
func TSC(document string) int {
	var doc capabilities
	if xml.Unmarshal([]byte(document), &doc) != nil {
		return 0
	}
	for _, c := range doc.CPU.Counters {
		if c.Name == "tsc" && c.Frequency > 0 {
			return int(c.Frequency / 1000)
		}
	}
	return 0
}
