package nested

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/testguest/guestimagetest"
)

// make nested-host sets these: the folder for the image and the logs of failed tests, and the folder with the
// programs to test.
const (
	cacheVariable = "LODGE_NESTED"
	binVariable   = "LODGE_NESTED_BIN"
)

// shared is the host that all tests use.
var shared struct {
	sync.Once
	host *Host
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.host != nil {
		if err := shared.host.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// ready is the saved state at the start of each test: lodged runs and has probed QEMU.
const ready = "ready"

// readyPatience limits the start of lodged with its first probe.
const readyPatience = 5 * time.Minute

// machine is the host for one test.
type machine struct {
	*Host
	t *testing.T
}

// begin returns the host, rewound to the state where lodged was ready. After a failed test it keeps the host's
// logs.
func begin(t *testing.T) *machine {
	t.Helper()
	cache := os.Getenv(cacheVariable)
	if cache == "" {
		t.Skip("boots a host in an emulated guest: run by make nested-host")
	}
	shared.Do(func() {
		shared.host, shared.err = bootShared(t, cache)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	m := &machine{Host: shared.host, t: t}
	if err := m.Rewind(t.Context(), ready); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		dir := filepath.Join(cache, "logs", t.Name())
		if err := m.Keep(context.WithoutCancel(t.Context()), dir); err != nil {
			t.Log(err)
		}
		t.Log("logs are kept in ", dir)
	})
	return m
}

// nicMAC is the address of a network card of the host that tests may take.
const nicMAC = "52:54:00:10:d6:e1"

func bootShared(t *testing.T, cache string) (*Host, error) {
	t.Helper()
	ctx, started := context.WithoutCancel(t.Context()), time.Now()
	image, err := Build(ctx, cache)
	if err != nil {
		return nil, err
	}
	t.Logf("the image is there after %.1f s", time.Since(started).Seconds())
	bin, guest := os.Getenv(binVariable), guestimagetest.Find(t)
	host, err := Boot(ctx, Options{
		Image: image,
		Files: map[string]string{
			"agent": filepath.Join(bin, "agent"), "lodged": filepath.Join(bin, "lodged"), "lodge": filepath.Join(bin, "lodge"),
			"lodged.service": "../../packaging/lodged.service", "vmlinuz": guest.Kernel, "initrd": guest.Initrd,
		},
		Arguments: []string{
			"-device", "pcie-root-port,id=port1,chassis=11", "-netdev", "hubport,id=net1,hubid=1",
			"-device", "vmxnet3,netdev=net1,bus=port1,mac=" + nicMAC,
		},
	})
	if err != nil {
		return nil, err
	}
	t.Logf("the host is up after %.1f s", time.Since(started).Seconds())
	// On a very busy machine a probe may take more than a minute, and then it fails.
	_, err = host.Run(ctx, "systemctl start lodged\nuntil virsh -c qemu:///system domcapabilities >/dev/null; do sleep 5; done", readyPatience)
	if err == nil {
		err = host.Save(ctx, ready)
	}
	if err != nil {
		_ = host.Keep(ctx, filepath.Join(cache, "logs", "boot"))
		return nil, fmt.Errorf("cannot start lodged in the nested host: %w", err)
	}
	t.Logf("lodged is ready after %.1f s", time.Since(started).Seconds())
	return host, nil
}

// patience is the default time limit of a test's script.
const patience = 3 * time.Minute

// run runs a script that must succeed, and returns its output, trimmed.
func (m *machine) run(script string) string {
	m.t.Helper()
	out, err := m.Run(m.t.Context(), script, patience)
	if err != nil {
		m.t.Fatalf("%v\nthe script was:\n%s", err, script)
	}
	return strings.TrimSpace(out)
}

// The nested host has KVM, version 2 control groups only, several nodes, an IOMMU and AppArmor. Otherwise the
// other tests would pass and prove little.
func TestNestedHost_MeetsRequirements(t *testing.T) {
	m := begin(t)
	if said := m.run("lodge probe"); !strings.Contains(said, "a trial guest ran with -accel kvm") {
		t.Errorf("KVM does not work:\n%s", said)
	}
	for script, want := range map[string]string{
		"stat --format=%T --file-system /sys/fs/cgroup":                            "cgroup2fs",
		"ls -d /sys/devices/system/node/node* | wc -l":                             fmt.Sprint(nodes),
		"cat /sys/module/apparmor/parameters/enabled":                              "Y",
		"cat /sys/module/apparmor/parameters/mode":                                 "enforce",
		"ls /sys/kernel/iommu_groups | wc -l | sed 's/^0$/none/;s/^[0-9]*$/some/'": "some",
		"cat /proc/1/comm": "systemd",
	} {
		if got := m.run(script); got != want {
			t.Errorf("%s gives %q, want %q", script, got, want)
		}
	}
}
