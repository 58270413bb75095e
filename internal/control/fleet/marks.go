package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Namespace is that of the element in a definition's <metadata> that holds a
// guest's marks:
//
//	<lodge:guest xmlns:lodge="https://lodge-kvm.github.io/xmlns/guest/1.0" priority="10" rng="no">
//	  <lodge:label name="app" value="web"/>
//	  <lodge:after guest="db"/>
//	  <lodge:volume pool="default" name="web-1.qcow2"/>
//	  <lodge:memory shares="2000" floor="512MiB" mode="act"/>
//	</lodge:guest>
const Namespace = provision.MarksNamespace

// The names of the element and its children.
const (
	prefix   = "lodge"
	rootName = "guest"
)

// Bounds of one guest's marks, which any client can write.
const (
	maxMarks      = 64 << 10 // bytes
	maxLabels     = 64
	maxLabelName  = 63
	maxLabelValue = 255
	maxAfter      = 64
	maxVolumes    = 256
	maxPriority   = 1000
)

// tileLabel is the label that makes a guest part of a tile. Its value is SET/NUMBER. Only CreateTiles sets it.
const tileLabel = "tile"

// Labels are names with values that a user gives a guest.
type Labels map[string]string

// Marks are what clients noted on one guest for work on sets.
type Marks struct {
	Labels Labels
	// Priority orders guests: lower numbers start earlier and stop later.
	Priority int
	// After names the guests that start before this one and stop after it.
	After []string
	// Volumes are the volumes that were made for the guest's tile. They are removed with it.
	Volumes []VolumeName
	// NoRNG says that a new guest gets no random number generator beyond its definition. Room guest applies
	// it.
	NoRNG  bool
	Memory MemoryMarks
}

// VolumeName names a volume.
type VolumeName struct{ Pool, Name string }

func (n VolumeName) String() string { return n.Pool + "/" + n.Name }

var emptyMarks = &Marks{}

// ReadMarks parses the marks in a definition's <metadata>. The result is shared: do not change it.
func ReadMarks(metadata string) (*Marks, error) {
	if !strings.Contains(metadata, Namespace) {
		return emptyMarks, nil
	}
	doc, found, err := xmltree.MetadataElement(metadata, Namespace)
	if err != nil || !found {
		return emptyMarks, err
	}
	if len(doc) > maxMarks {
		return emptyMarks, wrongMarks("are %d bytes long; at most %d", len(doc), maxMarks)
	}
	root, err := xmltree.Parse(doc)
	if err != nil {
		return emptyMarks, err
	}
	m, err := parseMarks(root)
	if err != nil {
		return emptyMarks, err
	}
	return m, nil
}

func wrongMarks(format string, args ...any) error {
	return fault.New(fault.Invalid, fault.Metadata, "the marks in namespace %s %s", Namespace, fmt.Sprintf(format, args...))
}

// parseMarks reads the element by its local names.
func parseMarks(root *xmltree.Element) (*Marks, error) {
	if root.Name != rootName {
		return nil, wrongMarks("are in an element %q, not %q", root.Name, rootName)
	}
	m := &Marks{Labels: Labels{}}
	if text := root.Attr("priority"); text != "" {
		var err error
		if m.Priority, err = parsePriority(text); err != nil {
			return nil, err
		}
	}
	switch text := root.Attr("rng"); text {
	case "":
	case "no":
		m.NoRNG = true
	default:
		return nil, wrongMarks("have rng=%q; known is \"no\"", text)
	}
	for _, e := range root.Elements() {
		switch e.Name {
		case "label":
			m.Labels[e.Attr("name")] = e.Attr("value")
		case "after":
			m.After = append(m.After, e.Attr("guest"))
		case "volume":
			m.Volumes = append(m.Volumes, VolumeName{Pool: e.Attr("pool"), Name: e.Attr("name")})
		case "memory":
			var err error
			if m.Memory, err = parseMemoryMarks(e); err != nil {
				return nil, err
			}
		default:
			return nil, wrongMarks("hold an unknown element %q; known are label, after, volume and memory", e.Name)
		}
	}
	return m, m.check()
}

// check checks the bounds of marks.
func (m *Marks) check() error {
	switch {
	case len(m.Labels) > maxLabels:
		return wrongMarks("hold %d labels; at most %d", len(m.Labels), maxLabels)
	case len(m.After) > maxAfter:
		return wrongMarks("name %d guests to come after; at most %d", len(m.After), maxAfter)
	case len(m.Volumes) > maxVolumes:
		return wrongMarks("name %d volumes; at most %d", len(m.Volumes), maxVolumes)
	}
	for name, value := range m.Labels {
		if err := checkLabel(name, value); err != nil {
			return err
		}
	}
	for _, name := range m.After {
		if err := domain.CheckName(name); err != nil {
			return err
		}
	}
	return nil
}

