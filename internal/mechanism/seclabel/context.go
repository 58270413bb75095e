package seclabel

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Context is an SELinux context. Level is empty if the policy has no levels.
type Context struct{ User, Role, Type, Level string }

// word matches a user, a role or a type of a context; level matches one level, or a
// range of two.
var (
	word  = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,255}$`)
	level = regexp.MustCompile(`^[A-Za-z0-9_.,:-]{1,255}$`)
)

// ParseContext reads "user:role:type" or "user:role:type:level".
func ParseContext(text string) (Context, error) {
	parts := strings.SplitN(text, ":", 4)
	if len(parts) < 3 {
		return Context{}, invalidContext(text)
	}
	c := Context{User: parts[0], Role: parts[1], Type: parts[2]}
	if len(parts) == 4 {
		c.Level = parts[3]
	}
	if !word.MatchString(c.User) || !word.MatchString(c.Role) || !word.MatchString(c.Type) || len(parts) == 4 && !level.MatchString(c.Level) {
		return Context{}, invalidContext(text)
	}
	return c, nil
}

func invalidContext(text string) error {
	return fault.New(fault.Invalid, fault.Config, "%.100q is not an SELinux label; write user:role:type:level", text)
}

func (c Context) String() string {
	text := c.User + ":" + c.Role + ":" + c.Type
	if c.Level != "" {
		text += ":" + c.Level
	}
	return text
}

// withLevel returns the context with another level.
func (c Context) withLevel(level string) Context {
	c.Level = level
	return c
}

// lowLevel is the lower level of a range, without its categories: all guests share it.
func (c Context) lowLevel() string {
	from, _, _ := strings.Cut(c.Level, "-")
	from, _, _ = strings.Cut(from, ":")
	return cmp.Or(from, "s0")
}

// categories is the number of categories: c0 to c1023.
const categories = 1024

// Pair is two categories, the lower one first. Each running guest has its own pair (sVirt).
type Pair struct{ A, B int }

// level returns the level with the pair.
func (p Pair) level(low string) string { return fmt.Sprintf("%s:c%d,c%d", low, p.A, p.B) }

// PairOf returns the pair in a context's level; false if it has other categories or none.
func PairOf(context string) (Pair, bool) {
	c, err := ParseContext(context)
	if err != nil {
		return Pair{}, false
	}
	_, list, _ := strings.Cut(c.Level, ":")
	a, b, _ := strings.Cut(list, ",")
	first, ok1 := category(a)
	second, ok2 := category(b)
	if !ok1 || !ok2 || first == second {
		return Pair{}, false
	}
	return Pair{min(first, second), max(first, second)}, true
}

func category(text string) (int, bool) {
	digits, is := strings.CutPrefix(text, "c")
	n, err := strconv.ParseUint(digits, 10, 16)
	return int(n), is && err == nil && n < categories
}
