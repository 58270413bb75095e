package oltp

import (
	"context"
	"database/sql"
	"errors"
)

// delivery sends off the oldest order of each district that waits.
func (t *Terminal) delivery(ctx context.Context, tx *sql.Tx) error {
	carrier := 1 + t.draw.IntN(10)
	for district := 1; district <= districts; district++ {
		if err := t.deliver(ctx, tx, district, carrier); err != nil {
			return err
		}
	}
	return nil
}

func (t *Terminal) deliver(ctx context.Context, tx *sql.Tx, district, carrier int) error {
	var number, customer int
	var amount int64
	err := tx.QueryRowContext(ctx, "SELECT order_id FROM waiting WHERE warehouse = ? AND district = ? ORDER BY order_id LIMIT 1 FOR UPDATE", t.home, district).Scan(&number)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // none waits
	}
	if err != nil {
		return err
	}
	if err := change(ctx, tx, "DELETE FROM waiting WHERE warehouse = ? AND district = ? AND order_id = ?", t.home, district, number); err != nil {
		return err
	}
	if err := change(ctx, tx, "UPDATE orders SET carrier = ? WHERE warehouse = ? AND district = ? AND id = ?", carrier, t.home, district, number); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, "SELECT customer FROM orders WHERE warehouse = ? AND district = ? AND id = ?", t.home, district, number).Scan(&customer); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE order_lines SET delivered = UTC_TIMESTAMP() WHERE warehouse = ? AND district = ? AND order_id = ?", t.home, district, number); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, "SELECT SUM(amount) FROM order_lines WHERE warehouse = ? AND district = ? AND order_id = ?", t.home, district, number).Scan(&amount); err != nil {
		return err
	}
	return change(ctx, tx, "UPDATE customers SET balance = balance + ?, deliveries = deliveries + 1 WHERE warehouse = ? AND district = ? AND id = ?", amount, t.home, district, customer)
}
