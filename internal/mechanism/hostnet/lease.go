package hostnet

import (
	"bufio"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Lease is an address that a dnsmasq has given to a client.
type Lease struct {
	Expiry   time.Time // zero for one without end
	MAC      string    // lower case; "" for a DHCPv6 client whose DUID does not contain one
	IAID     string    // DHCPv6 only
	Address  netip.Addr
	Hostname string // "" when the client gave none
	ClientID string // "" when the client gave none; the DUID in DHCPv6
}

// Bounds on a lease file: hosts write parts of it (their names and ids).
const (
	maxLeases    = 65536
	maxLeaseLine = 4096
)

// ReadLeases gives the leases in a lease file; a missing file holds none.
func ReadLeases(path string) ([]Lease, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Network, "cannot read leases")
	}
	defer func() { _ = f.Close() }()
	return ParseLeases(f)
}

// ParseLeases reads dnsmasq's lease file. It skips a line that is no lease, or that
// is longer than one: dnsmasq rewrites the file in place, so a line may be cut off.
func ParseLeases(r io.Reader) ([]Lease, error) {
	var leases []Lease
	lines := bufio.NewReaderSize(r, maxLeaseLine)
	for {
		line, long, err := lines.ReadLine()
		for long && err == nil { // a guest may choose a name of any length; the other leases still count
			line = nil
			_, long, err = lines.ReadLine()
		}
		if errors.Is(err, io.EOF) {
			return leases, nil
		}
		if err != nil {
			return nil, fault.Wrap(err, fault.Failed, fault.Network, "cannot read leases")
		}
		lease, ok := parseLease(strings.Fields(string(line)))
		if !ok {
			continue
		}
		if len(leases) == maxLeases {
			return nil, fault.New(fault.NoCapacity, fault.Network, "the lease file holds more than %d leases", maxLeases)
		}
		leases = append(leases, lease)
	}
}

// parseLease reads "expiry mac address hostname client-id", or with an IPv6
// address "expiry iaid address hostname duid".
func parseLease(fields []string) (Lease, bool) {
	if len(fields) != 5 {
		return Lease{}, false
	}
	expiry, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil || expiry < 0 {
		return Lease{}, false
	}
	addr, err := netip.ParseAddr(fields[2])
	if err != nil || addr.Zone() != "" {
		return Lease{}, false
	}
	l := Lease{Address: addr, Hostname: unlessStar(fields[3]), ClientID: unlessStar(fields[4])}
	if expiry != 0 {
		l.Expiry = time.Unix(expiry, 0)
	}
	if addr.Is6() {
		l.IAID = strings.TrimPrefix(fields[1], "T")
		l.MAC = duidMAC(l.ClientID)
		return l, true
	}
	// A hardware type other than Ethernet is put before the address: "06-..".
	mac, err := net.ParseMAC(fields[1])
	if err != nil {
		return Lease{}, false
	}
	l.MAC = mac.String()
	return l, true
}

func unlessStar(s string) string {
	if s == "*" {
		return ""
	}
	return s
}

// duidMAC returns the hardware address in a DHCPv6 identity that contains one:
// type 1 (address and time) or 3 (address), hardware type 1 (Ethernet).
func duidMAC(duid string) string {
	b, err := hex.DecodeString(strings.ReplaceAll(duid, ":", ""))
	if err != nil || len(b) < 4 || b[0] != 0 || b[2] != 0 || b[3] != 1 {
		return ""
	}
	switch {
	case b[1] == 1 && len(b) == 14:
		return net.HardwareAddr(b[8:]).String()
	case b[1] == 3 && len(b) == 10:
		return net.HardwareAddr(b[4:]).String()
	}
	return ""
}
