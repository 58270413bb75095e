package shop

import (
	"context"
	"database/sql"
	_ "embed" // the tables
	"fmt"
	"time"

	"github.com/lodge-kvm/lodge/lab/mariadb"
)

//go:embed schema.sql
var schema string

// beginning is when the past year begins: a fixed day, because the same shop is the same
// bytes whenever it is made.
var beginning = time.Date(2025, 1, 1, 12, 0, 0, 0, time.UTC)

// Fill makes the shop's database anew, whatever was in it. wrote is told of rows as
// the server takes them; Rows says of how many. Memory does not grow with the
// shop.
func (s Shop) Fill(ctx context.Context, server mariadb.Server, wrote func(rows int64)) error {
	if err := s.Check(); err != nil {
		return err
	}
	db, err := server.Begin(ctx, schema)
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // all was flushed
	for _, fill := range []func(context.Context, *sql.DB, func(int64)) error{s.fillProducts, s.fillCustomers, s.fillOrders} {
		if err := fill(ctx, db, wrote); err != nil {
			return err
		}
	}
	return nil
}

// Rows is about how many Fill writes: orders have as many lines as chance gives
// them.
func (s Shop) Rows() int64 {
	return int64(categories + 2*s.Products() + s.Customers() + s.PastOrders()*(1+2*linesPerOrder))
}

func (s Shop) fillProducts(ctx context.Context, db *sql.DB, wrote func(int64)) error {
	names := mariadb.Into(db, "categories", wrote, "id", "name")
	for n := range categories {
		if err := names.Row(ctx, n+1, fmt.Sprintf("%s %d", s.Word(n), n+1)); err != nil {
			return err
		}
	}
	products := mariadb.Into(db, "products", wrote, "id", "category", "title", "actor", "cents", "companion")
	inventory := mariadb.Into(db, "inventory", wrote, "product", "stock", "sold")
	for n := 1; n <= s.Products(); n++ {
		p := s.Product(n)
		if err := products.Row(ctx, n, p.Category, p.Title, p.Actor, p.Cents, p.Companion); err != nil {
			return err
		}
		if err := inventory.Row(ctx, n, stock, 0); err != nil {
			return err
		}
	}
	return mariadb.Flush(ctx, names, products, inventory)
}

func (s Shop) fillCustomers(ctx context.Context, db *sql.DB, wrote func(int64)) error {
	customers := mariadb.Into(db, "customers", wrote, "id", "username", "password", "first_name", "last_name", "street", "city", "email", "card", "age", "income")
	for n := 1; n <= s.Customers(); n++ {
		c := s.Customer(n)
		if err := customers.Row(ctx, n, c.Username, hashed(c.Password), c.First, c.Last, c.Street, c.City, c.Email, c.Card, c.Age, c.Income); err != nil {
			return err
		}
	}
	return customers.Flush(ctx)
}

func (s Shop) fillOrders(ctx context.Context, db *sql.DB, wrote func(int64)) error {
	orders := mariadb.Into(db, "orders", wrote, "id", "customer", "placed", "net", "tax")
	lines := mariadb.Into(db, "order_lines", wrote, "order_id", "line", "product", "quantity", "cents")
	history := mariadb.Into(db, "history", wrote, "customer", "order_id", "line", "product")
	for n := 1; n <= s.PastOrders(); n++ {
		o := s.PastOrder(n)
		net := 0
		for i, l := range o.Lines {
			cents := s.Product(l.Product).Cents
			net += l.Quantity * cents
			if err := lines.Row(ctx, n, i+1, l.Product, l.Quantity, cents); err != nil {
				return err
			}
			if err := history.Row(ctx, o.Customer, n, i+1, l.Product); err != nil {
				return err
			}
		}
		placed := beginning.AddDate(0, 0, o.Day).Format(time.DateTime)
		if err := orders.Row(ctx, n, o.Customer, placed, net, tax(net)); err != nil {
			return err
		}
	}
	return mariadb.Flush(ctx, orders, lines, history)
}
