package libvirt

import (
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// paramList is a list of named values under construction, up to a bound.
type paramList struct {
	list []xdr.TypedParam
	most int
}

// add appends a parameter, as long as the list has fewer than most.
func (p *paramList) add(name string, v xdr.TypedValue) {
	if len(p.list) < p.most {
		p.list = append(p.list, xdr.TypedParam{Field: name, Value: v})
	}
}

// number adds an unsigned 64-bit number.
func (p *paramList) number(name string, v uint64) { p.add(name, xdr.Uint64(v)) }

// count adds a number of things, as an unsigned 32-bit number.
func (p *paramList) count(name string, n int) { p.add(name, xdr.Uint(uint32(n))) }

// text adds a text; it leaves out an unknown one.
func (p *paramList) text(name, v string) {
	if v != "" {
		p.add(name, xdr.String(v))
	}
}

// twoPhase serves getters of typed parameters. Clients call them twice: without room
// they get the number of parameters, then they come with room for the parameters.
func twoPhase(params []xdr.TypedParam, room int32) ([]xdr.TypedParam, int32, error) {
	if room == 0 {
		return nil, int32(len(params)), nil
	}
	err := atMost(&params, room)
	return params, int32(len(params)), err
}
