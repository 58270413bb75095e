// Package sheet is what the lab's pages have in common: one style for paper, for
// light and for dark screens, a head that forbids the page to ask anything of
// anybody, figures and tables, and the page's own script, by which each picture can
// be kept as a file. All of it stands in the page itself.
//
// What belongs here: how pages look and what they may. What does not: what a page
// says.
package sheet

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/plot"
)

var (
	//go:embed sheet.css
	style string
	//go:embed keep.js
	script string
	//go:embed page.html
	parts string
)

// Figure is a picture with its words and, if there are any, its numbers.
type Figure struct {
	ID, Title, About string
	SVG              template.HTML
	Table            lab.Table
}

// Page makes the template of a page. Its text begins with {{template "head" .Title}}
// and ends with {{template "foot"}}; between them it may use "figure" with a Figure,
// "table" with a Table, and the function tied.
func Page(text string) *template.Template {
	t := template.New("parts").Funcs(template.FuncMap{
		"style":  func() template.CSS { return template.CSS(plot.Style() + style) },
		"script": func() template.JS { return template.JS(script) },
		"policy": policy,
		"tied":   tied,
	})
	return template.Must(template.Must(t.Parse(parts)).New("page").Parse(text))
}

// policy is what the page forbids itself: everything but its own style, its own
// script by its sum, and pictures that it holds.
func policy() string {
	sum := sha256.Sum256([]byte(script))
	return "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; script-src 'sha256-" +
		base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

var units = regexp.MustCompile(`(\d) (µs|ms|s|%|MiB|KiB)`)

// tied keeps numbers and their units on one line.
func tied(words any) string {
	return units.ReplaceAllString(fmt.Sprint(words), "$1\u00a0$2")
}

var unfit = regexp.MustCompile(`[^a-z0-9]+`)

// Keep writes each figure's picture into a directory, as a file that needs no page.
func Keep(dir string, figures []Figure) error {
	err := os.MkdirAll(dir, 0o755)
	for i, f := range figures {
		words := strings.Trim(unfit.ReplaceAllString(strings.ToLower(f.Title), "-"), "-")
		name := fmt.Sprintf("%02d-%s.svg", i+1, words[:min(len(words), 60)])
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), []byte(plot.Alone(f.SVG)), 0o644)
		}
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot keep the pictures")
}
