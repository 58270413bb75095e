// Package mariadbtest starts a MariaDB for tests: the real one, from the
// distribution's packages, with its data in a temporary directory and nothing but
// a unix socket to come in by.
package mariadbtest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/lab/mariadb"
)

// patience bounds how long the server may take to come up.
const patience = 2 * time.Minute

// Start gives a server of its own that ends with the test, which is skipped where
// there is none to start.
func Start(t testing.TB) mariadb.Server {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a MariaDB: not in -short")
	}
	install, server := find(t, "mariadb-install-db"), find(t, "mariadbd")
	dir, err := os.MkdirTemp("", "lodge-db-") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	data := filepath.Join(dir, "data")
	common := []string{"--no-defaults", "--datadir=" + data, "--user=" + user()}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	setup := exec.CommandContext(ctx, install, append(common, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve", "--innodb-log-file-size=8M")...)
	setup.Dir = dir
	if said, err := setup.CombinedOutput(); err != nil {
		t.Fatalf("cannot set up a database: %v\n%s", err, said)
	}
	s := mariadb.Server{Address: "unix:" + filepath.Join(dir, "s"), User: "root", Database: "lab"}
	run(t, server, append(common, "--socket="+filepath.Join(dir, "s"), "--pid-file="+filepath.Join(dir, "pid"), "--skip-networking",
		"--innodb-buffer-pool-size=64M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=2")...)
	await(ctx, t, s)
	return s
}

func find(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/" + program); err != nil {
			t.Skipf("needs %s: install Debian's mariadb-server-core", program)
		}
	}
	return path
}

// user is whom the server runs as: it must be told if that is root.
func user() string {
	if os.Geteuid() == 0 {
		return "root"
	}
	return os.Getenv("USER")
}

// run keeps a server until the test ends, and not longer than the test's process.
func run(t testing.TB, server string, args ...string) {
	t.Helper()
	var said bytes.Buffer
	daemon := exec.Command(server, args...) //nolint:noctx // it is ended below, after the test's own context
	daemon.Stdout, daemon.Stderr = &said, &said
	daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill() // its data go with it
		_ = daemon.Wait()
		if t.Failed() {
			t.Logf("the database said:\n%s", said.String())
		}
	})
}

func await(ctx context.Context, t testing.TB, s mariadb.Server) {
	t.Helper()
	var err error
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if err = s.Create(ctx); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the database did not come up: %v", err)
		case <-tick.C:
		}
	}
}
