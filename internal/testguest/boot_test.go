package testguest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/testguest"
	"github.com/lodge-kvm/lodge/internal/testguest/guestimagetest"
	"github.com/lodge-kvm/lodge/internal/testguest/line"
)

// patience bounds each wait for an emulated guest on a busy machine.
const patience = 90 * time.Second

// machine is a bare QEMU with the image in it.
type machine struct {
	guest *line.Host
	qmp   *net.UnixConn
	log   string // what the serial console printed
	ended chan error
}

func start(t *testing.T, args ...string) *machine {
	t.Helper()
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("no QEMU here")
	}
	dir := t.TempDir()
	m := &machine{log: filepath.Join(dir, "serial"), ended: make(chan error, 1)}
	port, monitor := listen(t, dir+"/port"), listen(t, dir+"/qmp")
	args = append(args, "-accel", "tcg,tb-size=64", "-cpu", "qemu64", "-m", "256", "-nodefaults", "-no-user-config", "-display", "none",
		"-serial", "file:"+m.log, "-qmp", "unix:"+dir+"/qmp", "-device", "virtio-serial-pci",
		"-chardev", "socket,id=port,path="+dir+"/port", "-device", "virtserialport,chardev=port,name="+line.Port)
	qemu := exec.CommandContext(t.Context(), "qemu-system-x86_64", args...)
	var said bytes.Buffer
	qemu.Stderr = &said
	if err := qemu.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { m.ended <- qemu.Wait() }()
	t.Cleanup(func() {
		_ = qemu.Process.Kill()
		if t.Failed() {
			console, _ := os.ReadFile(m.log)
			t.Logf("QEMU: %s\nconsole: %s", said.Bytes(), console)
		}
	})
	m.qmp = accept(t, monitor)
	m.guest = line.New(accept(t, port))
	t.Cleanup(func() { m.qmp.Close(); m.guest.Close() })
	m.command(t, "qmp_capabilities")
	return m
}

func listen(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func accept(t *testing.T, l *net.UnixListener) *net.UnixConn {
	t.Helper()
	_ = l.SetDeadline(time.Now().Add(patience))
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func (m *machine) command(t *testing.T, name string) {
	t.Helper()
	text, _ := json.Marshal(map[string]string{"execute": name})
	if _, err := m.qmp.Write(append(text, '\n')); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) ping(t *testing.T) line.Facts {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	facts, err := m.guest.Ping(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

func TestGuest_AnswersAndPowersOff(t *testing.T) {
	image := guestimagetest.Find(t)
	m := start(t, "-M", "q35", "-kernel", image.Kernel, "-initrd", image.Initrd, "-append", testguest.Arguments+" lodge.name=probe",
		"-netdev", "user,id=n", "-device", "virtio-net-pci,netdev=n,romfile=")
	if facts := m.ping(t); facts.Hostname != "probe" || facts.CPUs != 1 || facts.UpAfter <= 0 {
		t.Errorf("the guest says of itself %+v", facts)
	}
	exit, err := m.guest.Run(t.Context(), "sh", "-c", "echo out; echo err >&2; cat /proc/1/comm; exit 3")
	if err != nil || exit.Code != 3 || string(exit.Stdout) != "out\ninit\n" || string(exit.Stderr) != "err\n" {
		t.Errorf("exec gives %+v, %v", exit, err)
	}
	slow := line.Request{Do: line.Exec, Argv: []string{"sleep", "100"}, TimeoutMS: 50}
	if r, err := m.guest.Ask(t.Context(), slow); err != nil || !r.Exit.TimedOut || r.Exit.Code != 128+9 {
		t.Errorf("a program beyond its time gives %+v, %v", r.Exit, err)
	}
	m.command(t, "system_powerdown")
	select {
	case err := <-m.ended:
		if err != nil {
			t.Errorf("QEMU ended with %v", err)
		}
	case <-time.After(patience):
		t.Error("the guest does not obey its power button")
	}
	if console, _ := os.ReadFile(m.log); !strings.Contains(string(console), "user space up after") {
		t.Error("the console does not say that user space is up")
	}
}

func TestDisk_BootsFromBIOS(t *testing.T) {
	image := guestimagetest.Find(t)
	disk := filepath.Join(filepath.Dir(image.Kernel), "disk.raw")
	if _, err := os.Stat(disk); err != nil {
		t.Skip("the image was made without its disk: run make guest")
	}
	m := start(t, "-M", "pc", "-drive", "file="+disk+",format=raw,if=virtio,snapshot=on")
	if facts := m.ping(t); !strings.Contains(strings.Join(facts.Disks, " "), "vda1") {
		t.Errorf("the guest sees the disks %v, not its own vda1", facts.Disks)
	}
}
