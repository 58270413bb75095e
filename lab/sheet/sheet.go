// Package sheet is how the lab's pages look: one style for paper, for light and
// for dark screens, which stands in the page itself.
//
// What belongs here: the style. What does not: what a page says.
package sheet

import (
	_ "embed"

	"github.com/lodge-kvm/lodge/lab/plot"
)

//go:embed sheet.css
var text string

// Style is that of a page with its pictures.
func Style() string { return plot.Style() + text }
