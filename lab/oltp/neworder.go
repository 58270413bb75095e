package oltp

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
)

// wanted is one line of a new order.
type wanted struct{ item, supplier, quantity int }

// newOrder takes an order in: the road of the metric.
func (t *Terminal) newOrder(ctx context.Context, tx *sql.Tx) error {
	district, customer := t.district(), uneven(t.draw, t.size.Customers)
	lines := t.wants()
	var tax, districtTax, discount, number int
	err := tx.QueryRowContext(ctx, "SELECT w.tax, c.discount FROM warehouses w JOIN customers c ON c.warehouse = w.id WHERE w.id = ? AND c.district = ? AND c.id = ?", t.home, district, customer).Scan(&tax, &discount)
	if err != nil {
		return err
	}
	err = tx.QueryRowContext(ctx, "SELECT tax, next_order FROM districts WHERE warehouse = ? AND id = ? FOR UPDATE", t.home, district).Scan(&districtTax, &number)
	if err != nil {
		return err
	}
	if err := change(ctx, tx, "UPDATE districts SET next_order = next_order + 1 WHERE warehouse = ? AND id = ?", t.home, district); err != nil {
		return err
	}
	if err := change(ctx, tx, "INSERT INTO orders VALUES (?, ?, ?, ?, UTC_TIMESTAMP(), NULL, ?)", t.home, district, number, customer, len(lines)); err != nil {
		return err
	}
	if err := change(ctx, tx, "INSERT INTO waiting VALUES (?, ?, ?)", t.home, district, number); err != nil {
		return err
	}
	for i, w := range lines {
		if err := t.line(ctx, tx, district, number, i+1, w); err != nil {
			return err
		}
	}
	return nil
}

// wants draws the lines, each of another item, in the order in which all
// terminals take stock, so that they seldom wait for each other.
func (t *Terminal) wants() []wanted {
	count := minLines + t.draw.IntN(maxLines-minLines+1)
	var lines []wanted
	for len(lines) < count {
		w := wanted{uneven(t.draw, t.size.Items), t.elsewhere(100), 1 + t.draw.IntN(10)}
		if !slices.ContainsFunc(lines, func(l wanted) bool { return l.item == w.item }) {
			lines = append(lines, w)
		}
	}
	slices.SortFunc(lines, func(a, b wanted) int {
		return cmp.Or(cmp.Compare(a.supplier, b.supplier), cmp.Compare(a.item, b.item))
	})
	if t.draw.IntN(100) == 0 {
		lines[len(lines)-1].item = t.size.Items + 1
	}
	return lines
}

func (t *Terminal) line(ctx context.Context, tx *sql.Tx, district, number, n int, w wanted) error {
	var price, left int
	var info string
	err := tx.QueryRowContext(ctx, "SELECT price FROM items WHERE id = ?", w.item).Scan(&price)
	if errors.Is(err, sql.ErrNoRows) {
		return errNoItem
	}
	if err != nil {
		return err
	}
	err = tx.QueryRowContext(ctx, "SELECT quantity, info FROM stocks WHERE warehouse = ? AND item = ? FOR UPDATE", w.supplier, w.item).Scan(&left, &info)
	if err != nil {
		return err
	}
	if left -= w.quantity; left < 10 {
		left += 91 // more has come in
	}
	err = change(ctx, tx, "UPDATE stocks SET quantity = ?, sold = sold + ?, orders = orders + 1 WHERE warehouse = ? AND item = ?", left, w.quantity, w.supplier, w.item)
	if err != nil {
		return err
	}
	return change(ctx, tx, "INSERT INTO order_lines VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?, ?)", t.home, district, number, n, w.item, w.supplier, w.quantity, w.quantity*price, info)
}
