package guest_test

import (
	"fmt"
	"os"
	"os/exec"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel of amd64 has two more doors for calls, with numbers of their own, which a filter that looks at numbers
// alone would mistake.

func init() {
	calls["call the kernel as a program of 32 bits"] = func(targets) error {
		return exec.Command(os.Args[0], oldDoor).Run() //nolint:noctx // ends on its own: by a signal if the interface is missing
	}
	calls["call the kernel by long numbers"] = func(targets) error {
		const x32 = 0x40000000
		_, err := raw(unix.SYS_GETPID|x32, 0, 0, 0)
		return err
	}
	calls["change its segments"] = func(targets) error {
		var table [64]byte
		_, err := raw(unix.SYS_MODIFY_LDT, 0, uintptr(unsafe.Pointer(&table)), unsafe.Sizeof(table))
		return err
	}
}

// oldDoor is the argument that makes the test's own binary ask for its process number by that interface.
const oldDoor = "by-the-old-door"

func throughOldDoor() int {
	const getPID = 20 // there
	code, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err == nil {
		copy(code, []byte{
			0x8b, 0x42, 0x08, // mov eax, [rdx+8]
			0xcd, 0x80, // int 0x80
			0x89, 0x42, 0x0c, // mov [rdx+12], eax
			0xc3, // ret
		})
		err = unix.Mprotect(code, unix.PROT_READ|unix.PROT_EXEC)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// A Go func value points to a closure: the address of its code, and then its variables. The code gets it in
	// rdx.
	f := &struct {
		code           unsafe.Pointer
		number, result int32
	}{unsafe.Pointer(&code[0]), getPID, 0}
	(*(*func())(unsafe.Pointer(&f)))()
	if int(f.result) != os.Getpid() {
		fmt.Fprintln(os.Stderr, "the old door says", f.result)
		return 1
	}
	return 0
}
