package shop

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Shop says which shop it is: how large, and whose.
type Shop struct {
	// Megabytes is about what its tables take: 1 to 102400.
	Megabytes int `json:"megabytes"`
	// Seed makes it differ from all others in every row.
	Seed uint64 `json:"seed,omitzero"`
}

// The bounds of a shop's size.
const (
	minMegabytes = 1
	maxMegabytes = 100 << 10
)

// Check refuses a size that there is not.
func (s Shop) Check() error {
	if s.Megabytes < minMegabytes || s.Megabytes > maxMegabytes {
		return fault.New(fault.Invalid, fault.Config, "megabytes is %d: a shop has %d to %d", s.Megabytes, minMegabytes, maxMegabytes)
	}
	return nil
}

// The shop's proportions: with ten times the customers it has three times the
// titles, as the shop of the papers has.
const (
	customersPerMegabyte = 2000
	firstProducts        = 3200 // of one megabyte
	categories           = 16
	linesPerOrder        = 5 // of the past orders
	words                = 1000
	stock                = 10_000 // of each title, at first
	taxPerMille          = 80
)

// Customers is how many there are at first; their numbers begin with 1.
func (s Shop) Customers() int { return customersPerMegabyte * s.Megabytes }

// Products is how many titles there are; their numbers begin with 1.
func (s Shop) Products() int { return int(firstProducts * math.Sqrt(float64(s.Megabytes))) }

// PastOrders is how many orders there are at first; their numbers begin with 1.
func (s Shop) PastOrders() int { return s.Customers() * 3 / 5 }

// Customer is who buys.
type Customer struct {
	Username, Password  string
	First, Last         string
	Street, City, Email string
	Card                string
	Age, Income         int
}

// Product is what is sold.
type Product struct {
	Title, Actor string
	Category     int // 1 to 16
	Cents        int
	Companion    int // another title that those who buy this one like
}

// Order is one of the past.
type Order struct {
	Customer, Day int // Day of the last year
	Lines         []Line
}

// Line is some of one title.
type Line struct{ Product, Quantity int }

// The streams of chance, one for each kind of thing.
const (
	ofCustomers = iota + 1
	ofProducts
	ofOrders
	ofWords
)

// draw gives the chance that one thing is made with. Seeds and numbers are mixed, so that
// neighbours have nothing in common.
func (s Shop) draw(kind, number int) *rand.Rand {
	return rand.New(rand.NewPCG(mix(s.Seed^mix(uint64(kind))), mix(uint64(number))))
}

// mix spreads the bits of a number over all 64 (the finish of MurmurHash3).
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x
}

// Customer works out one.
func (s Shop) Customer(number int) Customer {
	c := newCustomer(s.draw(ofCustomers, number))
	c.Username = fmt.Sprintf("user%d", number)
	return c
}

func newCustomer(d *rand.Rand) Customer {
	c := Customer{
		First: name(d, 2+d.IntN(2)), Last: name(d, 2+d.IntN(3)), City: name(d, 3), Password: word(d, 4),
		Age: 18 + d.IntN(70), Income: 20_000 + 1000*d.IntN(80),
	}
	c.Street = fmt.Sprintf("%d %s Street", 1+d.IntN(999), name(d, 3))
	c.Email = strings.ToLower(c.First) + "@" + word(d, 4) + ".example"
	c.Card = fmt.Sprintf("%016d", d.Int64N(1e16))
	return c
}

// Product works out one.
func (s Shop) Product(number int) Product {
	d := s.draw(ofProducts, number)
	return Product{
		Title:    s.Word(d.IntN(words)) + " " + strings.ToUpper(word(d, 2+d.IntN(3))),
		Actor:    s.Word(d.IntN(words)) + " " + strings.ToUpper(word(d, 2+d.IntN(3))),
		Category: 1 + d.IntN(categories), Cents: 999 + 100*d.IntN(20), Companion: 1 + d.IntN(s.Products()),
	}
}

// Word is one of those that titles and actors begin with, and are searched by: 0
// to 999.
func (s Shop) Word(number int) string {
	return strings.ToUpper(word(s.draw(ofWords, number), 3))
}

// PastOrder works out one.
func (s Shop) PastOrder(number int) Order {
	d := s.draw(ofOrders, number)
	o := Order{Customer: 1 + d.IntN(s.Customers()), Day: d.IntN(365)}
	for range 1 + d.IntN(2*linesPerOrder-1) {
		o.Lines = append(o.Lines, Line{1 + d.IntN(s.Products()), 1 + d.IntN(3)})
	}
	return o
}

// Total is what lines cost with tax, in cents.
func (s Shop) Total(lines []Line) int {
	net := 0
	for _, l := range lines {
		net += l.Quantity * s.Product(l.Product).Cents
	}
	return net + tax(net)
}

// tax is rounded half up, to whole cents.
func tax(net int) int { return (net*taxPerMille + 500) / 1000 }

const (
	consonants = "bcdfghjklmnprstvwz"
	vowels     = "aeiou"
)

// word can be spoken.
func word(d *rand.Rand, syllables int) string {
	text := make([]byte, 0, 2*syllables)
	for range syllables {
		text = append(text, consonants[d.IntN(len(consonants))], vowels[d.IntN(len(vowels))])
	}
	return string(text)
}

func name(d *rand.Rand, syllables int) string {
	text := word(d, syllables)
	return strings.ToUpper(text[:1]) + text[1:]
}

// hashed is how the shop keeps passwords.
func hashed(password string) string {
	sum := sha256.Sum256([]byte(password))
	return hex.EncodeToString(sum[:])
}
