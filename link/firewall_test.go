package link

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/link/linktest"
)

func ruleset(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func TestRulesComeAndGoWithTheirNetwork(t *testing.T) {
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
