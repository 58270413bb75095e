// Package mariadb is the lab's way to a MariaDB: one connection string made in one
// place, and many rows written at once. Loads in guests use it, so it is pure Go.
//
// What belongs here: what every load on a database needs. What does not: tables
// and transactions (lab/shop, lab/oltp), and starting servers.
package mariadb

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Server says where a database is and as whom to use it.
type Server struct {
	// Address is host:port, or unix:/path.
	Address  string `json:"address"`
	User     string `json:"user"`
	Password string `json:"password,omitempty"`
	// Database is created by those who fill it.
	Database string `json:"database"`
}

// connecting bounds how long a connection may take to be made.
const connecting = 10 * time.Second

// maxName bounds the name of a database, as MariaDB does.
const maxName = 64

// Check refuses what could not be meant.
func (s Server) Check() error {
	kind, at := s.network()
	if kind == "tcp" {
		if host, port, err := net.SplitHostPort(at); err != nil || host == "" || port == "" {
			return fault.New(fault.Invalid, fault.Config, "the database's address is %q: give host:port or unix:/path", s.Address)
		}
	} else if at == "" {
		return fault.New(fault.Invalid, fault.Config, "the database's address is %q: the socket's path is missing", s.Address)
	}
	if s.User == "" {
		return fault.New(fault.Invalid, fault.Config, "the database's user is missing")
	}
	// It is written into statements, where names cannot be quoted like values.
	if s.Database == "" || len(s.Database) > maxName || strings.Trim(s.Database, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return fault.New(fault.Invalid, fault.Config, "the database's name is %q: it is 1 to %d of a-z, 0-9 and _", s.Database, maxName)
	}
	if slices.Contains([]string{"mysql", "sys", "information_schema", "performance_schema"}, s.Database) {
		return fault.New(fault.Invalid, fault.Config, "the database %s is the server's own: give another name", s.Database)
	}
	return nil
}

func (s Server) network() (kind, at string) {
	if path, ok := strings.CutPrefix(s.Address, "unix:"); ok {
		return "unix", path
	}
	return "tcp", s.Address
}

// Open makes a pool of at most so many connections. It connects when used.
func (s Server) Open(connections int) (*sql.DB, error) { return s.open(s.Database, connections) }

func (s Server) open(database string, connections int) (*sql.DB, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	c := mysql.NewConfig()
	c.Net, c.Addr = s.network()
	c.User, c.Passwd, c.DBName = s.User, s.Password, database
	c.Timeout = connecting
	c.InterpolateParams = true // one round trip for a statement
	c.Logger = quiet{}         // errors are counted, not printed
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, fault.Config, "cannot use the database %s", s.Database)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

type quiet struct{}

func (quiet) Print(...any) {}

// Create makes the database anew and empty: what was in it is lost.
func (s Server) Create(ctx context.Context) error {
	db, err := s.open("", 1)
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // nothing was left in it
	for _, statement := range []string{
		"DROP DATABASE IF EXISTS `" + s.Database + "`",
		"CREATE DATABASE `" + s.Database + "` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot make the database %s", s.Database)
		}
	}
	return nil
}

// Begin makes the database anew with the tables of a schema, and gives the one
// connection that fills it. It is the caller's to close.
func (s Server) Begin(ctx context.Context, schema string) (*sql.DB, error) {
	if err := s.Create(ctx); err != nil {
		return nil, err
	}
	db, err := s.Open(1)
	if err != nil {
		return nil, err
	}
	if err := Run(ctx, db, schema); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// Run does statements one after the other; they are parted by ";" at a line's end.
func Run(ctx context.Context, db *sql.DB, statements string) error {
	for statement := range strings.SplitSeq(statements, ";\n") {
		statement = strings.TrimSpace(statement)
		if statement == "" {
			continue
		}
		if _, err := db.ExecContext(ctx, statement); err != nil {
			head, _, _ := strings.Cut(statement, "\n")
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot do %q", head)
		}
	}
	return nil
}
