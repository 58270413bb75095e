package hostnet

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

const leaseFile = `1763657999 52:54:00:aa:bb:cc 192.168.122.57 web1 01:52:54:00:aa:bb:cc
0 52:54:00:AA:bb:cd 192.168.122.58 * *
broken line
17636579 52:54:00:aa
1763657999 52:54:00:aa:bb:ce not-an-address x *
duid 00:01:00:01:2b:b1:5c:51:52:54:00:aa:bb:cc
1763658000 11189196 fd00::5a web1 00:01:00:01:2b:b1:5c:51:52:54:00:aa:bb:cc
1763658001 T77 fd00::5b * 00:02:00:00:ab:11
1763658002 78 fd00::5c * 00:03:00:01:52:54:00:01:02:03
`

func TestParseLeases(t *testing.T) {
	got, err := ParseLeases(strings.NewReader(leaseFile))
	if err != nil {
		t.Fatal(err)
	}
	v4, v6 := netip.MustParseAddr("192.168.122.57"), netip.MustParseAddr("fd00::5a")
	duid := "00:01:00:01:2b:b1:5c:51:52:54:00:aa:bb:cc"
	want := []Lease{
		{Expiry: time.Unix(1763657999, 0), MAC: "52:54:00:aa:bb:cc", Address: v4, Hostname: "web1", ClientID: "01:52:54:00:aa:bb:cc"},
		{MAC: "52:54:00:aa:bb:cd", Address: v4.Next()},
		{Expiry: time.Unix(1763658000, 0), MAC: "52:54:00:aa:bb:cc", IAID: "11189196", Address: v6, Hostname: "web1", ClientID: duid},
		{Expiry: time.Unix(1763658001, 0), IAID: "77", Address: v6.Next(), ClientID: "00:02:00:00:ab:11"},
		{Expiry: time.Unix(1763658002, 0), MAC: "52:54:00:01:02:03", IAID: "78", Address: v6.Next().Next(), ClientID: "00:03:00:01:52:54:00:01:02:03"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// A guest's host name may be as long as a packet: it must not hide the leases of others.
// Promise: X6
func TestParseLeases_LongIdentity(t *testing.T) {
	long := "1763658001 77 fd00::99 * " + strings.Repeat("00:", 20_000) + "00\n"
	want, err := ParseLeases(strings.NewReader(leaseFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{long + leaseFile, leaseFile + long, leaseFile + strings.TrimSpace(long)} {
		if got, err := ParseLeases(strings.NewReader(text)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%d leases of %d, %v", len(got), len(want), err)
		}
	}
}

func TestReadLeases_NoFile(t *testing.T) {
	if leases, err := ReadLeases(t.TempDir() + "/none"); len(leases) != 0 || err != nil {
		t.Fatal(leases, err)
	}
}

func FuzzParseLeases(f *testing.F) {
	f.Add(leaseFile)
	f.Add("1 06-52:54 10.0.0.1 * *\n")
	f.Fuzz(func(t *testing.T, text string) {
		leases, err := ParseLeases(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, l := range leases {
			if !l.Address.IsValid() || l.Address.Is4() && l.MAC == "" || strings.ContainsAny(l.Hostname+l.ClientID, " \n") {
				t.Errorf("accepted %+v", l)
			}
		}
	})
}

func TestStartTime(t *testing.T) {
	stat := "42 (a) b (c) S 1 42 42 0 -1 4194624 101 0 0 0 0 0 0 0 20 0 1 0 987654 8 9 10"
	if got, err := startTime(stat); got != 987654 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
	for _, bad := range []string{"", "42 (a) S 1", "42"} {
		if _, err := startTime(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
