package service_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/lab/image/imagetest"
	"github.com/lodge-kvm/lodge/lab/service"
	"github.com/lodge-kvm/lodge/lab/session"
)

// fetch gets a page and tells what came.
func fetch(t *testing.T, url string) (status int, body string) {
	t.Helper()
	client := http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func begin(t *testing.T, s *session.Session, kind, config string) service.Service {
	t.Helper()
	one, err := service.New(kind, []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	if err := one.Start(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s serves after %v", kind, time.Since(started))
	if err := one.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
	return one
}

func end(t *testing.T, s *session.Session, one service.Service) {
	t.Helper()
	if err := one.Stop(t.Context(), s); err != nil {
		t.Error(err)
	}
	if err := one.Check(t.Context(), s); err == nil || !strings.Contains(err.Error(), one.Name()+" does not run in") {
		t.Errorf("%s was stopped: %v", one.Name(), err)
	}
}

// web asks a server for files and pages, and sees that it has counted each.
func web(t *testing.T, s *session.Session, server service.Service, base string) {
	t.Helper()
	for range 3 {
		if status, body := fetch(t, base+"/10k"); status != 200 || len(body) != 10<<10 {
			t.Errorf("%s gives /10k as %d with %d bytes", server.Name(), status, len(body))
		}
	}
	if status, body := fetch(t, base+"/hello.php?who=me"); status != 200 || body != "hello 333833500\n" {
		t.Errorf("%s gives a page of PHP as %d: %.200q", server.Name(), status, body)
	}
	if status, _ := fetch(t, base+"/nothing"); status != 404 {
		t.Errorf("%s gives what is not there as %d", server.Name(), status)
	}
	counted, err := server.Counted(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{"requests": 4, "refused": 1, "200 GET /10k": 3, "200 GET /hello.php": 1, "404 GET /nothing": 1}
	if fmt.Sprint(counted) != fmt.Sprint(want) {
		t.Errorf("%s has counted %v, and was asked %v", server.Name(), counted, want)
	}
}

// Promise: L7
func TestEveryServiceServesAndCounts(t *testing.T) {
	g := imagetest.Boot(t, "services", 512, 80)
	base := "http://" + g.Forward[80]

	fpm := begin(t, g.Session, "php-fpm", "")
	nginx := begin(t, g.Session, "nginx", "")
	if err := nginx.Start(t.Context(), g.Session); err == nil {
		t.Error("it starts twice")
	}
	web(t, g.Session, nginx, base)
	load(t, g.Session, nginx)
	end(t, g.Session, nginx)
	end(t, g.Session, fpm)

	apache := begin(t, g.Session, "apache", `{"clients": 8}`)
	web(t, g.Session, apache, base)
	database(t, g.Session, base)
	end(t, g.Session, apache)
}

// load runs one in the guest, and sees that both sides count the same.
func load(t *testing.T, s *session.Session, server service.Service) {
	t.Helper()
	before, err := server.Counted(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	config := `{"mode": "closed", "users": 4, "duration": "1s", "address": "127.0.0.1:80",
		"requests": [{"op": "file", "path": "/10k", "bytes": 10240}, {"op": "page", "path": "/hello.php", "contains": "hello 333833500"}]}`
	job, err := s.Start(t.Context(), "web", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	for i := range job.Intervals() {
		t.Logf("in %v %d files and %d pages", i.Length, i.Ops["file"].Done, i.Ops["page"].Done)
	}
	total, err := job.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	after, err := server.Counted(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	for op, line := range map[string]string{"file": "200 GET /10k", "page": "200 GET /hello.php"} {
		done := total.Ops[op]
		if served := after[line] - before[line]; done.Done == 0 || done.Errors != 0 || served != done.Done {
			t.Errorf("of %s the load says %d done and %d errors (%s), and the server has %d", op, done.Done, done.Errors, done.Example, served)
		}
	}
}

// database runs transactions from within, from a page, and counts them.
func database(t *testing.T, s *session.Session, base string) {
	t.Helper()
	db := begin(t, s, "mariadb", `{"buffer": 32, "connections": 50}`)
	page := fmt.Sprintf(`<?php
$db = new mysqli('localhost', '%s', '%s', '%s', 0, '%s');
$db->query('CREATE TABLE IF NOT EXISTS t (n INT PRIMARY KEY) ENGINE=InnoDB');
$db->begin_transaction();
$db->query('INSERT INTO t SELECT COALESCE(MAX(n), 0) + 1 FROM t');
$db->commit();
echo $db->query('SELECT MAX(n) FROM t')->fetch_row()[0];
`, service.Account, service.Word, service.Database, service.Socket)
	if err := s.Put(t.Context(), service.Root+"/db.php", 0o644, bytes.NewReader([]byte(page))); err != nil {
		t.Fatal(err)
	}
	before, err := db.Counted(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if status, body := fetch(t, base+"/db.php"); status != 200 || body != fmt.Sprint(i+1) {
			t.Fatalf("the page says %d: %.300q", status, body)
		}
	}
	after, err := db.Counted(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	for what, want := range map[string]int64{"transactions": 3, "rolledback": 0, "selects": 3} {
		if got := after[what] - before[what]; got != want {
			t.Errorf("%d %s were counted, and %d made", got, what, want)
		}
	}
	end(t, s, db)
}

func TestAServiceThatCannotStartSaysWhy(t *testing.T) {
	for kind, config := range map[string]string{
		"none": "", "nginx": `{"connections": 1}`, "apache": `{"clients": 0}`, "php-fpm": `{"children": "many"}`, "mariadb": `{"speed": 1}`,
	} {
		if _, err := service.New(kind, []byte(config)); err == nil {
			t.Errorf("service %s of %s is taken", kind, config)
		}
	}
}

func TestSettingsAreFilledIn(t *testing.T) {
	for _, kind := range service.Kinds() {
		one, err := service.New(kind, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(one.Settings()) == 0 {
			t.Errorf("%s has no settings", kind)
		}
		for path, text := range one.Settings() {
			if bytes.Contains(text, []byte("{{")) {
				t.Errorf("%s is left with a gap: %s", path, text)
			}
		}
	}
}
