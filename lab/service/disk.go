package service

import (
	"context"
	"fmt"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/session"
)

// Device gives the path of the disk with a serial number, on whatever bus.
func Device(ctx context.Context, s *session.Session, serial string) (string, error) {
	text, err := s.Run(ctx, "sh", "-c", `for d in /sys/block/*; do
		n=$(cat "$d/serial" 2>/dev/null) || n=$(tr -d '\0-\37\200' <"$d/device/vpd_pg80" 2>/dev/null) || continue
		[ "$(echo $n)" = "$1" ] && { echo "/dev/${d##*/}"; exit; }; done; true`, "sh", serial)
	if err != nil {
		return "", fmt.Errorf("cannot look for disk %s: %w", serial, err)
	}
	if text = strings.TrimSpace(text); text == "" {
		return "", fault.New(fault.NotFound, fault.Agent, "%s has no disk with the serial number %q", s.Guest.Name, serial)
	}
	return text, nil
}

// Partition makes the rest of a device, from a sector on, a device of its own, and
// gives that. No table is written: the kernel alone knows of it.
func Partition(ctx context.Context, s *session.Session, device string, sector int) (string, error) {
	_, err := s.Run(ctx, "sh", "-ec", `addpart "$1" 1 "$2" $(($(cat "/sys/block/${1##*/}/size") - $2))`, "sh", device, fmt.Sprint(sector))
	return device + "1", err
}

// Schedule has the guest order its requests to a device in a way; it tells which
// ways there are, where it has not that one.
func Schedule(ctx context.Context, s *session.Session, device, how string) (offered string, ok bool, err error) {
	text, err := s.Run(ctx, "sh", "-c", `f=/sys/block/${1##*/}/queue/scheduler
		modprobe "$2" 2>/dev/null || modprobe "$2-iosched" 2>/dev/null || true
		echo "$2" 2>/dev/null >"$f" || true; cat "$f"`, "sh", device, how)
	text = strings.TrimSpace(text)
	return text, strings.Contains(text, "["+how+"]") || text == how, err
}

// Swap makes a device the guest's swap space.
func Swap(ctx context.Context, s *session.Session, device string) error {
	if _, err := s.Run(ctx, "mkswap", device); err != nil {
		return err
	}
	_, err := s.Run(ctx, "swapon", device)
	return err
}

// Mount makes a file system on a device and mounts it.
func Mount(ctx context.Context, s *session.Session, device, at string) error {
	if _, err := s.Run(ctx, "mkfs.ext4", "-q", "-F", device); err != nil {
		return err
	}
	_, err := s.Run(ctx, "sh", "-c", `mkdir -p "$2" && mount -o noatime "$1" "$2"`, "sh", device, at)
	return err
}
