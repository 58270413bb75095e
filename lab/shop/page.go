package shop

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// page is an answer that is whole. What it says is checked against what the shop
// must know.
type page []byte

// whole is what tells a page from an error, and from part of a page.
func whole(name string, status int, answer []byte) error {
	file, _, _ := strings.Cut(name, "?")
	if status != 200 {
		return fmt.Errorf("%s: status %d: %.200q", file, status, answer)
	}
	if !bytes.HasPrefix(answer, []byte("<!DOCTYPE html>")) || !bytes.HasSuffix(answer, []byte("</body></html>\n")) {
		return fmt.Errorf("%s: the page is not whole: %.200q", file, answer)
	}
	return nil
}

func (p page) titled(title string) error {
	if !bytes.Contains(p, []byte("<h1>"+title+"</h1>")) {
		return fmt.Errorf("the page is not titled %q: %.200q", title, p)
	}
	return nil
}

// text is what the page says under an id.
func (p page) text(id string) string {
	_, after, _ := bytes.Cut(p, []byte(`<b id="`+id+`">`))
	text, _, _ := bytes.Cut(after, []byte("</b>"))
	return string(text)
}

func (p page) says(id, want string) error {
	if got := p.text(id); got != want {
		return fmt.Errorf("the page says %.50q for %s instead of %q", got, id, want)
	}
	return nil
}

func (p page) number(id string) (int, error) {
	n, err := strconv.Atoi(p.text(id))
	if err != nil {
		return 0, fmt.Errorf("the page says no number for %s: %w", id, err)
	}
	return n, nil
}

var productRow = regexp.MustCompile(`<tr data-id="(\d{1,9})"><td>([^<]*)</td><td>([^<]*)</td><td>[^<]*</td><td>(\d+\.\d\d)</td></tr>`)

// products are those that a page of browsing lists: each must be what was looked
// for, under its own title and price.
func (p page) products(s Shop, by, want string) ([]int, error) {
	all := productRow.FindAllSubmatch(p, -1)
	if err := p.says("found", strconv.Itoa(len(all))); err != nil {
		return nil, err
	}
	var found []int
	for _, row := range all {
		number, err := strconv.Atoi(string(row[1]))
		if err != nil || number < 1 || number > s.Products() {
			return nil, fmt.Errorf("the page lists the title %s, which the shop has not", row[1])
		}
		is := s.Product(number)
		if string(row[2]) != is.Title || string(row[3]) != is.Actor || string(row[4]) != money(is.Cents) {
			return nil, fmt.Errorf("the page lists %q by %q for %s instead of %q by %q for %s", row[2], row[3], row[4], is.Title, is.Actor, money(is.Cents))
		}
		if fits := map[string]bool{
			"title": strings.HasPrefix(is.Title, want), "actor": strings.HasPrefix(is.Actor, want), "category": strconv.Itoa(is.Category) == want,
		}; !fits[by] {
			return nil, fmt.Errorf("the page lists %q for %s %s", is.Title, by, want)
		}
		found = append(found, number)
	}
	return found, nil
}

func (p page) receipt(s Shop, lines []Line) error {
	if err := p.titled("Thank you"); err != nil {
		return err
	}
	if _, err := p.number("order"); err != nil {
		return err
	}
	if err := p.says("lines", strconv.Itoa(len(lines))); err != nil {
		return err
	}
	return p.says("total", money(s.Total(lines)))
}

func money(cents int) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }
