package oltp

import (
	"context"
	"strconv"

	"github.com/lodge-kvm/lodge/lab/mariadb"
)

// Audit is what the tables themselves say of all that was done since they were
// filled: the other side of what the terminals counted.
type Audit struct {
	NewOrders int64
	Payments  int64
	Commits   int64 // by anybody, since the server began
	Wrong     []mariadb.Broken
}

// rules are the sums that must hold however many transactions ran at once: each
// counts what breaks it. "?" is the number of a district's last first order.
var rules = []mariadb.Rule{
	{What: "warehouses whose takings are not their districts'", Query: `SELECT COUNT(*) FROM warehouses w JOIN (SELECT warehouse, SUM(year) AS year FROM districts GROUP BY warehouse) d ON d.warehouse = w.id WHERE d.year <> w.year`},
	{What: "districts whose takings are not what was paid there", Query: `SELECT COUNT(*) FROM districts d LEFT JOIN (SELECT warehouse, district, SUM(amount) AS amount FROM payments GROUP BY warehouse, district) p
		ON p.warehouse = d.warehouse AND p.district = d.id WHERE d.year <> ` + strconv.Itoa(firstYear) + ` + COALESCE(p.amount, 0)`},
	{What: "districts that lost or made up an order", Query: `SELECT COUNT(*) FROM districts d JOIN (SELECT warehouse, district, COUNT(*) AS n, MAX(id) AS last FROM orders GROUP BY warehouse, district) o
		ON o.warehouse = d.warehouse AND o.district = d.id WHERE o.n <> d.next_order - 1 OR o.last <> d.next_order - 1`},
	{What: "orders that wait though they are delivered, or do not though they are not", Query: `SELECT COUNT(*) FROM orders o LEFT JOIN waiting w ON w.warehouse = o.warehouse AND w.district = o.district AND w.order_id = o.id
		WHERE (w.order_id IS NULL) <> (o.carrier IS NOT NULL)`},
	{What: "orders that lack a line or have one too many", Query: `SELECT COUNT(*) FROM orders o LEFT JOIN (SELECT warehouse, district, order_id, COUNT(*) AS n FROM order_lines GROUP BY warehouse, district, order_id) l
		ON l.warehouse = o.warehouse AND l.district = o.district AND l.order_id = o.id WHERE o.line_count <> COALESCE(l.n, 0)`},
	{What: "customers who paid what no payment says", Query: `SELECT COUNT(*) FROM customers c LEFT JOIN (SELECT customer_warehouse AS w, customer_district AS d, customer, SUM(amount) AS amount, COUNT(*) AS n FROM payments GROUP BY w, d, customer) p
		ON p.w = c.warehouse AND p.d = c.district AND p.customer = c.id WHERE c.paid <> COALESCE(p.amount, 0) OR c.payments <> COALESCE(p.n, 0)`},
	{What: "customers whose balance is not what they got less what they paid", Query: `SELECT COUNT(*) FROM customers c LEFT JOIN (SELECT o.warehouse, o.district, o.customer, SUM(l.amount) AS amount FROM orders o
		JOIN order_lines l ON l.warehouse = o.warehouse AND l.district = o.district AND l.order_id = o.id WHERE l.delivered IS NOT NULL GROUP BY o.warehouse, o.district, o.customer) g
		ON g.warehouse = c.warehouse AND g.district = c.district AND g.customer = c.id WHERE c.balance <> COALESCE(g.amount, 0) - c.paid`},
	{What: "stocks of which other numbers are sold than ordered", Query: `SELECT COUNT(*) FROM stocks s LEFT JOIN (SELECT supplier, item, SUM(quantity) AS n FROM order_lines WHERE order_id > ? GROUP BY supplier, item) l
		ON l.supplier = s.warehouse AND l.item = s.item WHERE s.sold <> COALESCE(l.n, 0)`},
}

// Audit reads the tables when the run is over.
func (s Size) Audit(ctx context.Context, server mariadb.Server) (Audit, error) {
	var a Audit
	if err := s.Settle(); err != nil {
		return a, err
	}
	db, err := server.Open(1)
	if err != nil {
		return a, err
	}
	defer db.Close() //nolint:errcheck // it was only read
	for into, query := range map[*int64]string{
		&a.NewOrders: "SELECT COALESCE(SUM(next_order - 1 - " + strconv.Itoa(s.Customers) + "), 0) FROM districts",
		&a.Payments:  "SELECT COUNT(*) FROM payments",
		&a.Commits:   "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'COM_COMMIT'",
	} {
		if *into, err = mariadb.Count(ctx, db, query); err != nil {
			return a, err
		}
	}
	a.Wrong, err = mariadb.Check(ctx, db, rules, s.Customers)
	return a, err
}
