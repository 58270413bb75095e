package domain

import (
	"fmt"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

func (c *deviceCheck) char(d *device.Char) error {
	what := string(d.Role)
	if d.Role == device.Serial && d.TargetModel != "" && d.TargetModel != d.TargetType {
		return unsupported("serial: a target of type %s has not the model %s; leave the model out", d.TargetType, d.TargetModel)
	}
	// Socket paths are generated for channels only, because a channel has a name.
	return c.backend(what, &d.Backend, d.Role)
}

// channelLetters are the characters of a spice channel's name.
const channelLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."

// backend refuses a backend without the address that it needs to listen or connect.
func (c *deviceCheck) backend(what string, b *device.Backend, role device.CharRole) error {
	says := func(format string, args ...any) string {
		return what + " of type " + b.Type + " " + fmt.Sprintf(format, args...)
	}
	switch b.Type {
	case "file", "dev", "pipe":
		if b.Path == "" {
			return invalid("%s", says("needs a path: add <source path='...'/>"))
		}
	case "unix":
		if b.Path == "" && role != device.Channel {
			return invalid("%s", says("needs a path: add <source mode='bind' path='...'/>"))
		}
	case "tcp":
		if b.Host == "" || b.Service == "" {
			return invalid("%s", says("needs a host and a service; to listen on this machine only use host 127.0.0.1"))
		}
	case "udp":
		if b.Service == "" {
			return invalid("%s", says("needs the service that it sends to"))
		}
	case "spicevmc":
		if role != "" && role != device.Channel {
			return unsupported("%s", says("is for channels; use a channel, or another type"))
		}
	case "spiceport":
		if strings.Trim(b.Channel, channelLetters) != "" {
			return fault.New(fault.Invalid, fault.Call, "%s", says("has the channel %q, which has other characters than letters, digits and _-.", b.Channel))
		}
	}
	if strings.HasPrefix(b.Type, "spice") && !c.spice {
		return unsupported("%s", says("needs a display of type spice: add <graphics type='spice'/>, or leave it out"))
	}
	return checkReconnect(b, says)
}

func checkReconnect(b *device.Backend, says func(string, ...any) string) error {
	switch {
	case b.Reconnect == device.Unset && b.ReconnectSec == 0:
		return nil
	case b.Mode != "connect":
		return unsupported("%s", says("listens in mode bind, and only mode connect can reconnect; leave <reconnect> out"))
	case b.Reconnect == device.On && b.ReconnectSec == 0:
		return fault.New(fault.Invalid, fault.Call, "%s", says("reconnects with a timeout of at least 1 second"))
	}
	return nil
}
