package fleet

import (
	"strings"
	"unicode/utf8"
)

// glob is a pattern of a name: '*' stands for anything, '?' for one character.
type glob string

func (g glob) literal() bool { return !strings.ContainsAny(string(g), "*?") }

// matches takes time in proportion to the two lengths multiplied, whatever the
// pattern: only the last '*' is ever tried again.
func (g glob) matches(name string) bool {
	star, tried := -1, 0 // where the last '*' is, and up to where it stands for the name
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

// runeAt gives the length of the character that begins there.
func runeAt(text string, at int) int {
	_, size := utf8.DecodeRuneInString(text[at:])
	return size
}

// Matches says whether a name fits a pattern, in which '*' stands for anything
// and '?' for one character.
func Matches(pattern, name string) bool { return glob(pattern).matches(name) }
