package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// table is everything that the table files say.
type table struct {
	program string
	limits  []limit
	structs []*message
	procs   []*proc
	types   map[string]*message // structs and payloads, by Go name
}

type limit struct{ name, value string }

// message is a struct or a payload: a Go type with fields in wire order.
type message struct {
	name   string
	fields []field
	nested bool // stands inside another message
}

type field struct {
	name string
	typ  typ
}

// typ is a type of the table's language.
type typ struct {
	base     string // int, uint, ..., or the name of a struct
	optional bool
	limit    string // list of at most this many
	fixed    int    // exactly this many
}

type proc struct {
	program, name string
	number        int
	event         bool
	marks         []string
	args, ret     *message
}

func newTable() *table { return &table{types: map[string]*message{}} }

func (t *table) parse(text string) error {
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		if err := t.line(line); err != nil {
			return fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	return nil
}

func (t *table) line(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "program":
		t.program = rest
		return nil
	case "limit":
		f := strings.Fields(rest)
		if len(f) != 2 {
			return fmt.Errorf("want a name and a number, not %q", rest)
		}
		t.limits = append(t.limits, limit{f[0], f[1]})
		return nil
	case "struct":
		name, layout, _ := strings.Cut(rest, ":")
		m, err := t.message(strings.TrimSpace(name), layout)
		t.structs = append(t.structs, m)
		return err
	case "call", "event":
		return t.proc(word == "event", rest)
	}
	return fmt.Errorf("unknown word %q", word)
}

var marks = []string{"high", "rw", "up", "down", "both", "fds-in", "fds-out"}

func (t *table) proc(event bool, rest string) error {
	head, layout, ok := strings.Cut(rest, " :")
	words := strings.Fields(head)
	if !ok || len(words) < 2 {
		return fmt.Errorf("want NUMBER NAME MARKS : LAYOUT")
	}
	number, err := strconv.Atoi(words[0])
	if err != nil {
		return err
	}
	p := &proc{program: t.program, name: words[1], number: number, event: event, marks: words[2:]}
	for _, m := range p.marks {
		if !slices.Contains(marks, m) {
			return fmt.Errorf("unknown mark %q", m)
		}
	}
	for _, q := range t.procs {
		if q.program == p.program && (q.number == number || q.name == p.name) {
			return fmt.Errorf("%s %d is there twice", p.name, number)
		}
	}
	t.procs = append(t.procs, p)
	args, ret, _ := strings.Cut(layout, "->")
	if event {
		p.args, err = t.message(p.goName()+"Msg", args)
		return err
	}
	if p.args, err = t.message(p.goName()+"Args", args); err != nil {
		return err
	}
	p.ret, err = t.message(p.goName()+"Ret", ret)
	return err
}

// message parses a layout and keeps it under its name; an empty one is nil.
func (t *table) message(name, layout string) (*message, error) {
	layout = strings.TrimSpace(layout)
	if layout == "" {
		return nil, nil
	}
	if t.types[name] != nil {
		return nil, fmt.Errorf("type %s is there twice", name)
	}
	m := &message{name: name}
	t.types[name] = m
	if same, ok := strings.CutPrefix(layout, "= "); ok {
		if t.types[same] == nil {
			return nil, fmt.Errorf("no struct %q", same)
		}
		m.fields = t.types[same].fields
		return m, nil
	}
	for part := range strings.SplitSeq(layout, ",") {
		words := strings.Fields(part)
		if len(words) != 2 {
			return nil, fmt.Errorf("want \"Name type\", not %q", part)
		}
		typ, err := t.typ(words[1])
		if err != nil {
			return nil, err
		}
		m.fields = append(m.fields, field{words[0], typ})
	}
	return m, nil
}

var typeForm = regexp.MustCompile(`^(\?)?(?:\[(\w+)\])?(\w+)(?:\[(\d+)\])?$`)

func (t *table) typ(text string) (typ, error) {
	f := typeForm.FindStringSubmatch(text)
	if f == nil {
		return typ{}, fmt.Errorf("%q is no type", text)
	}
	out := typ{base: f[3], optional: f[1] != "", limit: f[2]}
	out.fixed, _ = strconv.Atoi(f[4])
	if out.limit != "" && t.limit(out.limit) == "" {
		return out, fmt.Errorf("no limit %q", out.limit)
	}
	if _, ok := scalars[out.base]; ok || out.base == "byte" {
		return out, nil
	}
	m := t.types[out.base]
	if m == nil {
		return out, fmt.Errorf("no type %q before this line", out.base)
	}
	m.nested = true
	return out, nil
}

// limit is the number of a limit, or "" when there is none of that name.
func (t *table) limit(name string) string {
	for _, l := range t.limits {
		if l.name == name {
			return l.value
		}
	}
	return ""
}

// spelling of the words that are not simply capitalised in a Go name.
var spelling = map[string]string{}

func init() {
	for w := range strings.FieldsSeq(`XML UUID ID URI CPU CPUs VCPU VCPUs NUMA IO BlkIO DHCP SASL NWFilter NWFilters OS PM
		PMWakeup PMSuspend SEV SSH FSFreeze FSThaw FSTrim FSInfo IOThread SCSI WWN MAC NIC NMI RTC FD`) {
		spelling[strings.ToUpper(w)] = w
	}
}

// goName is the procedure's name in Go: DOMAIN_DEFINE_XML is DomainDefineXML.
func (p *proc) goName() string {
	var b strings.Builder
	if p.program == "qemu" {
		b.WriteString("QEMU")
	}
	for w := range strings.SplitSeq(p.name, "_") {
		if s := spelling[w]; s != "" {
			b.WriteString(s)
			continue
		}
		b.WriteString(w[:1] + strings.ToLower(w[1:]))
	}
	return b.String()
}
