package shop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Manner is how customers behave.
type Manner struct {
	// NewCustomers is the part of the visits that begin with somebody new: 0.1.
	NewCustomers *float64 `json:"newCustomers,omitempty"`
	// Searches is how often a visit browses: 3.
	Searches int `json:"searches,omitzero"`
	// Lines is how many titles an order has on the average: 5.
	Lines int `json:"lines,omitzero"`
}

// Settle fills in what was not said and refuses what cannot be.
func (m *Manner) Settle() error {
	if m.NewCustomers == nil {
		m.NewCustomers = new(0.1)
	}
	if m.Searches == 0 {
		m.Searches = 3
	}
	if m.Lines == 0 {
		m.Lines = 5
	}
	switch {
	case !(*m.NewCustomers >= 0 && *m.NewCustomers <= 1):
		return fault.New(fault.Invalid, fault.Config, "newCustomers is %v: it is a part from 0 to 1", *m.NewCustomers)
	case m.Searches < 0 || m.Searches > 100:
		return fault.New(fault.Invalid, fault.Config, "searches is %d: 1 to 100 are possible", m.Searches)
	case m.Lines < 0 || m.Lines > 40:
		return fault.New(fault.Invalid, fault.Config, "lines is %d: 1 to 40 are possible", m.Lines)
	}
	return nil
}

// CheckRun refuses a run's name that could not be kept with its orders.
func CheckRun(run string) error {
	if run == "" || len(run) > 16 || strings.Trim(run, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return fault.New(fault.Invalid, fault.Config, "run is %q: it is 1 to 16 of a-z and 0-9, and another for each run", run)
	}
	return nil
}

// The operations that a visit notes.
const (
	OpLogin    = "login"
	OpNew      = "new-customer"
	OpBrowse   = "browse"
	OpPurchase = "purchase"
	// OpSoldOut is a purchase that the stock check turned down, rightly.
	OpSoldOut = "sold-out"
)

// Visitor is one customer after the other, at one keyboard.
type Visitor struct {
	Shop   Shop
	Manner Manner
	Run    string // its orders are known by it
	Number int    // among the visitors of the run
	Draw   *rand.Rand
	// Fetch asks for a page, by its file's name and the rest of the address. A form makes it a POST.
	Fetch func(ctx context.Context, page string, form url.Values) (status int, answer []byte, err error)
	// Note is told of every page.
	Note func(op string, started time.Time, bytes int, err error)

	newcomers int
}

// Visit is one cycle: log in or become a customer, browse, buy. It ends at the
// first page that is not as it must be. ordered says whether an order was placed:
// it is not when the stock check turned it down.
func (v *Visitor) Visit(ctx context.Context) (ordered bool, err error) {
	var customer int
	if v.Draw.Float64() < *v.Manner.NewCustomers {
		customer, err = v.register(ctx)
	} else {
		customer, err = v.login(ctx)
	}
	if err != nil {
		return false, err
	}
	var seen []int
	for range v.Manner.Searches {
		found, err := v.browse(ctx)
		if err != nil {
			return false, err
		}
		seen = append(seen, found...)
	}
	return v.purchase(ctx, customer, v.choose(seen))
}

// page fetches one and sees that it is whole, and what is said in read.
func (v *Visitor) page(ctx context.Context, op, name string, form url.Values, read func(page) error) error {
	started := time.Now()
	status, answer, err := v.Fetch(ctx, name, form)
	if err == nil {
		err = whole(name, status, answer)
	}
	if err == nil {
		err = read(page(answer))
	}
	v.Note(op, started, len(answer), err)
	return err
}

func (v *Visitor) login(ctx context.Context) (int, error) {
	number := 1 + v.Draw.IntN(v.Shop.Customers())
	c := v.Shop.Customer(number)
	err := v.page(ctx, OpLogin, "login.php", url.Values{"username": {c.Username}, "password": {c.Password}}, func(p page) error {
		if err := p.titled("Welcome, " + c.First + " " + c.Last); err != nil {
			return err
		}
		return p.says("customer", strconv.Itoa(number))
	})
	return number, err
}

func (v *Visitor) register(ctx context.Context) (number int, err error) {
	c := newCustomer(v.Draw)
	v.newcomers++
	form := url.Values{
		"username": {fmt.Sprintf("n-%s-%d-%d", v.Run, v.Number, v.newcomers)}, "password": {c.Password}, "first_name": {c.First}, "last_name": {c.Last},
		"street": {c.Street}, "city": {c.City}, "email": {c.Email}, "card": {c.Card}, "age": {strconv.Itoa(c.Age)}, "income": {strconv.Itoa(c.Income)},
	}
	err = v.page(ctx, OpNew, "new.php", form, func(p page) error {
		if err := p.titled("Welcome, " + c.First + " " + c.Last); err != nil {
			return err
		}
		if number, err = p.number("customer"); err == nil && number <= v.Shop.Customers() {
			err = fmt.Errorf("new.php: a new customer has the number %d of an old one", number)
		}
		return err
	})
	return number, err
}

func (v *Visitor) browse(ctx context.Context) (found []int, err error) {
	by, want := "category", strconv.Itoa(1+v.Draw.IntN(categories))
	if kind := v.Draw.IntN(3); kind > 0 {
		by, want = []string{"title", "actor"}[kind-1], v.Shop.Word(v.Draw.IntN(words))
	}
	err = v.page(ctx, OpBrowse, "browse.php?by="+by+"&for="+want, nil, func(p page) error {
		if err := p.titled("By " + by + ": " + want); err != nil {
			return err
		}
		found, err = p.products(v.Shop, by, want)
		return err
	})
	return found, err
}

// choose takes from what was seen first, and then from anywhere.
func (v *Visitor) choose(seen []int) []Line {
	var lines []Line
	v.Draw.Shuffle(len(seen), func(i, j int) { seen[i], seen[j] = seen[j], seen[i] })
	for range 1 + v.Draw.IntN(2*v.Manner.Lines-1) {
		product := 1 + v.Draw.IntN(v.Shop.Products())
		if len(seen) > 0 {
			product, seen = seen[0], seen[1:]
		}
		if !slices.ContainsFunc(lines, func(l Line) bool { return l.Product == product }) {
			lines = append(lines, Line{product, 1 + v.Draw.IntN(3)})
		}
	}
	return lines
}

func (v *Visitor) purchase(ctx context.Context, customer int, lines []Line) (ordered bool, err error) {
	var text []string
	for _, l := range lines {
		text = append(text, fmt.Sprintf("%d:%d", l.Product, l.Quantity))
	}
	form := url.Values{"customer": {strconv.Itoa(customer)}, "run": {v.Run}, "lines": {strings.Join(text, ",")}}
	started := time.Now()
	status, answer, err := v.Fetch(ctx, "purchase.php", form)
	if err == nil {
		err = whole("purchase.php", status, answer)
	}
	if err == nil && page(answer).titled("Sold out") == nil {
		v.Note(OpSoldOut, started, len(answer), nil)
		return false, nil
	}
	if err == nil {
		err = page(answer).receipt(v.Shop, lines)
	}
	v.Note(OpPurchase, started, len(answer), err)
	return err == nil, err
}
