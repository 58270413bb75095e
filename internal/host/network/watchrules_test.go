package network

import (
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet/linktest"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// logLines is a log that a test can wait for lines in.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{}
}

func newLogLines() *logLines { return &logLines{more: make(chan struct{}, 1)} }

func (l *logLines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
	return l.text.Write(line)
}

// wait returns the log when a line was seen a number of times.
func (l *logLines) wait(t *testing.T, what string, times int) string {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		l.mu.Lock()
		text := l.text.String()
		l.mu.Unlock()
		if strings.Count(text, what) >= times {
			return text
		}
		select {
		case <-l.more:
		case <-late:
			t.Fatalf("the log does not say %q %d times:\n%s", what, times, text)
		}
	}
}

func nft(t *testing.T, words ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", words...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v: %s", words, err, out)
	}
	return string(out)
}

// TestWatchRules_RestoresFlushedFirewall flushes the host's rules from another program, twice. The rules of
// running networks return, those of a destroyed network do not, and the log gets a line each time.
// Promise: F23
func TestWatchRules_RestoresFlushedFirewall(t *testing.T) {
	linktest.Need(t, "dnsmasq", "nft")
	d, log := newDaemon(t), newLogLines()
	d.Log = slog.New(slog.NewTextHandler(log, nil))
	s := d.open(t)
	t.Cleanup(func() { endAll(t, s) })
	for _, name := range []string{"one", "two", "ended"} {
		started(t, s, `<network><name>`+name+`</name><bridge name='br-`+name+`' stp='off'/></network>`)
	}
	ended, err := s.ByName("ended")
	ok(t, err)
	ok(t, ended.Destroy(t.Context(), scope.Daemon("a test")))
	for times := 1; times <= 2; times++ {
		nft(t, "flush", "ruleset")
		said := log.wait(t, "they are put back", times)
		if !strings.Contains(said, "program=nft networks=2") {
			t.Errorf("the log says\n%s", said)
		}
		rules := nft(t, "list", "ruleset")
		for chain, want := range map[string]bool{"chain br-one_in": true, "chain br-two_in": true, "br-ended": false, "vmap @leaving": true} {
			if strings.Contains(rules, chain) != want {
				t.Errorf("%s: want %v in\n%s", chain, want, rules)
			}
		}
	}
}

// TestWatchForwarding_TurnsItOnAgain reloads the kernel's settings, twice. The host forwards for running
// networks again, also after the next daemon's first check, and not for a destroyed network.
// Promise: F25
func TestWatchForwarding_TurnsItOnAgain(t *testing.T) {
	linktest.Need(t, "dnsmasq", "nft")
	d, log := newDaemon(t), newLogLines()
	d.Log = slog.New(slog.NewTextHandler(log, nil))
	s := d.open(t)
	n := started(t, s, `<network><name>out</name><forward mode='nat'/><bridge name='br-out' stp='off'/>
		<ip address='198.51.100.1' prefix='24'/><ip family='ipv6' address='2001:db8:7::1' prefix='64'/></network>`)
	settings := []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"}
	is := func(want string) {
		t.Helper()
		for _, path := range settings {
			if now, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(now)) != want {
				t.Errorf("%s is %q (%v), want %s", path, now, err, want)
			}
		}
	}
	for i, path := range settings {
		ok(t, os.WriteFile(path, []byte("0"), 0o600))
		log.wait(t, "first=out", i+1)
		is("1")
	}
	s.Close()
	for _, path := range settings {
		ok(t, os.WriteFile(path, []byte("0"), 0o600))
	}
	s = d.open(t)
	is("1")
	n, err := s.ByName(n.Name())
	ok(t, err)
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	for _, path := range settings {
		ok(t, os.WriteFile(path, []byte("0"), 0o600))
	}
	if !s.restoreForwarding() {
		t.Error("a setting that no network needs is still to be turned on")
	}
	is("0")
}

// TestStart_IPv6RouterAdvertisements gives the host a default route from router advertisements.
// With forwarding on the kernel would drop it, so a network is refused until accept_ra keeps it.
// Promise: F25
func TestStart_IPv6RouterAdvertisements(t *testing.T) {
	linktest.Need(t, "dnsmasq", "nft", "ip")
	const forwarding, accepts = "/proc/sys/net/ipv6/conf/all/forwarding", "/proc/sys/net/ipv6/conf/uplink/accept_ra"
	before, err := os.ReadFile(forwarding)
	ok(t, err)
	t.Cleanup(func() { ok(t, os.WriteFile(forwarding, before, 0o600)) })
	ok(t, os.WriteFile(forwarding, []byte("0"), 0o600))
	linktest.NewGuest(t).Cable(t, "uplink", "router0", "")
	learnt := exec.CommandContext(t.Context(), "ip", strings.Fields("-6 route add default via fe80::1 dev uplink proto ra")...)
	if out, err := learnt.CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	ok(t, os.WriteFile(accepts, []byte("1"), 0o600))
	s := networks(t)
	n, err := s.Define(t.Context(), scope.Daemon("a test"), `<network><name>six</name><forward mode='nat'/><bridge name='br-six' stp='off'/>
		<ip family='ipv6' address='2001:db8:7::1' prefix='64'/></network>`, false)
	ok(t, err)
	if err := n.Start(t.Context(), scope.Daemon("a test")); !fault.Is(err, fault.WrongState) || !strings.Contains(err.Error(), "sysctl -w net/ipv6/conf/uplink/accept_ra=2") {
		t.Errorf("it would cut the host off: %v", err)
	}
	if now, err := os.ReadFile(forwarding); err != nil || strings.TrimSpace(string(now)) != "0" {
		t.Errorf("and forwarding is %q (%v)", now, err)
	}
	ok(t, os.WriteFile(accepts, []byte("2"), 0o600))
	ok(t, n.Start(t.Context(), scope.Daemon("a test")))
}

// TestGrowingPause_RulesRemovedAgain: against a program that removes the rules each time, repairs become rarer.
// After it has stopped they are prompt again.
// Promise: F23
func TestGrowingPause_RulesRemovedAgain(t *testing.T) {
	var r growingPause
	now := time.Unix(0, 0)
	var all time.Duration
	for range 20 {
		rest := r.next(now)
		all += rest
		now = now.Add(rest)
	}
	if r.last != longestPause || all < 10*longestPause {
		t.Errorf("20 looks took %v, the last of %v", all, r.last)
	}
	if rest := r.next(now.Add(longestPause + time.Second)); rest != firstPause {
		t.Errorf("after a quiet time the rest is %v", rest)
	}
}
