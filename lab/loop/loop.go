// Package loop makes block devices of files, for as long as somebody has them
// open: they go by themselves, also when the lab is killed.
package loop

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Attach makes a block device of an open file, and opens it with the same access.
// It goes when nobody has it open or mounted. Flags are the kernel's, besides.
func Attach(backing *os.File, access int, flags uint32) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for range 100 { // others may be faster
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, err
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), access, 0)
		if err != nil {
			return nil, err
		}
		config := &unix.LoopConfig{Fd: uint32(backing.Fd())}
		config.Info.Flags = flags | unix.LO_FLAGS_AUTOCLEAR
		copy(config.Info.File_name[:], strings.TrimSpace(backing.Name()))
		err = unix.IoctlLoopConfigure(int(device.Fd()), config)
		if err == nil {
			return device, nil
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
	}
	return nil, unix.EBUSY
}
