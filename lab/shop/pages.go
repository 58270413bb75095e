package shop

import (
	"embed"
	"fmt"
	"io/fs"
	"net"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/mariadb"
)

//go:embed pages/*.php
var pages embed.FS

// ConfigName is the file beside the pages that says where the database is.
const ConfigName = "config.php"

// Pages are the shop's pages by their file names. Beside them belongs one of
// ConfigName. They need PHP 8.2 with mysqli.
func Pages() (map[string][]byte, error) {
	all := map[string][]byte{}
	err := fs.WalkDir(pages, "pages", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		all[entry.Name()], err = pages.ReadFile(path)
		return err
	})
	return all, fault.Wrap(err, fault.Internal, fault.Host, "cannot read the shop's pages")
}

// Config is the content of the file that says where the database is.
func Config(server mariadb.Server) ([]byte, error) {
	if err := server.Check(); err != nil {
		return nil, err
	}
	host, port, socket := "localhost", "0", ""
	if path, ok := strings.CutPrefix(server.Address, "unix:"); ok {
		socket = path
	} else {
		var err error
		if host, port, err = net.SplitHostPort(server.Address); err != nil {
			return nil, fault.Wrap(err, fault.Invalid, fault.Config, "the database's address")
		}
	}
	return fmt.Appendf(nil, "<?php\nreturn ['host' => %s, 'port' => (int) %s, 'socket' => %s, 'user' => %s, 'password' => %s, 'database' => %s];\n",
		literal(host), literal(port), literal(socket), literal(server.User), literal(server.Password), literal(server.Database)), nil
}

// literal is text in PHP's single quotes, in which only these two mean something.
func literal(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(text) + "'"
}
