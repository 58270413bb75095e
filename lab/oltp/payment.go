package oltp

import (
	"context"
	"database/sql"
	"errors"
)

// payment takes money from a customer, who may belong to another warehouse.
func (t *Terminal) payment(ctx context.Context, tx *sql.Tx) error {
	district, amount := t.district(), 100+t.draw.IntN(499_901)
	warehouse, theirs := t.elsewhere(7), district
	if warehouse != t.home {
		theirs = t.district()
	}
	if err := change(ctx, tx, "UPDATE warehouses SET year = year + ? WHERE id = ?", amount, t.home); err != nil {
		return err
	}
	if err := change(ctx, tx, "UPDATE districts SET year = year + ? WHERE warehouse = ? AND id = ?", amount, t.home, district); err != nil {
		return err
	}
	customer, err := t.customer(ctx, tx, warehouse, theirs)
	if err != nil {
		return err
	}
	err = change(ctx, tx, "UPDATE customers SET balance = balance - ?, paid = paid + ?, payments = payments + 1 WHERE warehouse = ? AND district = ? AND id = ?", amount, amount, warehouse, theirs, customer)
	if err != nil {
		return err
	}
	return change(ctx, tx, "INSERT INTO payments (warehouse, district, customer_warehouse, customer_district, customer, paid_at, amount) VALUES (?, ?, ?, ?, ?, UTC_TIMESTAMP(), ?)",
		t.home, district, warehouse, theirs, customer, amount)
}

// customer finds somebody: six in ten by last name, and then the one in the
// middle of those who have it.
func (t *Terminal) customer(ctx context.Context, tx *sql.Tx, warehouse, district int) (int, error) {
	number := uneven(t.draw, t.size.Customers)
	if t.draw.IntN(10) < 4 {
		return number, nil
	}
	rows, err := tx.QueryContext(ctx, "SELECT id FROM customers WHERE warehouse = ? AND district = ? AND last_name = ? ORDER BY first_name", warehouse, district, lastName(number-1))
	if err != nil {
		return 0, err
	}
	defer rows.Close() //nolint:errcheck // Err tells
	var all []int
	for rows.Next() {
		var id int
		if err := rows.Scan(&id); err != nil {
			return 0, err
		}
		all = append(all, id)
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	if len(all) == 0 {
		return 0, errors.New("nobody has the name of a customer")
	}
	return all[len(all)/2], nil
}

// orderStatus looks up somebody's last order.
func (t *Terminal) orderStatus(ctx context.Context, tx *sql.Tx) error {
	district := t.district()
	customer, err := t.customer(ctx, tx, t.home, district)
	if err != nil {
		return err
	}
	var number, want, got int
	err = tx.QueryRowContext(ctx, "SELECT id, line_count FROM orders WHERE warehouse = ? AND district = ? AND customer = ? ORDER BY id DESC LIMIT 1", t.home, district, customer).Scan(&number, &want)
	if err != nil {
		return err
	}
	err = tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM order_lines WHERE warehouse = ? AND district = ? AND order_id = ?", t.home, district, number).Scan(&got)
	if err == nil && got != want {
		err = errors.New("an order has not the lines that it says")
	}
	return err
}

// stockLevel counts what of the last twenty orders runs short.
func (t *Terminal) stockLevel(ctx context.Context, tx *sql.Tx) error {
	district := t.district()
	var next, short int
	if err := tx.QueryRowContext(ctx, "SELECT next_order FROM districts WHERE warehouse = ? AND id = ?", t.home, district).Scan(&next); err != nil {
		return err
	}
	return tx.QueryRowContext(ctx, `SELECT COUNT(DISTINCT s.item) FROM order_lines l JOIN stocks s ON s.warehouse = l.warehouse AND s.item = l.item
		WHERE l.warehouse = ? AND l.district = ? AND l.order_id >= ? AND l.order_id < ? AND s.quantity < ?`,
		t.home, district, next-20, next, 10+t.draw.IntN(11)).Scan(&short)
}
