package remote_test

import (
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/remote"
)

// Promise: L70
func TestAddresses(t *testing.T) {
	for _, c := range []struct {
		address          string
		way              remote.Way
		host, port, path string
	}{
		{"/run/x", remote.BySocket, "", "", "/run/x"},
		{"./x", remote.BySocket, "", "", "./x"},
		{"qemu:///system?socket=/a%20b/sock", remote.BySocket, "", "", "/a b/sock"},
		{"qemu+unix:///system?socket=/sock", remote.BySocket, "", "", "/sock"},
		{"qemu+ssh://ops@far/system", remote.BySSH, "far", "", ""},
		{"qemu+ssh://[fe80::1]:2222/system?socket=/sock&keyfile=/k&no_verify=1&no_tty=1&command=/s&netcat=/n", remote.BySSH, "fe80::1", "2222", "/sock"},
		{"qemu+tls://far.example/system?pkipath=/p&no_verify=0", remote.ByTLS, "far.example", "16514", ""},
		{"qemu://far/system", remote.ByTLS, "far", "16514", ""},
		{"qemu+tcp://far:1/system", remote.ByTCP, "far", "1", ""},
	} {
		a, err := remote.Parse(c.address)
		if err != nil || a.Way != c.way || a.Host != c.host || a.Port != c.port || a.Socket != c.path || a.Local() != (c.way == remote.BySocket) {
			t.Errorf("%s: %+v, %v", c.address, a, err)
		}
	}
}

// A transport or parameter that is not supported is refused before any connection is
// made. The error names it as the user did.
// Promise: L70
func TestAddressesThatAreRefused(t *testing.T) {
	for address, want := range map[string]struct {
		kind fault.Kind
		says string
	}{
		"sock":                                 {fault.Invalid, "neither a path"},
		"":                                     {fault.Invalid, "neither a path"},
		"xen:///system":                        {fault.Unsupported, `"xen"`},
		"qemu:///session":                      {fault.Unsupported, "only /system"},
		"qemu+libssh2://far/system":            {fault.Unsupported, "libssh2"},
		"qemu+ext:///system?command=x":         {fault.Unsupported, "ext"},
		"qemu+unix://far/system":               {fault.Invalid, "three slashes"},
		"qemu+tls:///system":                   {fault.Invalid, "names no host"},
		"qemu+ssh://-oProxyCommand=x/system":   {fault.Invalid, "names no host"},
		"qemu+ssh://-l@far/system":             {fault.Unsupported, `"-l"`},
		"qemu+ssh://ops:secret@far/system":     {fault.Unsupported, "a password"},
		"qemu+tls://ops@far/system":            {fault.Unsupported, `"ops"`},
		"qemu+tcp://far/system?no_verify=1":    {fault.Unsupported, "no_verify"},
		"qemu+tls://far/system?tls_priority=x": {fault.Unsupported, "tls_priority"},
		"qemu+ssh://far/system?sshauth=agent":  {fault.Unsupported, "sshauth"},
		"qemu:///system?mode=legacy":           {fault.Unsupported, "mode"},
		"qemu+tls://far/system?no_verify=yes":  {fault.Invalid, `"yes"`},
		"qemu+ssh://far/system?socket=":        {fault.Invalid, "socket wants one value"},
		"qemu+ssh://far/system?socket=a;b":     {fault.Invalid, "parameters"},
	} {
		_, err := remote.Parse(address)
		if err == nil || fault.Of(err) != want.kind || !strings.Contains(err.Error(), want.says) {
			t.Errorf("%q: %v", address, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("a password is told on: %v", err)
		}
	}
}
