package mariadb

import (
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

func TestServersThatCannotBeMeantAreRefused(t *testing.T) {
	good := Server{Address: "unix:/run/mysqld/mysqld.sock", User: "lab", Database: "shop"}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Server){
		"address": func(s *Server) { s.Address = "somewhere" },
		"path":    func(s *Server) { s.Address = "unix:" },
		"user":    func(s *Server) { s.User = "" },
		"name":    func(s *Server) { s.Database = "x`; DROP DATABASE mysql" },
	} {
		bad := good
		change(&bad)
		if _, err := bad.Open(1); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestLiteralsCannotEndEarly(t *testing.T) {
	if got, want := quote("a'b\\c\nd\x00"), `'a\'b\\c\nd\0'`; got != want {
		t.Errorf("%s instead of %s", got, want)
	}
}
