package mariadb

import (
	"context"
	"database/sql"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Rule is something that tables must not say, whatever ran at once: a query that
// counts the rows that break it.
type Rule struct{ What, Query string }

// Broken is a rule that rows break.
type Broken struct {
	What string
	Rows int64
}

// Check asks for all the rules, with value for each "?" in them.
func Check(ctx context.Context, db *sql.DB, rules []Rule, value any) ([]Broken, error) {
	var broken []Broken
	for _, rule := range rules {
		rows, err := Count(ctx, db, rule.Query, slices.Repeat([]any{value}, strings.Count(rule.Query, "?"))...)
		if err != nil {
			return nil, err
		}
		if rows > 0 {
			broken = append(broken, Broken{rule.What, rows})
		}
	}
	return broken, nil
}

// Count is the answer to a query that gives one number.
func Count(ctx context.Context, db *sql.DB, query string, args ...any) (n int64, err error) {
	err = db.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, fault.Wrap(err, fault.Failed, fault.Host, "cannot count by %.60q", query)
}
