package authz

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/mechanism/polkit"
)

// Promise: A9
func TestLockout_RepeatedFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s lockout
		for i := range maxFailures {
			if s.isLocked("eve") {
				t.Fatalf("out after %d", i)
			}
			if last := s.fail("eve"); last != (i == maxFailures-1) {
				t.Errorf("attempt %d: %v", i+1, last)
			}
		}
		if !s.isLocked("eve") || s.isLocked("alice") {
			t.Error("eve is not out, or alice is")
		}
		<-time.After(lockoutTime + time.Second)
		if s.isLocked("eve") {
			t.Error("eve is out for ever")
		}
		for range maxFailures - 1 {
			s.fail("bob")
		}
		s.clear("bob")
		s.fail("bob")
		if s.isLocked("bob") {
			t.Error("bob came in, and is out for what was before")
		}
	})
}

// Promise: A9
func TestLockout_Bounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s lockout
		for i := range maxTracked + 100 {
			s.fail(fmt.Sprint(i))
			<-time.After(time.Millisecond)
		}
		if len(s.clients) != maxTracked {
			t.Errorf("%d are remembered", len(s.clients))
		}
		if _, there := s.clients["0"]; there {
			t.Error("the first is not forgotten")
		}
		<-time.After(lockoutTime)
		s.fail("last")
		if len(s.clients) > maxTracked {
			t.Errorf("%d are remembered", len(s.clients))
		}
	})
}

func TestAuthenticator_Origin(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1:5":                   "10.0.0.1",
		"[::ffff:10.0.0.1]:5":          "10.0.0.1",
		"[2001:db8:0:1:2:3:4:5]:6":     "2001:db8:0:1::/64",
		"[2001:db8:0:1:ffff::1]:6":     "2001:db8:0:1::/64",
		"[fe80::1%eth0]:6":             "fe80::/64",
		"[2001:db8:0:2:ffff::1]:65535": "2001:db8:0:2::/64",
	} {
		if got := origin(address); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

// TestReceive_HandshakesPerAddress has one address begin as many handshakes as it may.
func TestPrincipal_Owner(t *testing.T) {
	of := func(pid int32, uid uint32) Owner { return LocalPrincipal(listener.Peer{PID: pid, UID: uid}).Owner() }
	if root := of(7, 0); root != of(7, 0) || root == of(8, 0) {
		t.Error("processes of root are owners of their own")
	}
	if of(7, 1000) != of(8, 1000) || of(7, 1000) == of(7, 0) {
		t.Error("a user is one owner")
	}
	far := func(address string) Owner { return Principal{Address: address, Subject: "CN=alice"}.Owner() }
	if far("[2001:db8::1]:1") != far("[2001:db8::2]:2") || far("192.0.2.1:1") == far("192.0.2.2:1") || far("192.0.2.1:1") == of(0, 0) {
		t.Error("a host is one owner, with all its addresses that begin alike")
	}
}

// Promise: A9
func TestReceive_HandshakesPerAddress(t *testing.T) {
	r := NewAuthenticator(nil, nil, nil, slog.New(slog.DiscardHandler))
	for range maxHandshakesEach {
		if err := r.beginHandshake("a"); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.beginHandshake("a"); !IsOverLimit(err) {
		t.Errorf("one too many from an address: %v", err)
	}
	for i := range maxHandshakes - maxHandshakesEach {
		if err := r.beginHandshake(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.beginHandshake("b"); !IsOverLimit(err) {
		t.Errorf("one too many in all: %v", err)
	}
	r.endHandshake("a")
	if err := r.beginHandshake("b"); err != nil {
		t.Errorf("where one has ended: %v", err)
	}
}

// With AskPolkitLast, polkit is not asked about members of the groups, and about no client if there are rules.
//
// Promise: A20
func TestAsks_AskLast(t *testing.T) {
	ruled := new(Authorizer)
	ruled.rules.Store(new(Rules))
	who := func(uid, gid uint32, groups ...uint32) Principal {
		return LocalPrincipal(listener.Peer{PID: 1, UID: uid, GID: gid, Groups: groups})
	}
	for _, c := range []struct {
		what       string
		w          Principal
		gate       *Authorizer
		last, asks bool
	}{
		{"a stranger, first", who(4242, 4242), nil, false, true},
		{"a member, first", who(4242, 7), nil, false, true},
		{"a stranger where there are rules, first", who(4242, 4242), ruled, false, true},
		{"a stranger", who(4242, 4242), nil, true, true},
		{"a member", who(4242, 7), nil, true, false},
		{"a member besides", who(4242, 4242, 5, 7), nil, true, false},
		{"a member of another group", who(4242, 4242, 5), nil, true, true},
		{"a stranger where there are rules", who(4242, 4242), ruled, true, false},
		{"root", who(0, 0), nil, true, false},
		{"a client unknown to the kernel", LocalPrincipal(listener.Peer{Unknown: errors.New("unknown")}), nil, true, false},
		{"a client of another host", Principal{Subject: "CN=a"}, nil, true, false},
	} {
		r := NewAuthenticator(c.gate, polkit.New(), nil, slog.New(slog.DiscardHandler))
		if c.last {
			r.AskPolkitLast([]uint32{7})
		}
		if asks := r.AsksPolkit(c.w); asks != c.asks {
			t.Errorf("that polkit is asked about %s is %v", c.what, asks)
		}
	}
	if r := NewAuthenticator(nil, polkit.New(), nil, slog.New(slog.DiscardHandler)); true {
		r.AskPolkitLast(nil)
		if !r.AsksPolkit(who(4242, 4242)) {
			t.Error("polkit is not asked where there is no group")
		}
	}
}
