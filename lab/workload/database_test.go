package workload

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/lab/mariadb"
	"github.com/lodge-kvm/lodge/lab/mariadb/mariadbtest"
	"github.com/lodge-kvm/lodge/lab/oltp"
	"github.com/lodge-kvm/lodge/lab/shop"
)

// do runs a load of a kind to its end.
func do(t *testing.T, kind string, config any) Total {
	t.Helper()
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	load, err := New(kind, data)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, load)
}

// Promise: L4
func TestDatabases(t *testing.T) {
	server := mariadbtest.Start(t)
	for name, test := range map[string]func(*testing.T, mariadb.Server){
		"Oltp": loadOLTP, "OltpFindsLoss": findLoss, "Shop": loadShop, "Sysbench": loadSysbench,
	} {
		t.Run(name, func(t *testing.T) {
			own := server
			own.Database = strings.ToLower(name)
			test(t, own)
		})
	}
}

var smallDesk = oltp.Size{Warehouses: 2, Customers: 30, Items: 200, Seed: 7}

// What terminals that wait for each other committed is what the tables have.
func loadOLTP(t *testing.T, server mariadb.Server) {
	filled := do(t, "oltp-prepare", OLTPErrand{Database: server, Size: smallDesk})
	if rows, about := filled.Ops[OpRows].Done, smallDesk.Rows(); rows < about*9/10 || rows > about*11/10 {
		t.Errorf("%d rows instead of about %d", rows, about)
	}
	errand := OLTPErrand{Database: server, Size: smallDesk}
	before := do(t, "oltp-check", errand)
	for _, pace := range []Pace{{Users: 8, Duration: Duration(1500 * time.Millisecond)}, {Mode: open, Rate: 40, Users: 8, Duration: Duration(1500 * time.Millisecond)}} {
		pace.Timeout = Duration(2 * time.Minute)
		took := do(t, "oltp", OLTP{Pace: pace, Database: server, Size: smallDesk})
		after := do(t, "oltp-check", errand)
		if all := took.All(); all.Errors != 0 {
			t.Fatalf("%d errors: %s", all.Errors, all.Example)
		}
		for _, op := range []string{oltp.NewOrder, oltp.Payment} {
			if client, tables := took.Ops[op].Done, after.Ops[op].Done-before.Ops[op].Done; client != tables || client == 0 && pace.Mode == open {
				t.Errorf("%s: the terminals counted %d, the tables have %d", op, client, tables)
			}
		}
		commits := int64(0)
		for op, c := range took.Ops {
			if op != OpUndone && op != oltp.RolledBack {
				commits += c.Done
			}
		}
		if tables := after.Ops[OpCommits].Done - before.Ops[OpCommits].Done; commits != tables {
			t.Errorf("the terminals counted %d commits, the server %d", commits, tables)
		}
		if wrong := after.Ops[OpWrong]; wrong.Errors != 0 || wrong.Done != 1 {
			t.Errorf("%d rows: %s", wrong.Errors, wrong.Example)
		}
		before = after
	}
}

// The sums notice each kind of loss.
func findLoss(t *testing.T, server mariadb.Server) {
	size := oltp.Size{Warehouses: 1, Customers: 40, Items: 30} // more orders wait than can be delivered meanwhile
	errand := OLTPErrand{Database: server, Size: size}
	do(t, "oltp-prepare", errand)
	do(t, "oltp", OLTP{Pace: Pace{Mode: open, Arrivals: even, Rate: 100, Users: 2, Duration: Duration(300 * time.Millisecond), Timeout: Duration(2 * time.Minute)}, Database: server, Size: size})
	db, err := server.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // the server ends with the test
	seen := map[string]bool{}
	for _, loss := range []string{
		"UPDATE warehouses SET year = year + 1", "DELETE FROM payments LIMIT 1", "DELETE FROM waiting LIMIT 1", "DELETE FROM order_lines LIMIT 1",
		"UPDATE customers SET paid = paid + 1 LIMIT 1", "UPDATE customers SET balance = balance + 5 LIMIT 3", "UPDATE stocks SET sold = sold + 1 LIMIT 1",
		"DELETE FROM orders ORDER BY id DESC LIMIT 1",
	} {
		result, err := db.ExecContext(t.Context(), loss)
		if err != nil {
			t.Fatal(err)
		}
		if rows, err := result.RowsAffected(); err != nil || rows == 0 {
			t.Fatalf("%q changed %d rows: %v", loss, rows, err)
		}
		audit, err := size.Audit(t.Context(), server)
		if err != nil {
			t.Fatal(err)
		}
		news := false
		for _, w := range audit.Wrong {
			key := fmt.Sprint(w)
			news = news || !seen[key]
			seen[key] = true
		}
		if !news {
			t.Errorf("nothing new is wrong after %q: %v", loss, audit.Wrong)
		}
	}
}

