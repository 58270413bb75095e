package shop

import (
	"context"
	"strconv"

	"github.com/lodge-kvm/lodge/lab/mariadb"
)

// Audit is what the shop's own tables say of a run: the other side of what its
// visitors counted.
type Audit struct {
	Orders    int64 // placed in the run
	Customers int64 // that became so in the run
	Wrong     []mariadb.Broken
}

// rules are what must hold however many visitors came at once: each counts rows
// that break it. All go by the orders of runs, whose numbers come after those of the past
// ones ("?"), so that a large shop is not read through.
var rules = []mariadb.Rule{
	{What: "orders whose lines do not add up", Query: `SELECT COUNT(*) FROM orders o
		LEFT JOIN (SELECT order_id, SUM(quantity * cents) AS net FROM order_lines WHERE order_id > ? GROUP BY order_id) l ON l.order_id = o.id
		WHERE o.id > ? AND (l.net IS NULL OR l.net <> o.net)`},
	{What: "lines without an order", Query: `SELECT COUNT(*) FROM order_lines l LEFT JOIN orders o ON o.id = l.order_id WHERE l.order_id > ? AND o.id IS NULL`},
	{What: "lines that their customer's history lacks", Query: `SELECT COUNT(*) FROM orders o JOIN order_lines l ON l.order_id = o.id
		LEFT JOIN history h ON h.customer = o.customer AND h.order_id = o.id AND h.line = l.line AND h.product = l.product
		WHERE o.id > ? AND h.product IS NULL`},
	{What: "titles of which stock and sold are not what there was", Query: `SELECT COUNT(*) FROM inventory WHERE stock + sold <> ` + strconv.Itoa(stock)},
	{What: "titles of which other numbers are sold than ordered", Query: `SELECT COUNT(*) FROM inventory i
		LEFT JOIN (SELECT product, SUM(quantity) AS ordered FROM order_lines WHERE order_id > ? GROUP BY product) l ON l.product = i.product
		WHERE i.sold <> COALESCE(l.ordered, 0)`},
}

// Audit reads the tables when the run is over.
func (s Shop) Audit(ctx context.Context, server mariadb.Server, run string) (Audit, error) {
	var a Audit
	if err := CheckRun(run); err != nil {
		return a, err
	}
	db, err := server.Open(1)
	if err != nil {
		return a, err
	}
	defer db.Close() //nolint:errcheck // it was only read
	if a.Orders, err = mariadb.Count(ctx, db, "SELECT COUNT(*) FROM orders WHERE run = ?", run); err != nil {
		return a, err
	}
	if a.Customers, err = mariadb.Count(ctx, db, "SELECT COUNT(*) FROM customers WHERE username LIKE ?", "n-"+run+"-%"); err != nil {
		return a, err
	}
	a.Wrong, err = mariadb.Check(ctx, db, rules, s.PastOrders())
	return a, err
}
