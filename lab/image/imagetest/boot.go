// Package imagetest gives tests the lab's guest image that `make lab-image` has
// made, and boots it.
package imagetest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/testguest/guestimagetest"
	"github.com/lodge-kvm/lodge/lab/image"
	"github.com/lodge-kvm/lodge/lab/machine"
	"github.com/lodge-kvm/lodge/lab/session"
	"github.com/lodge-kvm/lodge/lab/wire"
)

// Variable names a cache with an image to use instead of the checkout's.
const Variable = "LODGE_LAB_IMAGE"

// patience bounds the wait for an emulated guest on a busy machine.
const patience = 3 * time.Minute

// Find gives the image, and skips the test when there is none or when tests are
// to be short.
func Find(t testing.TB) image.Image {
	t.Helper()
	i, err := image.Find(guestimagetest.Made(t, Variable, "lab"))
	if err != nil {
		t.Skipf("%v", err)
	}
	return i
}

// Guest is one that runs in a QEMU of the test's own.
type Guest struct {
	*session.Session
	// Forward leads to ports of the guest: "127.0.0.1:N" by port.
	Forward map[int]string
	// Ended is closed when QEMU has.
	Ended <-chan struct{}
}

// Boot starts a guest under emulation and gives a session with it. Ports are
// those of the guest that are to be reached from here. The guest reaches nobody.
func Boot(t testing.TB, name string, memory int, ports ...int) *Guest {
	t.Helper()
	i := Find(t)
	return boot(t, i, image.Kernel{Kernel: i.Kernel, Initrd: i.Initrd}, name, memory, nil, ports)
}

// BootGeneric starts a guest with the generic kernel and a disk on SATA that has the
// serial number "data". It skips the test where the image was made before there was
// such a kernel.
func BootGeneric(t testing.TB, name string, memory int) *Guest {
	t.Helper()
	i := Find(t)
	if i.Generic == (image.Kernel{}) {
		t.Skip("the image has no generic kernel: make lab-image makes it anew")
	}
	data := filepath.Join(t.TempDir(), "data.raw")
	if err := os.WriteFile(data, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(data, 64<<20); err != nil {
		t.Fatal(err)
	}
	return boot(t, i, i.Generic, name, memory, []string{"-drive", "file=" + data + ",format=raw,if=none,id=d2,cache=unsafe", "-device", "ide-hd,drive=d2,serial=data,bus=ide.0"}, nil)
}

func boot(t testing.TB, i image.Image, kernel image.Kernel, name string, memory int, more []string, ports []int) *Guest {
	t.Helper()
	for _, tool := range []string{"qemu-system-x86_64", "qemu-img"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s here", tool)
		}
	}
	dir := t.TempDir()
	root := filepath.Join(dir, "root.qcow2")
	overlay := exec.CommandContext(t.Context(), "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", i.Root, root)
	if said, err := overlay.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", dir+"/agent")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	g := &Guest{Forward: map[int]string{}}
	command := append(arguments(t, i, kernel, dir, root, name, memory), more...)
	nic := []string{"user,id=n0,restrict=on"}
	for _, port := range ports {
		g.Forward[port] = free(t)
		nic = append(nic, fmt.Sprintf("hostfwd=tcp:%s-:%d", g.Forward[port], port))
	}
	g.start(t, append(command, "-netdev", strings.Join(nic, ","), "-device", "virtio-net-pci,netdev=n0,romfile=,mac="+mac), dir+"/serial")
	go func() {
		<-g.Ended // at once, if it does not like its arguments
		listener.Close()
	}()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatalf("QEMU has not connected: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if g.Session, err = session.Open(ctx, conn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

const mac = "52:54:00:77:00:01"

func arguments(t testing.TB, i image.Image, kernel image.Kernel, dir, root, name string, memory int) []string {
	line := image.CommandLine(image.Boot{
		Name: name, TSC: machine.TSC(), Nets: []image.Net{{MAC: mac, Address: netip.MustParsePrefix("10.0.2.15/24")}},
	})
	t.Logf("kernel arguments: %s", line)
	fixed := "-M q35 -accel tcg,thread=multi,tb-size=128 -cpu qemu64 -smp 1 -nodefaults -no-user-config -display none " +
		"-device virtio-rng-pci -device virtio-serial-pci -device virtserialport,chardev=agent,name=" + wire.Port
	return append(strings.Fields(fixed),
		"-m", strconv.Itoa(memory), "-serial", "file:"+dir+"/serial", "-kernel", kernel.Kernel, "-initrd", kernel.Initrd, "-append", line,
		"-drive", "file="+root+",format=qcow2,if=none,id=d0,cache=unsafe", "-device", "virtio-blk-pci,drive=d0,serial=root",
		"-drive", "file="+i.Usr+",format=raw,if=none,id=d1,readonly=on", "-device", "virtio-blk-pci,drive=d1,serial=usr",
		"-chardev", "socket,id=agent,path="+dir+"/agent")
}

// start runs QEMU until the test is over.
func (g *Guest) start(t testing.TB, argv []string, serial string) {
	t.Helper()
	qemu := exec.CommandContext(context.WithoutCancel(t.Context()), "qemu-system-x86_64", argv...)
	var said bytes.Buffer
	qemu.Stderr = &said
	if err := qemu.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	g.Ended = ended
	go func() {
		defer close(ended)
		_ = qemu.Wait()
	}()
	t.Cleanup(func() {
		_ = qemu.Process.Kill()
		<-ended
		if t.Failed() {
			console, _ := os.ReadFile(serial)
			t.Logf("QEMU: %s\nconsole: %s", said.Bytes(), console)
		}
	})
}

// free gives an address of loopback that nobody listens on, and that nobody else
// is likely to take before QEMU does: of the 16 million that there are, with a
// port that the kernel gives nobody by itself.
func free(t testing.TB) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.%d.%d.%d:8080", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if err == nil {
			l.Close()
			return address
		}
	}
	t.Fatal("every address of loopback is taken")
	return ""
}
