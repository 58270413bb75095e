package fleet

import "strings"

// glob is a pattern of a name: '*' stands for anything, '?' for one character.
type glob string

func (g glob) literal() bool { return !strings.ContainsAny(string(g), "*?") }

// matches takes time in proportion to the two lengths multiplied, whatever the
// pattern: only the last '*' is ever tried again.
func (g glob) matches(name string) bool {
	pattern, text := []rune(string(g)), []rune(name)
	star, tried := -1, 0
	p, t := 0, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, tried = p, t
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == text[t]):
			p, t = p+1, t+1
		case star >= 0:
			tried++
			p, t = star+1, tried
		default:
			return false
		}
	}
	return strings.Trim(string(pattern[p:]), "*") == ""
}
