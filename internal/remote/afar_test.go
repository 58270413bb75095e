package remote_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/internal/remote/remotetest"
)

// netcatVariable has the test program be nc: it is not installed everywhere.
const netcatVariable = "LODGE_TEST_NETCAT"

func TestMain(m *testing.M) {
	if os.Getenv(netcatVariable) != "" {
		os.Exit(netcat(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// netcat is nc as far as the lab's script uses it.
func netcat(args []string) int {
	if len(args) == 1 && args[0] == "-h" {
		fmt.Fprintln(os.Stderr, "usage: -q secs, -U")
		return 1
	}
	if len(args) != 4 || args[0] != "-q" || args[2] != "-U" {
		fmt.Fprintf(os.Stderr, "nc: %q\n", args)
		return 2
	}
	socket, err := new(net.Dialer).DialContext(context.Background(), "unix", args[3])
	if err != nil {
		fmt.Fprintln(os.Stderr, "nc:", err)
		return 1
	}
	go func() {
		_, _ = io.Copy(socket, os.Stdin)
		os.Exit(0)
	}()
	_, _ = io.Copy(os.Stdout, socket)
	return 0
}

// opens is a daemon that admits every client.
func opens(proc int32, _ xdr.Message) (xdr.Message, error) {
	if proc == xdr.ProcAuthList {
		return &xdr.AuthListRet{}, nil
	}
	return nil, nil
}

// program writes an executable for the shell.
func program(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// A program in the place of ssh runs the command for the other host here, at once.
// Promise: L70
func TestOverSSH(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program(t, dir, "nc", netcatVariable+"=1 exec '"+self+"' \"$@\"")
	ssh := program(t, dir, "ssh", `printf '%s\n' "$@" >"${0%/*}/args"; echo $$ >"${0%/*}/pid"; for last; do :; done; PATH="${0%/*}:$PATH" exec sh -c "$last"`)
	socket := filepath.Join(dir, "it's a $ock")
	if err := os.Symlink(remotetest.Listen(t, opens), socket); err != nil {
		t.Fatal(err)
	}
	query := url.Values{"command": {ssh}, "socket": {socket}, "keyfile": {"/key"}, "no_verify": {"1"}}
	c, err := remote.Dial(t.Context(), "qemu+ssh://ops@far.example:2222/system?"+query.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.PeerID(); !fault.Is(err, fault.Unsupported) {
		t.Errorf("the process of a daemon of another host: %v", err)
	}
	if err := c.Call(t.Context(), xdr.ProcConnectGetLibVersion, nil, nil); err != nil {
		t.Error(err)
	}
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	for _, want := range []string{"BatchMode=yes\n", "-p\n2222\n", "-l\nops\n", "-i\n/key\n", "StrictHostKeyChecking=no\n--\nfar.example\nsh -c "} {
		if err != nil || !strings.Contains(string(args), want) {
			t.Errorf("%v: ssh was called with %q, without %q", err, args, want)
		}
	}
	c.Close()
	text, err := os.ReadFile(filepath.Join(dir, "pid"))
	pid, wrong := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || wrong != nil || syscall.Kill(pid, 0) == nil {
		t.Errorf("the connection has ended, and its ssh has not: %v, %v", err, wrong)
	}
}

// Promise: L70
func TestWhySSHFails(t *testing.T) {
	for name, c := range map[string]struct {
		does  string
		wants []string
	}{
		"no key":    {`echo 'ops@far: Permission denied (publickey).' >&2; exit 255`, []string{"Permission denied (publickey)", "exit status 255", "a key or an agent"}},
		"no nc":     {`echo 'no nc' >&2; exit 127`, []string{"no nc", "install libvirt's client, nc or socat on far"}},
		"no socket": {`printf 'nc: \033[2Jno such file\r\n' >&2; exit 1`, []string{"says: nc: [2Jno such file"}},
		"late":      {`cat >/dev/null; echo 'gone' >&2; exit 3`, []string{"context deadline exceeded"}},
		"hangs":     {`echo 'I wait' >&2; exec sleep 600`, []string{"context deadline exceeded", "I wait"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			if strings.Contains(strings.Join(c.wants, ""), "deadline") {
				// Its words come first, if the machine is not too busy for that.
				var stop context.CancelFunc
				ctx, stop = context.WithTimeout(ctx, 3*time.Second)
				defer stop()
			}
			ssh := program(t, t.TempDir(), "ssh", c.does)
			_, err := remote.Dial(ctx, "qemu+ssh://far/system?command="+ssh)
			for _, want := range c.wants {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v: nothing of %q", err, want)
				}
			}
		})
	}
	if _, err := remote.Dial(t.Context(), "qemu+ssh://far/system?command=/none/of/these"); !fault.Is(err, fault.NotFound) {
		t.Errorf("without any ssh: %v", err)
	}
}

// Promise: L70
func TestOverTLS(t *testing.T) {
	ca, stranger := remotetest.NewAuthority(t), remotetest.NewAuthority(t)
	soon, past := time.Now().Add(time.Hour), time.Now().Add(-time.Minute)
	good := ca.Issue("far", soon, "localhost", "127.0.0.1")
	alice := ca.Issue("alice", soon)
	eve := stranger.Issue("alice", soon)
	known := ca.Client(&alice)
	socket := remotetest.Listen(t, opens)
	for name, c := range map[string]struct {
		server tls.Certificate
		folder string
		query  string
		says   []string // nothing: it is let in
	}{
		"good":                  {server: good, folder: known},
		"a subject's name only": {server: ca.Issue("localhost", soon), folder: known},
		"not looked at":         {server: stranger.Issue("x", past), folder: known, query: "&no_verify=1"},
		"another authority":     {server: stranger.Issue("far", soon, "localhost"), folder: known, says: []string{"not good", "unknown authority"}},
		"another name":          {server: ca.Issue("localhost", soon, "far.example"), folder: known, says: []string{"another name", "far.example"}},
		"too old":               {server: ca.Issue("far", past, "localhost"), folder: known, says: []string{"not good", "expired"}},
		"a stranger as client":  {server: good, folder: ca.Client(&eve), says: []string{"does not let this client in", "was shown"}},
		"a client without any":  {server: good, folder: ca.Client(nil), says: []string{"does not let this client in", "there is none at"}},
		"nobody to trust":       {server: good, folder: t.TempDir(), says: []string{"whose certificates to trust", "pkipath"}},
	} {
		t.Run(name, func(t *testing.T) {
			port := remotetest.Gate(t, socket, remotetest.Shake(c.server, ca))
			conn, err := remote.Dial(t.Context(), "qemu+tls://localhost:"+port+"/system?pkipath="+c.folder+c.query)
			if err == nil {
				if _, err := conn.PeerID(); !fault.Is(err, fault.Unsupported) {
					t.Errorf("the process of a daemon of another host: %v", err)
				}
				conn.Close()
			}
			if (err == nil) != (c.says == nil) {
				t.Errorf("got %v", err)
			}
			for _, want := range c.says {
				if err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("%v: nothing of %q", err, want)
				}
			}
		})
	}
}

// A host that takes a connection and says nothing is given up.
// Promise: L70
func TestAHostThatIsSilentIsGivenUp(t *testing.T) {
	held := make(chan struct{})
	defer close(held)
	silent := remotetest.Gate(t, "", func(net.Conn) (net.Conn, error) { <-held; return nil, io.EOF })
	ca := remotetest.NewAuthority(t)
	for _, address := range []string{"qemu+tcp://127.0.0.1:" + silent + "/system", "qemu+tls://localhost:" + silent + "/system?pkipath=" + ca.Client(nil)} {
		ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err := remote.Dial(ctx, address); err == nil || !strings.Contains(err.Error(), "deadline") {
			t.Errorf("%s: %v", address, err)
		}
		stop()
	}
}

// Promise: L70
func TestOverTCP(t *testing.T) {
	var wants atomic.Int32
	socket := remotetest.Listen(t, func(proc int32, _ xdr.Message) (xdr.Message, error) {
		if proc == xdr.ProcAuthList {
			return &xdr.AuthListRet{Types: []int32{wants.Load()}}, nil
		}
		return nil, nil
	})
	address := "qemu+tcp://127.0.0.1:" + remotetest.Gate(t, socket, remotetest.Open) + "/system"
	c, err := remote.Dial(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	wants.Store(1)
	if _, err := remote.Dial(t.Context(), address); !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "SASL") {
		t.Errorf("a daemon that wants SASL: %v", err)
	}
	if _, err := remote.Dial(t.Context(), "qemu+tcp://127.0.0.1:1/system"); !fault.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "virtproxyd-tcp.socket") {
		t.Errorf("where nobody listens: %v", err)
	}
}
