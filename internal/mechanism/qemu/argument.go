package qemu

import (
	"bytes"
	"encoding/json"
	"os"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// property is one member of a JSON object, and properties are an object that keeps the order of its
// members: the important ones come first in logs and in ps.
type property struct {
	name  string
	value any
}

type properties []property

// MarshalJSON writes the object. All text of a value stays within its quotes.
func (p properties) MarshalJSON() ([]byte, error) { return p.appendTo(nil) }

func (p properties) appendTo(b []byte) ([]byte, error) {
	b = append(b, '{')
	for i, member := range p {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = appendJSON(b, member.name); err != nil {
			return nil, err
		}
		b = append(b, ':')
		if b, err = appendJSON(b, member.value); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// appendJSON writes a value without the escapes that only browsers need. The common kinds
// of values avoid the general encoder, which costs several times as much.
func appendJSON(b []byte, value any) ([]byte, error) {
	switch v := value.(type) {
	case properties:
		return v.appendTo(b)
	case bool:
		return strconv.AppendBool(b, v), nil
	case string:
		if plain(v) {
			b = append(b, '"')
			b = append(b, v...)
			return append(b, '"'), nil
		}
	case int:
		return strconv.AppendInt(b, int64(v), 10), nil
	case uint:
		return strconv.AppendUint(b, uint64(v), 10), nil
	case uint64:
		return strconv.AppendUint(b, v, 10), nil
	}
	w := bytes.NewBuffer(b)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	return w.Bytes()[:w.Len()-1], nil // without the line end
}

// plain reports whether a string needs no escapes between quotes.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func (p *properties) add(name string, value any) {
	*p = append(*p, property{name, value})
}

// text adds a string, if it is set.
func (p *properties) text(name, value string) {
	if value != "" {
		p.add(name, value)
	}
}

// number adds a number, if it is set.
func (p *properties) number(name string, value uint) {
	if value != 0 {
		p.add(name, value)
	}
}

// toggle adds a boolean, if it is set.
func (p *properties) toggle(name string, s device.Switch) {
	if s != device.Unset {
		p.add(name, s == device.On)
	}
}

func (p properties) get(name string) any {
	for _, member := range p {
		if member.name == name {
			return member.value
		}
	}
	return nil
}

// argument is one object for QEMU to make, on its command line or through its monitor.
type argument struct {
	option string // as on the command line: device, blockdev, netdev, object, chardev, …
	props  properties
	back   *chardev // of a chardev
	raw    string   // the argument, if it is no JSON object
	file   *os.File // sent with a getfd command
}

// monitorCommands are the commands that add and remove what an option makes.
var monitorCommands = map[string]struct{ add, remove, key string }{
	"device":   {"device_add", "device_del", "id"},
	"blockdev": {"blockdev-add", "blockdev-del", "node-name"},
	"netdev":   {"netdev_add", "netdev_del", "id"},
	"object":   {"object-add", "object-del", "id"},
	"chardev":  {"chardev-add", "chardev-remove", "id"},
	"getfd":    {"getfd", "closefd", "fdname"},
	"add-fd":   {"add-fd", "remove-fd", "fdset-id"},
}

// commandLine returns the argument in the form of the command line.
func (p argument) commandLine() (string, error) {
	if p.raw != "" {
		return p.raw, nil
	}
	if p.option == "chardev" {
		return p.back.argument(), nil
	}
	text, err := p.props.appendTo(nil)
	return string(text), err
}

// monitorStep returns the argument as a command of the monitor.
func (p argument) monitorStep() Step {
	m := monitorCommands[p.option]
	props := p.props
	if p.back != nil {
		props = p.back.arguments()
	}
	undo := removeStep(p.option, props.get(m.key))
	return Step{Command: m.add, Args: props, File: p.file, Undo: &undo}
}

// removeStep returns the step that removes what an option made.
func removeStep(option string, name any) Step {
	m := monitorCommands[option]
	return Step{Command: m.remove, Args: properties{{m.key, name}}}
}

// optionList joins options in the old style: a comma ends a value unless it is
// doubled.
type optionList []string

func (l *optionList) add(name, value string) { *l = append(*l, name+"="+escape(value)) }

func (l *optionList) text(name, value string) {
	if value != "" {
		l.add(name, value)
	}
}

func (l *optionList) onOff(name string, s device.Switch) { l.text(name, s.String()) }

// raw adds words that contain no text of a user.
func (l *optionList) raw(words ...string) { *l = append(*l, words...) }

func (l optionList) String() string { return strings.Join(l, ",") }

func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }
