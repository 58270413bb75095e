package image

import (
	"strconv"
	"strings"
)

// progress reads qemu-img's progress output, "    (12.34/100%)\r", in pieces of any size.
type progress struct {
	tell func(float64)
	rest string
}

func (p *progress) Write(b []byte) (int, error) {
	if p.tell == nil {
		return len(b), nil
	}
	text := p.rest + string(b)
	for {
		_, after, ok := strings.Cut(text, "(")
		if !ok {
			p.rest = ""
			return len(b), nil
		}
		number, behind, ok := strings.Cut(after, "/100%)")
		if !ok {
			// A report that is not complete yet; a longer text is no report.
			if p.rest = "(" + after; len(p.rest) > 32 {
				p.rest = ""
			}
			return len(b), nil
		}
		if share, err := strconv.ParseFloat(number, 64); err == nil && share >= 0 && share <= 100 {
			p.tell(share / 100)
		}
		text = behind
	}
}
