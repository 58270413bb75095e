package service

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/session"
)

//go:embed files/mariadb.cnf
var mariadbSettings string

// Account is the user that loads and pages come to the database as. Its word is
// no secret: the database is in a network of the run's own.
const (
	Account = "lab"
	Word    = "lab"
	// Database is one that the account may do everything in, as in all others.
	Database = "lab"
	// Socket is where MariaDB listens inside, and Port where it does outside.
	Socket = "/run/mysqld/mysqld.sock"
	Port   = 3306
)

// MariaDB is the database.
type MariaDB struct {
	Buffer      int  `json:"buffer"` // MiB for InnoDB's pages
	Connections int  `json:"connections"`
	Durable     bool `json:"durable"` // the log is on disk before a commit is answered
}

func (m *MariaDB) check() error {
	if err := within("buffer", m.Buffer, 8, 1<<22); err != nil {
		return err
	}
	return within("connections", m.Connections, 10, 100_000)
}

func (m *MariaDB) daemon() daemon {
	return daemon{name: "mariadb", pid: "/run/mysqld/lab.pid", log: logs + "/mariadb.log", words: logs + "/mariadb.log"}
}

// Name is "mariadb".
func (m *MariaDB) Name() string { return "mariadb" }

// Settings is MariaDB's file. The log of changes grows with the buffer: a small
// one would be written out all the time.
func (m *MariaDB) Settings() map[string][]byte {
	flush := 2
	if m.Durable {
		flush = 1
	}
	text := mariadbSettings
	for word, number := range map[string]int{"BUFFER": m.Buffer, "CONNECTIONS": m.Connections, "FLUSH": flush, "LOG": min(max(m.Buffer/2, 48), 4096)} {
		text = string(fill(text, word, number))
	}
	return map[string][]byte{config + "/mariadb.cnf": []byte(text)}
}

// Start makes MariaDB take connections, with the account there.
func (m *MariaDB) Start(ctx context.Context, s *session.Session) error {
	if err := install(ctx, s, m, "/run/mysqld"); err != nil {
		return err
	}
	// It does not leave its parent by itself, and is up when it says so: every
	// tenth of a second it is asked, as long as it lives.
	err := m.daemon().start(ctx, s, "sh", "-c", `chown mysql:mysql /run/mysqld "$2"
		setsid mariadbd --defaults-file="$1" >>"$2" 2>&1 </dev/null & pid=$!
		until mariadb-admin --no-defaults --connect-timeout=5 -S "$3" ping >/dev/null 2>&1; do
			kill -0 "$pid" 2>/dev/null || { tail -n 5 "$2" >&2; exit 1; }
			sleep 0.1
		done`, "sh", config+"/mariadb.cnf", m.daemon().log, Socket)
	if err != nil {
		return err
	}
	_, err = m.Ask(ctx, s, fmt.Sprintf("CREATE OR REPLACE USER '%[1]s'@'%%' IDENTIFIED BY '%[2]s'; GRANT ALL ON *.* TO '%[1]s'@'%%'; CREATE DATABASE IF NOT EXISTS %[3]s",
		Account, Word, Database))
	return err
}

// Ask has MariaDB run statements as root, and gives rows of columns with tabs
// between.
func (m *MariaDB) Ask(ctx context.Context, s *session.Session, statements string) (string, error) {
	r, err := s.Exec(ctx, session.Command{
		Argv: []string{"mariadb", "--no-defaults", "-S", Socket, "-B", "-N"}, Stdin: strings.NewReader(statements),
	})
	if err == nil && r.Status != 0 {
		err = fault.New(fault.Failed, fault.Agent, "mariadb in %s: %s", s.Guest.Name, strings.TrimSpace(string(r.Stderr)))
	}
	return string(r.Stdout), err
}

// Check says why MariaDB does not serve.
func (m *MariaDB) Check(ctx context.Context, s *session.Session) error {
	return m.daemon().check(ctx, s)
}

// Stop lets MariaDB end, with all that it holds written out.
func (m *MariaDB) Stop(ctx context.Context, s *session.Session) error {
	return m.daemon().stop(ctx, s)
}

// Counted reads the server's own counters since it was started: "transactions"
// are those committed, "rolledback" those not, "questions" all statements of
// clients.
func (m *MariaDB) Counted(ctx context.Context, s *session.Session) (map[string]int64, error) {
	names := map[string]string{
		"Com_commit": "transactions", "Com_rollback": "rolledback", "Questions": "questions", "Com_select": "selects",
		"Com_insert": "inserts", "Com_update": "updates", "Com_delete": "deletes", "Aborted_clients": "aborted", "Connections": "connections",
	}
	text, err := m.Ask(ctx, s, "SHOW GLOBAL STATUS")
	if err != nil {
		return nil, fmt.Errorf("cannot count what was served: %w", err)
	}
	sums := map[string]int64{}
	for line := range strings.Lines(text) {
		variable, value, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if name, ours := names[variable]; ours {
			if sums[name], err = strconv.ParseInt(value, 10, 64); err != nil {
				return nil, fault.Wrap(err, fault.Failed, fault.Agent, "cannot count what was served: %.100q", line)
			}
		}
	}
	return sums, nil
}
