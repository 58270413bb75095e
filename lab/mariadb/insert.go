package mariadb

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// statementSize is where a statement is long enough, in bytes: well below what a
// server accepts, and long enough that the round trip does not matter.
const statementSize = 256 << 10

// Insert writes many rows into one table, many with each statement. Its memory is
// that of one statement.
type Insert struct {
	db      *sql.DB
	head    string
	columns int
	text    strings.Builder
	rows    int64 // in text
	wrote   func(rows int64)
}

// Into begins writing rows of these columns. wrote, if it is not nil, is told of
// the rows that the server has taken.
func Into(db *sql.DB, table string, wrote func(rows int64), columns ...string) *Insert {
	if wrote == nil {
		wrote = func(int64) {}
	}
	return &Insert{db: db, head: "INSERT INTO " + table + " (" + strings.Join(columns, ",") + ") VALUES ", columns: len(columns), wrote: wrote}
}

// Row adds one. Values are integers, text, or nil.
func (i *Insert) Row(ctx context.Context, values ...any) error {
	if len(values) != i.columns {
		return fault.New(fault.Internal, fault.Host, "%d values for %d columns: %s", len(values), i.columns, i.head)
	}
	if i.rows == 0 {
		i.text.WriteString(i.head)
	} else {
		i.text.WriteByte(',')
	}
	i.rows++
	for n, value := range values {
		i.text.WriteByte("(,"[min(n, 1)])
		if err := i.value(value); err != nil {
			return err
		}
	}
	i.text.WriteByte(')')
	if i.text.Len() < statementSize {
		return nil
	}
	return i.Flush(ctx)
}

func (i *Insert) value(value any) error {
	switch v := value.(type) {
	case nil:
		i.text.WriteString("NULL")
	case int:
		i.text.WriteString(strconv.Itoa(v))
	case int64:
		i.text.WriteString(strconv.FormatInt(v, 10))
	case string:
		i.text.WriteString(quote(v))
	default:
		return fault.New(fault.Internal, fault.Host, "cannot write a value of type %T", value)
	}
	return nil
}

// quote makes a literal, whatever is in the text.
func quote(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\x00", `\0`, "\n", `\n`, "\r", `\r`, "\x1a", `\Z`).Replace(text) + "'"
}

// Flush sends what is left. It must be called after the last row.
func (i *Insert) Flush(ctx context.Context) error {
	if i.rows == 0 {
		return nil
	}
	if _, err := i.db.ExecContext(ctx, i.text.String()); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot write %d rows: %s", i.rows, fmt.Sprintf("%.60s…", i.head))
	}
	i.wrote(i.rows)
	i.rows = 0
	i.text.Reset()
	return nil
}

// Flush sends what is left of several.
func Flush(ctx context.Context, all ...*Insert) error {
	for _, i := range all {
		if err := i.Flush(ctx); err != nil {
			return err
		}
	}
	return nil
}
