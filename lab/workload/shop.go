package workload

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/url"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/lab/mariadb"
	"github.com/lodge-kvm/lodge/lab/shop"
)

// Shop is the configuration of a load of customers on the DVD shop. Its operations
// are the pages by their names, and OpCycle: a whole visit whose pages were all
// right and that ended in an order. Cycles a minute are the shop's metric.
type Shop struct {
	Pace
	// Address is where the web server listens: host:port, or unix:/path.
	Address string `json:"address"`
	// Path is below which the pages are: "/shop/".
	Path string `json:"path,omitempty"`
	// VCPUs makes as many users as the papers put on so many processors, who think
	// as long as theirs, where Users and Think say nothing else.
	VCPUs  int         `json:"vcpus,omitzero"`
	Shop   shop.Shop   `json:"shop"`
	Manner shop.Manner `json:"manner,omitzero"`
	// Run is kept with every order: up to 16 of a-z and 0-9, another for each run.
	Run string `json:"run"`
}

// OpCycle is a whole visit to the shop that ended in an order.
const OpCycle = "cycle"

// As in the papers.
const (
	usersPerVCPU = 35
	thinkTime    = Duration(250 * time.Millisecond)
)

func newShop(config json.RawMessage) (Load, error) {
	var s Shop
	if err := parse(config, &s); err != nil {
		return nil, err
	}
	if s.VCPUs < 0 || s.VCPUs > maxUsers/usersPerVCPU {
		return nil, invalid("vcpus is %d: 1 to %d are possible", s.VCPUs, maxUsers/usersPerVCPU)
	}
	if s.VCPUs > 0 {
		orElse(&s.Users, usersPerVCPU*s.VCPUs)
		if s.Mode != open {
			orElse(&s.Think, thinkTime)
		}
	}
	orElse(&s.Path, "/shop/")
	for _, check := range []func() error{s.settle, s.Shop.Check, s.Manner.Settle, func() error { return shop.CheckRun(s.Run) }, func() error { return checkAddress(s.Address) }} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	if !strings.HasPrefix(s.Path, "/") || !strings.HasSuffix(s.Path, "/") || strings.ContainsAny(s.Path, "\r\n ") {
		return nil, invalid("path is %q: it begins and ends with / and has no line end or blank", s.Path)
	}
	return &paced{s.Pace, func(number int, draw *rand.Rand) worker {
		c := newClient(s.Address, s.Address)
		return &customer{client: c, visitor: shop.Visitor{
			Shop: s.Shop, Manner: s.Manner, Run: s.Run, Number: number, Draw: draw,
			Fetch: func(ctx context.Context, page string, form url.Values) (int, []byte, error) {
				if form == nil {
					return c.get(ctx, "GET", s.Path+page, "", nil)
				}
				return c.get(ctx, "POST", s.Path+page, "application/x-www-form-urlencoded", []byte(form.Encode()))
			},
		}}
	}}, nil
}

// customer is one user of the shop.
type customer struct {
	client  *client
	visitor shop.Visitor
}

func (c *customer) close() { c.client.close() }

func (c *customer) do(ctx context.Context, intended time.Time, m *meter) error {
	started, meant := time.Now(), intended
	c.visitor.Note = func(op string, started time.Time, bytes int, err error) {
		if meant.IsZero() {
			meant = started // only the first page had an arrival to wait for
		}
		m.note(op, meant, started, int64(bytes), err)
		meant = time.Time{}
	}
	ordered, err := c.visitor.Visit(ctx)
	if err != nil {
		m.failed(OpCycle, intended, err)
	} else if ordered {
		m.done(OpCycle, intended, started, 0)
	}
	return err
}

// ShopPrepare is the configuration of the errand that fills the shop's database,
// whatever was in it.
type ShopPrepare struct {
	Database mariadb.Server `json:"database"`
	Shop     shop.Shop      `json:"shop"`
	Within   Duration       `json:"within,omitzero"` // 24h
}

// OpRows are rows that a database has taken.
const OpRows = "rows"

func newShopPrepare(config json.RawMessage) (Load, error) {
	var p ShopPrepare
	if err := parse(config, &p); err != nil {
		return nil, err
	}
	if err := p.Database.Check(); err != nil {
		return nil, err
	}
	if err := p.Shop.Check(); err != nil {
		return nil, err
	}
	return newErrand(p.Within, func(ctx context.Context, m *meter) error {
		return p.Shop.Fill(ctx, p.Database, func(rows int64) { m.untimed(OpRows, rows) })
	})
}

// ShopCheck is the configuration of the errand that reads from the shop's tables
// what a run did. Done of the operations shop.OpPurchase and shop.OpNew is what the tables have
// of the run; errors of OpWrong are rows that break the shop's own rules.
type ShopCheck struct {
	Database mariadb.Server `json:"database"`
	Shop     shop.Shop      `json:"shop"`
	Run      string         `json:"run"`
	Within   Duration       `json:"within,omitzero"` // 24h
}

// OpWrong has as errors the rows of tables that cannot be, by the sums that must
// hold. Done are the looks taken: one.
const OpWrong = "wrong"

func newShopCheck(config json.RawMessage) (Load, error) {
	var c ShopCheck
	if err := parse(config, &c); err != nil {
		return nil, err
	}
	for _, check := range []func() error{c.Database.Check, c.Shop.Check, func() error { return shop.CheckRun(c.Run) }} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return newErrand(c.Within, func(ctx context.Context, m *meter) error {
		audit, err := c.Shop.Audit(ctx, c.Database, c.Run)
		if err != nil {
			return err
		}
		m.untimed(shop.OpPurchase, audit.Orders)
		m.untimed(shop.OpNew, audit.Customers)
		m.untimed(OpWrong, 1)
		for _, w := range audit.Wrong {
			m.wrong(OpWrong, w.Rows, w.What)
		}
		return nil
	})
}
