package hostnet

import (
	"context"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet/linktest"
)

func ruleset(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func TestFirewall_NetworkLife(t *testing.T) {
	linktest.Need(t, "nft")
	f := NewFirewall("lodge_test")
	nat := ForwardRules{
		Bridge:  "nbr0",
		Subnets: []Subnet{{Prefix: netip.MustParsePrefix("10.1.0.0/24"), NAT: true}, {Prefix: netip.MustParsePrefix("fd01::/64")}},
		NAT:     &Translation{FirstPort: 1024, LastPort: 65535},
	}
	ok(t, f.Apply(nat))
	ok(t, f.Apply(ForwardRules{Bridge: "ibr0"}))
	ok(t, f.Apply(ForwardRules{
		Bridge: "sbr0", Uplinks: []string{"eth7"},
		Subnets: []Subnet{{Prefix: netip.MustParsePrefix("10.2.0.0/24"), NAT: true}},
		NAT:     &Translation{First: netip.MustParseAddr("192.0.2.10"), Last: netip.MustParseAddr("192.0.2.12"), FirstPort: 5000, LastPort: 5100},
	}))
	text := ruleset(t)
	for _, want := range []string{
		"table inet lodge_test", `"nbr0" : jump nbr0_out`, "masquerade to :1024-65535", "ip saddr 10.1.0.0/24",
		"ip daddr 10.1.0.0/24 ct state established,related return", "ip6 daddr fd01::/64 return",
		`ip saddr 10.2.0.0/24 oifname "eth7" snat`, "192.0.2.10-192.0.2.12", `"ibr0" : jump ibr0_in`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	nat.NAT = &Translation{FirstPort: 2000, LastPort: 3000}
	ok(t, f.Apply(nat))
	if again := ruleset(t); strings.Contains(again, "masquerade to :1024") || strings.Count(again, "masquerade to :2000-3000") != 2 ||
		strings.Count(again, "iifname vmap @leaving") != 1 {
		t.Errorf("the rules were not replaced:\n%s", again)
	}
	ok(t, f.Remove("nbr0"))
	ok(t, f.Remove("nbr0"))
	if text := ruleset(t); strings.Contains(text, "nbr0") || !strings.Contains(text, "ibr0_in") {
		t.Errorf("after Remove:\n%s", text)
	}
	ok(t, f.Remove("ibr0"))
	ok(t, f.Remove("sbr0"))
	if text := ruleset(t); strings.Contains(text, "lodge_test") {
		t.Errorf("the table is left:\n%s", text)
	}
}

func nft(t *testing.T, words ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "nft", words...).CombinedOutput(); err != nil {
		t.Fatalf("nft %v: %v: %s", words, err, out)
	}
}

// twoBridges is a firewall with one network whose addresses are translated and one isolated network.
func twoBridges(t *testing.T) *Firewall {
	t.Helper()
	f := NewFirewall("lodge_test")
	ok(t, f.Apply(ForwardRules{
		Bridge: "nbr0", Subnets: []Subnet{{Prefix: netip.MustParsePrefix("10.1.0.0/24"), NAT: true}},
		NAT: &Translation{FirstPort: 1024, LastPort: 65535},
	}))
	ok(t, f.Apply(ForwardRules{Bridge: "ibr0"}))
	t.Cleanup(func() {
		ok(t, f.Remove("nbr0"))
		ok(t, f.Remove("ibr0"))
		if text := ruleset(t); strings.Contains(text, "lodge_test") {
			t.Errorf("the table is left:\n%s", text)
		}
	})
	return f
}

// chains returns the ruleset with its parts in a fixed order.
func chains(t *testing.T) string {
	t.Helper()
	parts := strings.Split(strings.TrimSuffix(ruleset(t), "}\n"), "\n\n")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}

// TestFirewall_RulesRemovedByAnotherProgram removes the table and each kind of its parts:
// each removal is noticed, the rules are put back as they were, and rules of other programs stay.
// Promise: F23
func TestFirewall_RulesRemovedByAnotherProgram(t *testing.T) {
	linktest.Need(t, "nft")
	f := twoBridges(t)
	whole := chains(t)
	w, err := f.Watch()
	ok(t, err)
	defer w.Close()
	for what, c := range map[string]struct {
		ruin []string
		lost string
	}{
		"all":              {[]string{"flush ruleset"}, "ibr0 nbr0"},
		"the table":        {[]string{"delete table inet lodge_test"}, "ibr0 nbr0"},
		"all rules":        {[]string{"flush table inet lodge_test"}, "ibr0 nbr0"},
		"the first rules":  {[]string{"flush chain inet lodge_test forward"}, "ibr0 nbr0"},
		"a network's":      {[]string{"flush chain inet lodge_test nbr0_nat"}, "nbr0"},
		"a network's jump": {[]string{"delete element inet lodge_test leaving { ibr0 }"}, "ibr0"},
		"a map":            {[]string{"flush map inet lodge_test entering"}, "ibr0 nbr0"},
		"a chain": {[]string{
			"delete element inet lodge_test entering { nbr0 }", "flush chain inet lodge_test nbr0_in", "delete chain inet lodge_test nbr0_in",
		}, "nbr0"},
		"a chain's place": {[]string{
			"flush chain inet lodge_test forward", "delete chain inet lodge_test forward",
			"add chain inet lodge_test forward { type filter hook input priority 7; }",
		}, "ibr0 nbr0"},
		"a jump's end": {[]string{
			"add chain inet lodge_test nowhere", "delete element inet lodge_test leaving { ibr0 }",
			"add element inet lodge_test leaving { ibr0 : jump nowhere }", "flush chain inet lodge_test ibr0_out",
		}, "ibr0"},
	} {
		nft(t, strings.Join(c.ruin, "; "))
		by, err := w.Next(t.Context())
		ok(t, err)
		lost, err := f.Restore()
		ok(t, err)
		if by != "nft" || strings.Join(lost, " ") != c.lost {
			t.Errorf("%s: taken by %q, and %v was lacking; want %s", what, by, lost, c.lost)
		}
		if now := chains(t); now != whole {
			t.Errorf("%s: put back as\n%s\nwant\n%s", what, now, whole)
		}
		if lost, err := f.Restore(); err != nil || len(lost) > 0 {
			t.Errorf("%s: is lacking still: %v, %v", what, lost, err)
		}
	}
}

// TestFirewall_ChangesWithoutLoss: the program's own changes to its table do not count as a loss.
// Neither do rules that others add to it, nor changes of other tables.
// Promise: F23
func TestFirewall_ChangesWithoutLoss(t *testing.T) {
	linktest.Need(t, "nft")
	f := twoBridges(t)
	w, err := f.Watch()
	ok(t, err)
	defer w.Close()
	ok(t, f.Apply(ForwardRules{Bridge: "ibr0"})) // in place of the old ones
	ok(t, f.Apply(ForwardRules{Bridge: "xbr0"}))
	ok(t, f.Remove("xbr0"))
	nft(t, "add table inet others; delete table inet others")
	nft(t, "add rule inet lodge_test ibr0_in counter")
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	if by, err := w.Next(ctx); err == nil {
		t.Errorf("%q is said to have taken something", by)
	}
	if lost, err := f.Restore(); err != nil || len(lost) > 0 {
		t.Errorf("is said to be lacking: %v, %v", lost, err)
	}
}

// TestFirewall_LostNotifications: if the kernel had no space for a notification, rules may
// have been removed.
// Promise: F23
func TestFirewall_LostNotifications(t *testing.T) {
	linktest.Need(t, "nft")
	f := twoBridges(t)
	w, err := f.Watch()
	ok(t, err)
	defer w.Close()
	ok(t, w.conn.SetReadBuffer(1))
	nft(t, "flush ruleset")
	for range 50 {
		nft(t, "add table inet others; delete table inet others")
	}
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	if by, err := w.Next(ctx); by != "" || err != nil {
		t.Errorf("got %q, %v", by, err)
	}
	if lost, err := f.Restore(); err != nil || len(lost) != 2 {
		t.Errorf("put back %v, %v", lost, err)
	}
}
