package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet/linktest"
)

func service(t *testing.T, bridgeName, net string) (DnsmasqFiles, DnsmasqContent) {
	t.Helper()
	bridge(t, bridgeName)
	ok(t, AddAddress(bridgeName, netip.MustParsePrefix(net+".1/24")))
	f := DnsmasqIn(t.TempDir(), t.TempDir(), bridgeName)
	config := fmt.Sprintf("strict-order\nno-resolv\nexcept-interface=lo\nbind-dynamic\ninterface=%s\ndhcp-range=%s.2,%s.254\n", bridgeName, net, net)
	return f, DnsmasqContent{Config: config}
}

func within10s(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func waitEnded(t *testing.T, d *Dnsmasq) {
	t.Helper()
	select {
	case <-d.Ended():
	case <-within10s(t).Done():
		t.Fatal("dnsmasq has not ended")
	}
}

// Promise: I20
func TestDnsmasq_AdoptedAndStopped(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	f, c := service(t, "dbr0", "10.8.0")
	d, err := StartDnsmasq(within10s(t), f, c)
	ok(t, err)
	p := d.Process()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	ok(t, err)
	if !strings.Contains(string(status), "NoNewPrivs:\t1") || strings.Contains(string(status), "CapBnd:\t000001ff") {
		t.Errorf("dnsmasq may gain privileges, or has all capabilities:\n%s", status)
	}
	d.Release() // as when the daemon ends

	if _, err := AdoptDnsmasq(f, &Process{PID: p.PID, Started: p.Started + 1}); err == nil {
		t.Error("adopted a process that started at another time")
	}
	if _, err := AdoptDnsmasq(DnsmasqFiles{PID: f.PID, Config: "/elsewhere"}, &p); err == nil {
		t.Error("adopted the dnsmasq of another configuration")
	}
	d, err = AdoptDnsmasq(f, &p)
	ok(t, err)
	ok(t, d.Reload(DnsmasqContent{Hosts: "52:54:00:00:00:01,10.8.0.9\n"}))
	ok(t, d.Stop(within10s(t)))
	waitEnded(t, d)
	if _, err := AdoptDnsmasq(f, &p); err == nil {
		t.Error("adopted a process that was stopped")
	}
	for _, path := range []string{f.Config, f.Hosts, f.Names, f.PID} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left", path)
		}
	}
}

func TestDnsmasq_HangingAtStop(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	f, c := service(t, "dbr1", "10.8.1")
	d, err := StartDnsmasq(within10s(t), f, c)
	ok(t, err)
	ok(t, syscall.Kill(d.Process().PID, syscall.SIGSTOP))
	ok(t, d.Stop(within10s(t)))
	waitEnded(t, d)
}

func TestDnsmasq_StartError(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	f, c := service(t, "dbr2", "10.8.2")
	c.Config += "no-such-option\n"
	if _, err := StartDnsmasq(within10s(t), f, c); err == nil || !strings.Contains(err.Error(), "bad option") {
		t.Errorf("got %v", err)
	}
}

// dnsmasq reads a long line as several: text that a client puts into a network, placed after as much as dnsmasq
// reads at a time, would become an option of its own. dnsmasq must not write a file that such an option names.
func TestDnsmasq_LineBreakInValue(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	f, c := service(t, "dbr4", "10.8.4")
	const boot, most = "dhcp-boot=", 1023
	trap := filepath.Join(t.TempDir(), "trap")
	long := boot + strings.Repeat("a", most+1-len(boot)) + "log-facility=" + trap + "\n"
	_, err := StartDnsmasq(within10s(t), f, DnsmasqContent{Config: c.Config + long})
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(trap); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("dnsmasq has made the file that the end of a line names: %v", err)
	}
	d, err := StartDnsmasq(within10s(t), f, DnsmasqContent{Config: c.Config + boot + strings.Repeat("a", most-len(boot)) + "\n"})
	ok(t, err)
	if err := d.Reload(DnsmasqContent{Hosts: strings.Repeat("a", most+1) + "\n"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("got %v", err)
	}
	ok(t, d.Stop(within10s(t)))
}

func TestDnsmasq_Death(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	f, c := service(t, "dbr3", "10.8.3")
	d, err := StartDnsmasq(within10s(t), f, c)
	ok(t, err)
	defer d.Release()
	ok(t, syscall.Kill(d.Process().PID, syscall.SIGKILL))
	waitEnded(t, d)
}
