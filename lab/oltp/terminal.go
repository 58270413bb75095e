package oltp

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/go-sql-driver/mysql"

	"github.com/lodge-kvm/lodge/lab/mariadb"
)

// The operations. Only NewOrder counts for the metric.
const (
	NewOrder    = "new-order"
	RolledBack  = "new-order-rolled-back" // asked for what the catalogue has not: one in a hundred
	Payment     = "payment"
	OrderStatus = "order-status"
	Delivery    = "delivery"
	StockLevel  = "stock-level"
)

// mix is how often each is drawn, of a hundred.
var mix = []struct {
	op   string
	part int
	do   func(*Terminal, context.Context, *sql.Tx) error
}{
	{NewOrder, 45, (*Terminal).newOrder},
	{Payment, 43, (*Terminal).payment},
	{OrderStatus, 4, (*Terminal).orderStatus},
	{Delivery, 4, (*Terminal).delivery},
	{StockLevel, 4, (*Terminal).stockLevel},
}

// tries is how often a transaction is begun anew that the server chose to undo
// because it and another waited for each other.
const tries = 10

// Terminal is one user at the order desk, with a connection of its own.
type Terminal struct {
	size Size
	home int // its warehouse
	draw *rand.Rand
	db   *sql.DB
}

// Open gives the terminal of this number. It connects when used.
func Open(server mariadb.Server, size Size, number int, draw *rand.Rand) (*Terminal, error) {
	if err := size.Settle(); err != nil {
		return nil, err
	}
	db, err := server.Open(1)
	if err != nil {
		return nil, err
	}
	return &Terminal{size: size, home: number%size.Warehouses + 1, draw: draw, db: db}, nil
}

// Close ends the connection.
func (t *Terminal) Close() { _ = t.db.Close() } // what was not committed is undone

// errNoItem undoes a new order, rightly.
var errNoItem = errors.New("the catalogue has no such item")

// Transact does one transaction of the mix, and says which. undone is how often
// the server had it begun anew because of a deadlock.
func (t *Terminal) Transact(ctx context.Context) (op string, undone int, err error) {
	at := t.draw.IntN(100)
	for _, m := range mix {
		if at -= m.part; at >= 0 {
			continue
		}
		for {
			err = t.once(ctx, m.do)
			if undone+1 >= tries || !again(err) {
				break
			}
			undone++
		}
		switch {
		case errors.Is(err, errNoItem):
			return RolledBack, undone, nil
		case err != nil:
			err = fmt.Errorf("%s: %w", m.op, err)
		}
		return m.op, undone, err
	}
	panic("the parts of the mix do not add up to a hundred")
}

func (t *Terminal) once(ctx context.Context, do func(*Terminal, context.Context, *sql.Tx) error) error {
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(t, ctx, tx); err != nil {
		_ = tx.Rollback() // the connection is dropped if it fails
		return err
	}
	return tx.Commit()
}

// again reports whether the server undid a transaction only because of another.
func again(err error) bool {
	const recordChanged, lockWait, deadlock = 1020, 1205, 1213
	var said *mysql.MySQLError
	return errors.As(err, &said) && (said.Number == deadlock || said.Number == lockWait || said.Number == recordChanged)
}

// district draws one of the home warehouse.
func (t *Terminal) district() int { return 1 + t.draw.IntN(districts) }

// elsewhere draws another warehouse in one of so many cases, if there is another.
func (t *Terminal) elsewhere(oneOf int) int {
	if t.size.Warehouses == 1 || t.draw.IntN(oneOf) != 0 {
		return t.home
	}
	return (t.home+t.draw.IntN(t.size.Warehouses-1))%t.size.Warehouses + 1
}

// change runs a statement that must change one row.
func change(ctx context.Context, tx *sql.Tx, query string, args ...any) error {
	result, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return err
	}
	rows, err := result.RowsAffected()
	if err == nil && rows != 1 {
		err = fmt.Errorf("%d rows were changed instead of one", rows)
	}
	return err
}
