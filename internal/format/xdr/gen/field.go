package main

import (
	"bytes"
	"fmt"
)

func (y typ) goType() string {
	t := y.base
	if s, ok := scalars[y.base]; ok {
		t = s.goType
	}
	switch {
	case y.limit != "":
		return "[]" + t
	case y.fixed > 0:
		return fmt.Sprintf("[%d]%s", y.fixed, t)
	case y.optional:
		return "*" + t
	}
	return t
}

// packed lists have methods of their own; "" for other types.
func (y typ) packed() string {
	switch {
	case y.limit != "" && y.base == "byte":
		return "Opaque"
	case y.limit != "" && y.base == "char":
		return "Chars"
	}
	return ""
}

// encode writes the statement that puts the field on the wire.
func (f field) encode(b *bytes.Buffer, label string) {
	x := "m." + f.name
	switch y := f.typ; {
	case y.packed() != "":
		fmt.Fprintf(b, "w.%s(%q, %s, Max%s)\n", map[string]string{"Opaque": "opaque", "Chars": "chars"}[y.packed()], label, x, y.limit)
	case y.fixed > 0:
		fmt.Fprintf(b, "w.fixedChars(%s[:])\n", x)
	case y.limit != "":
		fmt.Fprintf(b, "w.count(%q, len(%s), Max%s)\nfor i := range %s {\n%s}\n", label, x, y.limit, x, y.put(label, x+"[i]"))
	case y.optional && y.base == "string":
		fmt.Fprintf(b, "w.optString(%q, %s)\n", label, x)
	case y.optional:
		fmt.Fprintf(b, "if w.flag(%s != nil); %s != nil {\n%s}\n", x, x, y.put(label, x))
	default:
		b.WriteString(y.put(label, x))
	}
}

// put is the statement for one item of the base type.
func (y typ) put(label, x string) string {
	s, ok := scalars[y.base]
	switch {
	case !ok || s.put == "":
		return x + ".encode(w)\n"
	case s.plain:
		return fmt.Sprintf("w.%s(%s)\n", s.put, x)
	default:
		return fmt.Sprintf("w.%s(%q, %s)\n", s.put, label, x)
	}
}

// decode writes the statement that takes the field off the wire.
func (f field) decode(b *bytes.Buffer, label string, t *table) {
	x := "m." + f.name
	switch y := f.typ; {
	case y.packed() != "":
		fmt.Fprintf(b, "%s = r.%s(%q, Max%s)\n", x, y.packed(), label, y.limit)
	case y.fixed > 0:
		fmt.Fprintf(b, "r.FixedChars(%q, %s[:])\n", label, x)
	case y.limit != "":
		fmt.Fprintf(b, "%s = makeList[%s](r.Count(%q, Max%s, %d))\n", x, f.typ.goType()[2:], label, y.limit, t.size(typ{base: y.base}))
		fmt.Fprintf(b, "for i := 0; i < len(%s) && r.err == nil; i++ {\n%s}\n", x, y.get(label, x+"[i]"))
	case y.optional && y.base == "string":
		fmt.Fprintf(b, "%s = r.OptString(%q, MaxString)\n", x, label)
	case y.optional:
		fmt.Fprintf(b, "%s = nil\nif r.Flag(%q) {\n%s = new(%s)\n%s}\n", x, label, x, f.typ.goType()[1:], y.get(label, x))
	default:
		b.WriteString(y.get(label, x))
	}
}

func (y typ) get(label, x string) string {
	s, ok := scalars[y.base]
	switch {
	case !ok || s.get == "":
		return x + ".decode(r)\n"
	case y.base == "string":
		return fmt.Sprintf("%s = r.String(%q, MaxString)\n", x, label)
	default:
		return fmt.Sprintf("%s = r.%s(%q)\n", x, s.get, label)
	}
}

// size is the least number of bytes that a type takes on the wire.
func (t *table) size(y typ) int {
	switch {
	case y.limit != "" || y.optional:
		return 4
	case y.fixed > 0:
		return 4 * y.fixed
	}
	if s, ok := scalars[y.base]; ok {
		return s.size
	}
	n := 0
	for _, f := range t.types[y.base].fields {
		n += t.size(f.typ)
	}
	return n
}