func checkLabel(name, value string) error {
	if err := checkLabelName(name); err != nil {
		return err
	}
	switch {
	case len(value) > maxLabelValue:
		return fault.New(fault.Invalid, fault.Metadata, "the value of label %q has %d bytes; at most %d", name, len(value), maxLabelValue)
	case strings.ContainsFunc(value, unicode.IsControl):
		return fault.New(fault.Invalid, fault.Metadata, "the value of label %q holds a control character", name)
	case xmltree.CheckText(value) != nil:
		return fault.New(fault.Invalid, fault.Metadata, "the value of label %q is not UTF-8, or has code points that XML does not allow", name)
	}
	if name == tileLabel {
		_, _, err := parseTile(value)
		return err
	}
	return nil
}

// checkLabelName accepts names that no syntax needs to quote.
func checkLabelName(name string) error {
	if name == "" || len(name) > maxLabelName {
		return fault.New(fault.Invalid, fault.Metadata, "a label's name has from 1 to %d characters, not %q", maxLabelName, name)
	}
	if strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-/", r)
	}) {
		return fault.New(fault.Invalid, fault.Metadata, "a label's name consists of letters, digits and . _ - / and cannot be %q", name)
	}
	return nil
}

func parsePriority(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < -maxPriority || n > maxPriority {
		return 0, fault.New(fault.Invalid, fault.Metadata, "a priority is a number from %d to %d, not %q", -maxPriority, maxPriority, text)
	}
	return n, nil
}

// parseTile splits the value of the tile label. A number has one spelling only, so that a tile has one name.
func parseTile(text string) (set string, number int, err error) {
	set, digits, _ := strings.Cut(text, "/")
	number, err = strconv.Atoi(digits)
	if err != nil || number < 0 || tileName(set, number) != text || checkTileSet(set) != nil {
		return "", 0, fault.New(fault.Invalid, fault.Metadata, "a tile is called SET/NUMBER, not %q", text)
	}
	return set, number, nil
}

func tileName(set string, number int) string { return set + "/" + strconv.Itoa(number) }

// maxTileSet leaves room in a guest's name for the tile's number and a suffix.
const maxTileSet = 48

func checkTileSet(set string) error {
	if set == "" || len(set) > maxTileSet || strings.Contains(set, "/") || checkLabelName(set) != nil {
		return fault.New(fault.Invalid, fault.Call, "a set of tiles has a name of 1 to %d letters, digits and . _ - and not %q", maxTileSet, set)
	}
	return nil
}

// document returns the XML of the marks, or "" if there are none. Marks that ReadMarks would refuse are
// refused here too: each part may be within its bound and the total above the limit.
func (m *Marks) document() (string, error) {
	e := m.element()
	if e == nil {
		return "", nil
	}
	doc, err := xmltree.Format(e)
	if err != nil {
		return "", err
	}
	metadata, err := xmltree.SetMetadataElement("", Namespace, prefix, doc)
	if err == nil {
		_, err = ReadMarks(metadata)
	}
	return doc, err
}

func (m *Marks) element() *xmltree.Element {
	if m.Priority == 0 && !m.NoRNG && len(m.Labels) == 0 && len(m.After) == 0 && len(m.Volumes) == 0 && m.Memory == (MemoryMarks{}) {
		return nil
	}
	e := &xmltree.Element{Name: rootName}
	if m.Priority != 0 {
		e.Attrs = append(e.Attrs, xmltree.Attr{Name: "priority", Value: strconv.Itoa(m.Priority)})
	}
	if m.NoRNG {
		e.Attrs = append(e.Attrs, xmltree.Attr{Name: "rng", Value: "no"})
	}
	add := func(name string, attrs ...xmltree.Attr) {
		e.Children = append(e.Children, &xmltree.Element{Name: name, Attrs: attrs})
	}
	for _, name := range slices.Sorted(maps.Keys(m.Labels)) {
		add("label", xmltree.Attr{Name: "name", Value: name}, xmltree.Attr{Name: "value", Value: m.Labels[name]})
	}
	for _, name := range m.After {
		add("after", xmltree.Attr{Name: "guest", Value: name})
	}
	for _, v := range m.Volumes {
		add("volume", xmltree.Attr{Name: "pool", Value: v.Pool}, xmltree.Attr{Name: "name", Value: v.Name})
	}
	if attrs := m.Memory.attrs(); attrs != nil {
		add("memory", attrs...)
	}
	return e
}

// clone returns a copy that may be changed; cached marks are shared.
func (m *Marks) clone() *Marks {
	labels := make(Labels, len(m.Labels))
	maps.Copy(labels, m.Labels)
	return &Marks{Labels: labels, Priority: m.Priority, After: slices.Clone(m.After), Volumes: slices.Clone(m.Volumes), NoRNG: m.NoRNG, Memory: m.Memory}
}
