package remote

import (
	"errors"
	"io/fs"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// System is the name of the host's daemon, as every client asks for it.
const System = "qemu:///system"

// wellKnown are the sockets where libvirt's clients look for the host's daemon, in their order.
var wellKnown = []string{"/run/libvirt/virtqemud-sock", "/run/libvirt/libvirt-sock"}

// Way is how a daemon is reached. The words are those of libvirt's URIs.
type Way string

// The ways.
const (
	BySocket Way = "unix" // of this host
	BySSH    Way = "ssh"
	ByTLS    Way = "tls"
	ByTCP    Way = "tcp"
)

// ports are the TCP ports where daemons accept clients of other hosts.
var ports = map[Way]string{ByTLS: "16514", ByTCP: "16509"}

// Address is where a daemon is, and how it is reached there.
type Address struct {
	Way        Way
	Host, Port string // of another host; the port may be empty for ssh
	Socket     string // a path, for ssh at the other host; "": where stock clients look

	user     string // the rest of ssh
	keyFile  string
	command  string // in the place of ssh
	netcat   string // in the place of nc, at the other host
	noVerify bool   // also of TLS
	pki      string // folder of certificates
	text     string // that all this was read from
}

func (a Address) String() string { return a.text }

// Local says whether the daemon is reached by a socket of this host.
func (a Address) Local() bool { return a.Way == BySocket }

// takes are the parameters that a URI of each way may have.
var takes = map[Way][]string{
	BySocket: {"socket"},
	BySSH:    {"socket", "keyfile", "no_verify", "no_tty", "command", "netcat"},
	ByTLS:    {"pkipath", "no_verify"},
	ByTCP:    {},
}

// Parse reads an address: the path of a socket, or a URI as libvirt's clients take
// it, such as qemu:///system, qemu+ssh://host/system or qemu+tls://host/system. What
// is not built is refused by its name.
func Parse(text string) (Address, error) {
	if strings.HasPrefix(text, "/") || strings.HasPrefix(text, "./") {
		return Address{Way: BySocket, Socket: text, text: text}, nil
	}
	a, err := parse(text)
	return a, fault.Wrap(err, fault.Of(err), fault.Call, "cannot connect to %q", a.text)
}

func parse(text string) (a Address, err error) {
	uri, err := url.Parse(text)
	if err != nil || uri.Scheme == "" {
		a.text = text
		return a, fault.New(fault.Invalid, fault.Call, "it is neither a path of a socket (/...) nor a URI such as %s?socket=/path", System)
	}
	a = Address{Host: uri.Hostname(), Port: uri.Port(), text: uri.Redacted()}
	driver, way, told := strings.Cut(uri.Scheme, "+")
	switch {
	case told:
		a.Way = Way(way)
	case a.Host != "":
		a.Way = ByTLS // as libvirt's clients understand it
	default:
		a.Way = BySocket
	}
	_, built := takes[a.Way]
	switch {
	case driver != "qemu":
		return a, fault.New(fault.Unsupported, fault.Call, "guests of %q are not measured, only those of qemu", driver)
	case !built:
		return a, fault.New(fault.Unsupported, fault.Call, "the transport %s is not built: unix, ssh, tls and tcp are", a.Way)
	case uri.Path != "/system":
		return a, fault.New(fault.Unsupported, fault.Call, "only /system is measured: the daemon of the host, and not one of a user")
	case a.Local() && uri.Host != "":
		return a, fault.New(fault.Invalid, fault.Call, "a socket of this host has no host in its address: three slashes, as in %s", System)
	case !a.Local() && (a.Host == "" || strings.HasPrefix(a.Host, "-")):
		return a, fault.New(fault.Invalid, fault.Call, "it names no host: qemu+%s://HOST/system", a.Way)
	}
	if a.Port == "" {
		a.Port = ports[a.Way]
	}
	if err := a.login(uri.User); err != nil {
		return a, err
	}
	return a, a.parameters(uri.RawQuery)
}

// login takes the account of a URI.
func (a *Address) login(user *url.Userinfo) error {
	if user == nil {
		return nil
	}
	if _, secret := user.Password(); secret {
		return fault.New(fault.Unsupported, fault.Call, "a password in an address is seen by everybody: let ssh use a key or an agent")
	}
	if a.user = user.Username(); a.Way != BySSH || a.user == "" || strings.HasPrefix(a.user, "-") {
		return fault.New(fault.Unsupported, fault.Call, "the transport %s takes no account %q: ssh does", a.Way, a.user)
	}
	return nil
}

// parameters takes what stands behind the question mark.
func (a *Address) parameters(query string) error {
	all, err := url.ParseQuery(query)
	if err != nil {
		return fault.Wrap(err, fault.Invalid, fault.Call, "cannot read its parameters")
	}
	for name, values := range all {
		if !slices.Contains(takes[a.Way], name) {
			return fault.New(fault.Unsupported, fault.Call, "the parameter %s is not built for the transport %s: %s", name, a.Way, orNone(takes[a.Way]))
		}
		if len(values) != 1 || values[0] == "" {
			return fault.New(fault.Invalid, fault.Call, "the parameter %s wants one value", name)
		}
		value := values[0]
		switch name {
		case "socket":
			a.Socket = value
		case "keyfile":
			a.keyFile = value
		case "command":
			a.command = value
		case "netcat":
			a.netcat = value
		case "pkipath":
			a.pki = value
		case "no_verify", "no_tty": // ssh never asks a terminal here
			if value != "0" && value != "1" {
				return fault.New(fault.Invalid, fault.Call, "the parameter %s is %q: 0 or 1 are possible", name, value)
			}
			a.noVerify = a.noVerify || name == "no_verify" && value == "1"
		}
	}
	return nil
}

func orNone(words []string) string {
	if len(words) == 0 {
		return "it has none"
	}
	return strings.Join(words, ", ") + " are"
}

// path is that of the socket on this host.
func (a Address) path() (string, error) {
	if a.Socket != "" {
		return a.Socket, nil
	}
	for _, path := range wellKnown {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return path, nil
		}
	}
	return "", fault.New(fault.NotFound, fault.Host, "no daemon listens where clients look for it (%s); name its socket", strings.Join(wellKnown, ", "))
}

// place is host and port, as dialers take them.
func (a Address) place() string { return net.JoinHostPort(a.Host, a.Port) }
