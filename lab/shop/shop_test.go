package shop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/mariadb"
)

func TestSizesAreAsProportioned(t *testing.T) {
	for megabytes, want := range map[int][2]int{10: {20_000, 10_000}, 1000: {2_000_000, 100_000}, 100_000: {200_000_000, 1_000_000}} {
		s := Shop{Megabytes: megabytes}
		customers, products := s.Customers(), s.Products()
		if customers != want[0] || products < want[1]*98/100 || products > want[1]*102/100 {
			t.Errorf("%d MB: %d customers, %d products instead of %v", megabytes, customers, products, want)
		}
	}
	for _, megabytes := range []int{0, -1, maxMegabytes + 1} {
		if err := (Shop{Megabytes: megabytes}).Check(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%d MB: %v", megabytes, err)
		}
	}
}

// Page sharing would flatter a host whose guests hold the same data.
// Promise: L5
func TestNoTwoSeedsShareARow(t *testing.T) {
	seen := map[string]uint64{}
	for seed := range uint64(4) {
		s := Shop{Megabytes: 1, Seed: seed}
		for n := 1; n <= 500; n++ {
			c, p := s.Customer(n), s.Product(n)
			if again := s; c != again.Customer(n) || p != again.Product(n) || fmt.Sprint(s.PastOrder(n)) != fmt.Sprint(again.PastOrder(n)) {
				t.Fatal("the same seed gives other rows")
			}
			for _, row := range []string{hashed(c.Password) + c.First + c.Last + c.Email + c.Card, p.Title + p.Actor} {
				if other, taken := seen[row]; taken && other != seed {
					t.Fatalf("seeds %d and %d share %q", other, seed, row)
				}
				seen[row] = seed
			}
		}
	}
}

func TestPagesSayWhereTheDatabaseIsWhateverItsName(t *testing.T) {
	text, err := Config(mariadb.Server{Address: "unix:/run/it's.sock", User: `o\'x`, Password: "'; exit; '", Database: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`'socket' => '/run/it\'s.sock'`, `'user' => 'o\\\'x'`, `'password' => '\'; exit; \''`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	if text, err = Config(mariadb.Server{Address: "10.0.0.2:3306", User: "lab", Database: "shop"}); err != nil || !strings.Contains(string(text), "'host' => '10.0.0.2', 'port' => (int) '3306', 'socket' => ''") {
		t.Errorf("%v: %s", err, text)
	}
}

// visit makes one visit to a shop whose pages are said by answer.
func visit(answer func(page string, form url.Values) (int, string)) (noted []string, ordered bool, err error) {
	none := 0.0
	v := Visitor{
		Shop: Shop{Megabytes: 1}, Manner: Manner{NewCustomers: &none, Searches: 1, Lines: 1}, Run: "x", Draw: rand.New(rand.NewPCG(1, 1)),
		Fetch: func(_ context.Context, page string, form url.Values) (int, []byte, error) {
			status, text := answer(page, form)
			return status, []byte(text), nil
		},
		Note: func(op string, _ time.Time, _ int, err error) {
			if err != nil {
				op += ": " + err.Error()
			}
			noted = append(noted, op)
		},
	}
	ordered, err = v.Visit(context.Background())
	return noted, ordered, err
}

const start, end = "<!DOCTYPE html>\n<html><body>", "</body></html>\n"

// honest answers as the pages do.
func honest(page string, form url.Values) (int, string) {
	s := Shop{Megabytes: 1}
	switch {
	case page == "login.php":
		var n int
		_, _ = fmt.Sscanf(form.Get("username"), "user%d", &n)
		c := s.Customer(n)
		return 200, fmt.Sprintf(`%s<h1>Welcome, %s %s</h1><b id="customer">%d</b>%s`, start, c.First, c.Last, n, end)
	case strings.HasPrefix(page, "browse.php"):
		u, err := url.Parse(page)
		if err != nil {
			return 500, ""
		}
		return 200, fmt.Sprintf(`%s<h1>By %s: %s</h1><b id="found">0</b>%s`, start, u.Query().Get("by"), u.Query().Get("for"), end)
	}
	var lines []Line
	for text := range strings.SplitSeq(form.Get("lines"), ",") {
		var l Line
		_, _ = fmt.Sscanf(text, "%d:%d", &l.Product, &l.Quantity)
		lines = append(lines, l)
	}
	return 200, fmt.Sprintf(`%s<h1>Thank you</h1><b id="order">5</b><b id="lines">%d</b><b id="total">%s</b>%s`, start, len(lines), money(s.Total(lines)), end)
}

// A visit counts only when every page is right: what a page says is known before.
// Promise: L3
func TestVisitsEndAtTheFirstPageThatIsWrong(t *testing.T) {
	noted, ordered, err := visit(honest)
	if err != nil || !ordered || fmt.Sprint(noted) != "[login browse purchase]" {
		t.Fatalf("%v, %v: %v", noted, ordered, err)
	}
	p := Shop{Megabytes: 1}.Product(1)
	for name, c := range map[string]struct {
		page   string
		change func(string) string
		want   string
	}{
		"a broken page":         {"login", func(text string) string { return strings.TrimSuffix(text, end) }, "login: login.php: the page is not whole"},
		"another customer":      {"login", func(text string) string { return strings.Replace(text, `customer">`, `customer">9`, 1) }, "for customer"},
		"fewer found than said": {"browse", func(text string) string { return strings.Replace(text, `found">0`, `found">3`, 1) }, "for found"},
		"another price": {"browse", func(text string) string {
			row := fmt.Sprintf(`<tr data-id="1"><td>%s</td><td>%s</td><td>c</td><td>%s</td></tr>`, p.Title, p.Actor, money(p.Cents+1))
			return strings.Replace(text, `found">0</b>`, `found">1</b>`+row, 1)
		}, "instead of"},
		"a title there is not": {"browse", func(text string) string {
			return strings.Replace(text, `found">0</b>`, `found">1</b><tr data-id="999999"><td>A</td><td>B</td><td>c</td><td>1.00</td></tr>`, 1)
		}, "has not"},
		"another total":      {"purchase", func(text string) string { return strings.Replace(text, `total">`, `total">1`, 1) }, "for total"},
		"another line count": {"purchase", func(text string) string { return strings.Replace(text, `lines">`, `lines">1`, 1) }, "for lines"},
	} {
		noted, ordered, err := visit(func(page string, form url.Values) (int, string) {
			status, text := honest(page, form)
			if strings.HasPrefix(page, c.page) {
				text = c.change(text)
			}
			return status, text
		})
		last := noted[len(noted)-1]
		if err == nil || ordered || !strings.HasPrefix(last, c.page+": ") || !strings.Contains(last, c.want) {
			t.Errorf("%s: %v, %v: %v", name, noted, ordered, err)
		}
	}
	noted, ordered, err = visit(func(page string, form url.Values) (int, string) {
		if page == "purchase.php" {
			return 200, start + "<h1>Sold out</h1>" + end
		}
		return honest(page, form)
	})
	if err != nil || ordered || noted[len(noted)-1] != OpSoldOut {
		t.Errorf("sold out: %v, %v: %v", noted, ordered, err)
	}
}
