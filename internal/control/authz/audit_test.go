package authz

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Promise: A5
func TestAudit_OneLinePerChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	var log bytes.Buffer
	a, err := OpenAudit(path, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	forged := "x'\nlevel=INFO msg=audit uid=0 result=ok"
	a.Note(Entry{Principal: user1(1001), API: "libvirt", Call: "DOMAIN_CREATE", Permission: Start, Resource: NewGuest(forged, "", nil), Rule: "operators"})
	a.Note(Entry{Principal: user1(1001), API: "libvirt", Call: "DOMAIN_GET_INFO", Permission: Read})
	a.Note(Entry{
		Principal: Principal{Subject: "CN=eve", Address: "10.0.0.9:1"}, API: "libvirt", Call: strings.Repeat("n", 9000), Permission: Define,
		Err: fault.Wrap(errors.New("secret words of a document"), fault.Denied, fault.Call, "no"),
	})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"file": string(text), "log": log.String()} {
		lines := strings.Split(strings.TrimSpace(text), "\n")
		if len(lines) != 2 {
			t.Fatalf("the %s has %d lines: %q", where, len(lines), lines)
		}
		for _, part := range []string{"uid=1001", "pid=7", "call=DOMAIN_CREATE", "verb=start", "object=", "rule=operators", "result=ok", "took="} {
			if !strings.Contains(lines[0], part) {
				t.Errorf("the %s's line %q has no %s", where, lines[0], part)
			}
		}
		for _, part := range []string{`dn="CN=eve"`, "address=10.0.0.9:1", "result=denied"} {
			if !strings.Contains(lines[1], part) {
				t.Errorf("the %s's line %q has no %s", where, lines[1], part)
			}
		}
		if strings.Contains(text, "secret words") || len(lines[1]) > 1000 {
			t.Errorf("the %s tells too much: %q", where, lines[1])
		}
	}
}

// TestAudit_RepeatedRefusals has a client that is refused again and again.
//
// Promise: A5
func TestAudit_RepeatedRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		a, err := OpenAudit("", slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		no, idle := fault.New(fault.Denied, fault.Call, "no"), fault.New(fault.WrongState, fault.Domain, "not running")
		for i := range 3 * maxAuditRefusals {
			err := no
			if i%2 == 0 {
				err = idle
			}
			a.Note(Entry{Principal: user1(1001), API: "lodge", Call: "Act", Err: err})
		}
		a.Note(Entry{Principal: user1(1001), API: "lodge", Call: "half done", Permission: Stop, Err: fault.New(fault.Timeout, fault.Domain, "too late")})
		a.Note(Entry{Principal: user1(1001), API: "lodge", Call: "Act", Permission: Start, Resource: NewGuest("done", "", nil)})
		a.Note(Entry{Principal: user1(1002), API: "lodge", Call: "Act", Err: no})
		a.Note(Entry{Principal: Principal{Address: "10.0.0.9:1"}, API: "lodge", Call: "TLS", Err: no})
		<-time.After(lockoutTime + time.Second)
		a.Note(Entry{Principal: user1(1001), API: "lodge", Call: "later", Err: no})
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		text := log.String()
		if n := strings.Count(text, "uid=1001 pid=7 call=Act verb=open"); n != maxAuditRefusals {
			t.Errorf("%d refusals have a line", n)
		}
		unsaid := 0
		for _, said := range regexp.MustCompile(`unsaid=(\d+)`).FindAllStringSubmatch(text, -1) {
			n, err := strconv.Atoi(said[1])
			if err != nil {
				t.Fatal(err)
			}
			unsaid += n
		}
		if unsaid != 2*maxAuditRefusals {
			t.Errorf("%d refusals are counted", unsaid)
		}
		for _, part := range []string{"domain 'done'", "uid=1002", "address=10.0.0.9:1", "call=later", `call="half done"`} {
			if !strings.Contains(text, part) {
				t.Errorf("no line has %s", part)
			}
		}
	})
}

// Promise: A5
func TestAudit_Reopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	a, err := OpenAudit(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	a.Reopen()
	a.Note(Entry{Principal: user1(1), API: "lodge", Call: "Act", Permission: Stop})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "uid=1 ") {
		t.Errorf("the new file has %q, %v", text, err)
	}
}
