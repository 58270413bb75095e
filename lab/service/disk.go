package service

import (
	"context"
	"fmt"
	"strings"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/lab/session"
)

// Device gives the path of the disk with a serial number, on whatever bus.
func Device(ctx context.Context, s *session.Session, serial string) (string, error) {
	text, err := s.Run(ctx, "sh", "-c", `for d in /sys/block/*; do
		n=$(cat "$d/serial" 2>/dev/null) || n=$(tr -d '\0-\37' <"$d/device/vpd_pg80" 2>/dev/null) || continue
		[ "$(echo $n)" = "$1" ] && { echo "/dev/${d##*/}"; exit; }; done; true`, "sh", serial)
	if err != nil {
		return "", fmt.Errorf("cannot look for disk %s: %w", serial, err)
	}
	if text = strings.TrimSpace(text); text == "" {
		return "", fault.New(fault.NotFound, fault.Agent, "%s has no disk with the serial number %q", s.Guest.Name, serial)
	}
	return text, nil
}

// Swap makes a disk the guest's swap space.
func Swap(ctx context.Context, s *session.Session, serial string) error {
	device, err := Device(ctx, s, serial)
	if err != nil {
		return err
	}
	if _, err = s.Run(ctx, "mkswap", device); err != nil {
		return err
	}
	_, err = s.Run(ctx, "swapon", device)
	return err
}

// Mount makes a file system on a disk and mounts it.
func Mount(ctx context.Context, s *session.Session, serial, at string) error {
	device, err := Device(ctx, s, serial)
	if err != nil {
		return err
	}
	if _, err = s.Run(ctx, "mkfs.ext4", "-q", "-F", device); err != nil {
		return err
	}
	_, err = s.Run(ctx, "sh", "-c", `mkdir -p "$2" && mount -o noatime "$1" "$2"`, "sh", device, at)
	return err
}
