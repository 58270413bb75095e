package oltp

import (
	"context"
	"database/sql"
	_ "embed" // the tables
	"math/rand/v2"

	"github.com/lodge-kvm/lodge/lab/mariadb"
)

//go:embed schema.sql
var schema string

// entered is when the first orders came: a fixed day, because the same size is the
// same bytes whenever it is filled.
const entered = "2025-01-01 12:00:00"

// Fill makes the database anew, whatever was in it. wrote is told of rows as the
// server takes them; Rows says of how many. Memory does not grow with the
// size.
func (s Size) Fill(ctx context.Context, server mariadb.Server, wrote func(rows int64)) error {
	if err := s.Settle(); err != nil {
		return err
	}
	db, err := server.Begin(ctx, schema)
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // all was flushed
	f := filling{Size: s, db: db, wrote: wrote}
	if err := f.items(ctx); err != nil {
		return err
	}
	for w := 1; w <= s.Warehouses; w++ {
		if err := f.warehouse(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// filling is the work of filling one database.
type filling struct {
	Size
	db    *sql.DB
	wrote func(rows int64)
}

func (f *filling) items(ctx context.Context) error {
	d := f.draw(0)
	items := mariadb.Into(f.db, "items", f.wrote, "id", "name", "price", "data")
	for n := 1; n <= f.Items; n++ {
		if err := items.Row(ctx, n, filler(d, 14+d.IntN(11)), 100+d.IntN(9901), filler(d, 26+d.IntN(25))); err != nil {
			return err
		}
	}
	return items.Flush(ctx)
}

func (f *filling) warehouse(ctx context.Context, w int) error {
	d := f.draw(w)
	warehouses := mariadb.Into(f.db, "warehouses", f.wrote, "id", "name", "tax", "year")
	if err := warehouses.Row(ctx, w, filler(d, 10), d.IntN(2001), districts*firstYear); err != nil {
		return err
	}
	stocks := mariadb.Into(f.db, "stocks", f.wrote, "warehouse", "item", "quantity", "sold", "orders", "info", "data")
	for n := 1; n <= f.Items; n++ {
		if err := stocks.Row(ctx, w, n, 10+d.IntN(91), 0, 0, filler(d, 24), filler(d, 26+d.IntN(25))); err != nil {
			return err
		}
	}
	if err := mariadb.Flush(ctx, warehouses, stocks); err != nil {
		return err
	}
	for n := 1; n <= districts; n++ {
		if err := f.district(ctx, d, w, n); err != nil {
			return err
		}
	}
	return nil
}

func (f *filling) district(ctx context.Context, d *rand.Rand, w, n int) error {
	one := mariadb.Into(f.db, "districts", f.wrote, "warehouse", "id", "name", "tax", "year", "next_order")
	if err := one.Row(ctx, w, n, filler(d, 10), d.IntN(2001), firstYear, f.Customers+1); err != nil {
		return err
	}
	customers := mariadb.Into(f.db, "customers", f.wrote, "warehouse", "district", "id", "last_name", "first_name", "discount", "balance", "paid", "payments", "deliveries", "data")
	for c := 1; c <= f.Customers; c++ {
		if err := customers.Row(ctx, w, n, c, lastName(c-1), filler(d, 8+d.IntN(9)), d.IntN(5001), 0, 0, 0, 0, filler(d, 300+d.IntN(201))); err != nil {
			return err
		}
	}
	if err := mariadb.Flush(ctx, one, customers); err != nil {
		return err
	}
	return f.orders(ctx, d, w, n)
}

// orders are the first ones: one of each customer, the last three tenths of them
// not delivered.
func (f *filling) orders(ctx context.Context, d *rand.Rand, w, n int) error {
	orders := mariadb.Into(f.db, "orders", f.wrote, "warehouse", "district", "id", "customer", "entered", "carrier", "line_count")
	waiting := mariadb.Into(f.db, "waiting", f.wrote, "warehouse", "district", "order_id")
	lines := mariadb.Into(f.db, "order_lines", f.wrote, "warehouse", "district", "order_id", "line", "item", "supplier", "delivered", "quantity", "amount", "info")
	for i, customer := range d.Perm(f.Customers) {
		var carrier, delivered any = 1 + d.IntN(10), entered
		if i >= f.Customers*7/10 {
			carrier, delivered = nil, nil
			if err := waiting.Row(ctx, w, n, i+1); err != nil {
				return err
			}
		}
		count := minLines + d.IntN(maxLines-minLines+1)
		if err := orders.Row(ctx, w, n, i+1, customer+1, entered, carrier, count); err != nil {
			return err
		}
		for line := range count {
			amount := 0
			if delivered == nil {
				amount = 1 + d.IntN(999_999)
			}
			if err := lines.Row(ctx, w, n, i+1, line+1, 1+d.IntN(f.Items), w, delivered, 5, amount, filler(d, 24)); err != nil {
				return err
			}
		}
	}
	return mariadb.Flush(ctx, orders, waiting, lines)
}
