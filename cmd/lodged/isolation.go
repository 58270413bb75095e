package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/lodge-kvm/lodge/chamber"
)

// isolate prepares what guests' QEMUs run in and as; nothing where that is turned
// off.
func (o *options) isolate(log *slog.Logger) (*chamber.House, *chamber.Users, error) {
	switch o.isolation {
	case "on":
	case "off":
		log.Warn("guests are not isolated: each QEMU may do what this daemon may")
		return nil, nil, nil
	default:
		return nil, nil, errors.New("--isolation is on or off")
	}
	if o.users == "" {
		o.users = chamber.DefaultUsers(o.number())
	}
	users, err := chamber.ParseUsers(o.users)
	if err != nil {
		return nil, nil, err
	}
	house, err := chamber.Open()
	if err != nil {
		return nil, nil, fmt.Errorf("%w; --isolation=off runs guests without", err)
	}
	if absent := house.Absent(); len(absent) > 0 {
		log.Warn("this kernel lacks parts of what isolates guests", "absent", strings.Join(absent, ", "))
	}
	return house, users, nil
}

// number is the instance's name as a number; 0: the main daemon.
func (o *options) number() uint32 {
	bytes, err := hex.DecodeString(o.instance())
	if err != nil || len(bytes) < 3 {
		return 0
	}
	return 1 + uint32(bytes[0])<<16 | uint32(bytes[1])<<8 | uint32(bytes[2])
}
