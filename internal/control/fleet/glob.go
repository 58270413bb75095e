package fleet

import (
	"strings"
	"unicode/utf8"
)

// glob is a pattern of a name: '*' matches any text, '?' one character.
type glob string

func (g glob) literal() bool { return !strings.ContainsAny(string(g), "*?") }

// matches takes at most time proportional to the product of the two lengths, because it backtracks only to the
// last '*'.
func (g glob) matches(name string) bool {
	star, tried := -1, 0 // the last '*', and the end of the text that it matches
	p, t := 0, 0
	for t < len(name) {
		switch {
		case p < len(g) && g[p] == '*':
			star, tried = p, t
			p++
		case p < len(g) && g[p] == '?':
			p, t = p+1, t+runeAt(name, t)
		case p < len(g) && g[p] == name[t]:
			p, t = p+1, t+1
		case star >= 0:
			tried += runeAt(name, tried)
			p, t = star+1, tried
		default:
			return false
		}
	}
	return strings.Trim(string(g[p:]), "*") == ""
}

// runeAt returns the length in bytes of the character at a position.
func runeAt(text string, at int) int {
	_, size := utf8.DecodeRuneInString(text[at:])
	return size
}

// Matches says whether a name matches a pattern: '*' matches any text, '?' one character.
func Matches(pattern, name string) bool { return glob(pattern).matches(name) }
