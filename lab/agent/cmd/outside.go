package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/testguest/early"
	"github.com/lodge-kvm/lodge/lab/loop"
	"github.com/lodge-kvm/lodge/lab/wire"
)

// outside ends with the agent, which ends with its connection, and the kernel
// then ends all of the name space: processes, mounts and interfaces.
func outside(how string) {
	err := settle(how)
	if err == nil {
		err = keep([]string{"answer-outside"}, []uintptr{wire.OutsideFile}, func(int) { os.Exit(0) })
	}
	fmt.Fprintln(os.Stderr, "lodge-lab:", err)
	os.Exit(1)
}

// settle makes of the name spaces what a guest would be.
func settle(how string) error {
	var o wire.Outside
	if err := json.Unmarshal([]byte(how), &o); err != nil {
		return fmt.Errorf("cannot read how to be outside: %w", err)
	}
	runtime.LockOSThread() // the child gets the processors of the thread that starts it
	if len(o.CPUs) > 0 {
		var set unix.CPUSet
		for _, cpu := range o.CPUs {
			set.Set(cpu)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("cannot keep to processors %v: %w", o.CPUs, err)
		}
	}
	// Nothing that is mounted here must be seen by the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot have mounts of its own: %w", err)
	}
	if err := mountFile(o.Root, o.At, "ext4", unix.MS_NOATIME, 0); err != nil {
		return err
	}
	if err := mountFile(o.Usr, o.At+"/usr", "erofs", unix.MS_RDONLY, unix.LO_FLAGS_READ_ONLY); err != nil {
		return err
	}
	if err := early.Mount(o.At); err != nil {
		return err
	}
	if err := changeRoot(o.At); err != nil {
		return err
	}
	if err := mountScratch(); err != nil {
		return err
	}
	if err := name(o.Name); err != nil {
		return err
	}
	if err := early.LoopbackUp(); err != nil {
		return err
	}
	return address(o.Net)
}

// mountFile mounts the file system in a file. The loop device goes with the mount.
func mountFile(file, at, kind string, flags uintptr, device uint32) error {
	access := os.O_RDWR
	if device&unix.LO_FLAGS_READ_ONLY != 0 {
		access = os.O_RDONLY
	}
	backing, err := os.OpenFile(file, access, 0)
	if err != nil {
		return err
	}
	defer backing.Close()
	made, err := loop.Attach(backing, access, device)
	if err != nil {
		return fmt.Errorf("cannot make a device of %s: %w", file, err)
	}
	defer made.Close()
	if err := unix.Mount(made.Name(), at, kind, flags, ""); err != nil {
		return fmt.Errorf("cannot mount %s on %s: %w", file, at, err)
	}
	return nil
}