// Every order that a visitor saw confirmed is in the tables, and no other is.
func loadShop(t *testing.T, server mariadb.Server) {
	small := shop.Shop{Megabytes: 1, Seed: 3}
	filled := do(t, "shop-prepare", ShopPrepare{Database: server, Shop: small})
	if rows, about := filled.Ops[OpRows].Done, small.Rows(); rows < about*9/10 || rows > about*11/10 {
		t.Errorf("%d rows instead of about %d", rows, about)
	}
	address := servePages(t, server)
	half := 0.5
	took := do(t, "shop", Shop{
		Pace: Pace{Mode: open, Arrivals: even, Rate: 40, Users: 4, Duration: Duration(time.Second), Timeout: Duration(2 * time.Minute)}, Address: address, Path: "/",
		Shop: small, Manner: shop.Manner{NewCustomers: &half}, Run: "one",
	})
	if all := took.All(); all.Errors != 0 {
		t.Fatalf("%d errors: %s", all.Errors, all.Example)
	}
	for _, op := range []string{OpCycle, shop.OpLogin, shop.OpNew, shop.OpBrowse, shop.OpPurchase} {
		if took.Ops[op].Done == 0 {
			t.Errorf("no %s was done", op)
		}
	}
	check := do(t, "shop-check", ShopCheck{Database: server, Shop: small, Run: "one"})
	for _, op := range []string{shop.OpPurchase, shop.OpNew} {
		if client, tables := took.Ops[op].Done, check.Ops[op].Done; client != tables {
			t.Errorf("%s: the visitors counted %d, the tables have %d", op, client, tables)
		}
	}
	if wrong := check.Ops[OpWrong]; wrong.Errors != 0 || wrong.Done != 1 {
		t.Errorf("%d rows: %s", wrong.Errors, wrong.Example)
	}
	soldOut(t, server, small, address)
	findShopLoss(t, server, small)
}

// soldOut takes all the stock away: orders are turned down, which is no error and
// no order.
func soldOut(t *testing.T, server mariadb.Server, small shop.Shop, address string) {
	db, err := server.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // the server ends with the test
	if _, err := db.ExecContext(t.Context(), "UPDATE inventory SET stock = 0"); err != nil {
		t.Fatal(err)
	}
	took := do(t, "shop", Shop{
		Pace: Pace{Mode: open, Arrivals: even, Rate: 30, Users: 2, Duration: Duration(300 * time.Millisecond), Timeout: Duration(2 * time.Minute)}, Address: address, Path: "/", Shop: small, Run: "two",
	})
	check := do(t, "shop-check", ShopCheck{Database: server, Shop: small, Run: "two"})
	if got := took.Ops[shop.OpSoldOut].Done; got != 9 || took.All().Errors != 0 || took.Ops[OpCycle].Done+check.Ops[shop.OpPurchase].Done != 0 {
		t.Errorf("%d turned down, %d orders, %+v", got, check.Ops[shop.OpPurchase].Done, took.All())
	}
	if check.Ops[OpWrong].Errors == 0 {
		t.Error("stock went and nothing is wrong")
	}
}

func findShopLoss(t *testing.T, server mariadb.Server, small shop.Shop) {
	db, err := server.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // the server ends with the test
	before, err := small.Audit(t.Context(), server, "one")
	if err != nil {
		t.Fatal(err)
	}
	for _, loss := range []string{
		"DELETE FROM history ORDER BY order_id DESC LIMIT 3", "DELETE FROM order_lines ORDER BY order_id DESC LIMIT 1", "DELETE FROM orders ORDER BY id DESC LIMIT 3",
	} {
		if _, err := db.ExecContext(t.Context(), loss); err != nil {
			t.Fatal(err)
		}
		after, err := small.Audit(t.Context(), server, "one")
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(after.Wrong) == fmt.Sprint(before.Wrong) {
			t.Errorf("nothing new is wrong after %q: %v", loss, after.Wrong)
		}
		before = after
	}
}

func loadSysbench(t *testing.T, server mariadb.Server) {
	if _, err := exec.LookPath("sysbench"); err != nil {
		t.Skip("needs sysbench: install Debian's package")
	}
	s := Sysbench{Duration: Duration(time.Second), Database: server, Rows: 100, Threads: 2}
	if rows := do(t, "sysbench-prepare", s).Ops[OpRows].Done; rows != 100 {
		t.Errorf("%d rows", rows)
	}
	db, err := server.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // the server ends with the test
	commits := func() int64 {
		n, err := mariadb.Count(t.Context(), db, "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'COM_COMMIT'")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := commits()
	got := do(t, "sysbench", s).Ops[OpTransaction]
	if committed := commits() - before; got.Done == 0 || got.Done != committed || got.Errors != 0 || got.Latency.TotalCount() != got.Done {
		t.Errorf("sysbench counted %d transactions and %d errors, the server %d commits", got.Done, got.Errors, committed)
	}
}

// servePages has PHP itself serve the shop's pages, and gives the address.
func servePages(t *testing.T, server mariadb.Server) string {
	t.Helper()
	php, err := exec.LookPath("php")
	if err != nil {
		t.Skip("needs php with mysqli: install Debian's php-cli and php-mysql")
	}
	if modules, err := exec.CommandContext(t.Context(), php, "-m").Output(); err != nil || !strings.Contains(string(modules), "mysqli") {
		t.Skipf("needs php with mysqli: install Debian's php-mysql (%v)", err)
	}
	dir := t.TempDir()
	pages, err := shop.Pages()
	if err != nil {
		t.Fatal(err)
	}
	if pages[shop.ConfigName], err = shop.Config(server); err != nil {
		t.Fatal(err)
	}
	for name, content := range pages {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 { // another may take the port meanwhile
		if address := servePort(t, php, dir); address != "" {
			return address
		}
	}
	t.Fatal("found no port to serve the pages on")
	return ""
}

// servePort tries one port, and gives "" if it is taken.
func servePort(t *testing.T, php, dir string) string {
	t.Helper()
	free, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	daemon := exec.CommandContext(ctx, php, "-S", address, "-t", dir)
	daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	said, err := daemon.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	up := make(chan bool, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(said); lines.Scan(); {
			switch text := lines.Text(); {
			case strings.Contains(text, "started"):
				up <- true
			case strings.Contains(text, "Failed to listen"):
				up <- false
			}
		}
	}()
	t.Cleanup(func() {
		cancel(nil)
		<-read
		_ = daemon.Wait() // it was killed
	})
	select {
	case <-read:
		return ""
	case listens := <-up:
		if !listens {
			return ""
		}
	}
	return address
}
