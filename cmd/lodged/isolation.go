package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/lodge-kvm/lodge/chamber"
	"github.com/lodge-kvm/lodge/kernel"
	"github.com/lodge-kvm/lodge/label"
)

// isolate prepares what guests' QEMUs, and other programs that read what may be
// hostile, run in and as; nothing where that is turned off.
func (o *options) isolate(groups *kernel.Cgroups, labels *label.Host, log *slog.Logger, opened *closers) (*chamber.Quarters, error) {
	switch o.isolation {
	case "on":
	case "off":
		if o.cores {
			return nil, errors.New("--core-scheduling needs --isolation=on")
		}
		if o.labels == labelsRequired {
			return nil, errors.New("--security-labels=require needs --isolation=on")
		}
		log.Warn("guests are not isolated: each QEMU may do what this daemon may")
		return nil, nil
	default:
		return nil, errors.New("--isolation is on or off")
	}
	if o.users == "" {
		o.users = chamber.DefaultUsers(o.number())
	}
	users, err := chamber.ParseUsers(o.users)
	if err == nil {
		err = users.Survey(nil) // of guests that run already
	}
	if err != nil {
		return nil, err
	}
	house, err := chamber.Open(labels.Content())
	if err != nil {
		return nil, fmt.Errorf("%w; --isolation=off runs guests without", err)
	}
	opened.add(house.Close)
	if absent := house.Absent(); len(absent) > 0 {
		log.Warn("this kernel lacks parts of what isolates guests", "absent", strings.Join(absent, ", "))
	}
	if o.cores {
		if err := house.ShareNoCore(); err != nil {
			log.Warn("guests may run on one core at the same time", "cause", err)
		}
	}
	if why, absent := groups.Absent()[kernel.DeviceController]; absent {
		log.Warn("this host does not control devices by group: guests are kept from those that are not theirs by their chambers alone", "cause", why)
	}
	return &chamber.Quarters{House: house, Users: users}, nil
}

// What --security-labels may say.
const (
	labelsAuto     = "auto"
	labelsRequired = "require"
	labelsOff      = "off"
)

// findLabels finds out how guests are labelled, or why they are not.
func (o *options) findLabels(root kernel.Root, log *slog.Logger) (host *label.Host, without, err error) {
	switch o.labels {
	case labelsAuto, labelsRequired:
	case labelsOff:
		return nil, errors.New("the daemon was started with --security-labels=off"), nil
	default:
		return nil, nil, errors.New("--security-labels is auto, require or off")
	}
	if o.isolation == "off" {
		return nil, errors.New("the daemon was started with --isolation=off"), nil
	}
	host, without = label.Find(root, o.instance())
	switch {
	case without != nil && o.labels == labelsRequired:
		log.Error("guests have no labels here, and start only with them", "cause", without)
	case host != nil && !host.Enforcing:
		log.Warn("guests have labels, and the kernel only logs what they forbid", "model", host.Model)
		if o.labels == labelsRequired {
			without = fmt.Errorf("%s is permissive", host.Model)
		}
	case host != nil:
		log.Info("guests have labels", "model", host.Model)
	}
	return host, without, nil
}

// number is the instance's name as a number; 0: the main daemon.
func (o *options) number() uint32 {
	bytes, err := hex.DecodeString(o.instance())
	if err != nil || len(bytes) < 3 {
		return 0
	}
	return 1 + uint32(bytes[0])<<16 | uint32(bytes[1])<<8 | uint32(bytes[2])
}
