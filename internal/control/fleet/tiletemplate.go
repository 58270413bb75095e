package fleet

import (
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// TileTemplate is a document from which tiles are made:
//
//	<tile>
//	  <volume pool='default'><name>{name}-{tile}.qcow2</name>...</volume>
//	  <domain type='kvm'><name>{name}-{tile}-1</name>...</domain>
//	</tile>
//
// with any number of libvirt's storage volume and domain documents. {name} stands
// for the name of the set of tiles, {tile} for the tile's number, in any text or
// attribute. A template is immutable.
type TileTemplate struct {
	volumes, domains []*xmltree.Element
}

// Bounds of a tile.
const maxTileGuests = 256

// placeholder matches what is replaced, or refused if it is unknown.
var placeholder = regexp.MustCompile(`\{[A-Za-z_][A-Za-z0-9_-]*\}`)

// The placeholders.
const (
	setPlaceholder  = "{name}"
	tilePlaceholder = "{tile}"
)

// ParseTile parses a template.
func ParseTile(doc []byte) (*TileTemplate, error) {
	root, err := xmltree.Parse(string(doc))
	if err != nil {
		return nil, err
	}
	if err := checkTemplate(string(doc)); err != nil {
		return nil, err
	}
	t := &TileTemplate{}
	for _, e := range root.Elements() {
		inheritNamespaces(e, root)
		kind := &t.domains
		if e.Name == "volume" {
			kind = &t.volumes
		}
		*kind = append(*kind, e)
	}
	return t, t.check()
}

// check refuses what two tiles could not both have, or could not be told apart by.
func (t *TileTemplate) check() error {
	switch {
	case len(t.domains) == 0:
		return wrongTemplate("has no <domain>")
	case len(t.domains) > maxTileGuests || len(t.volumes) > maxVolumes:
		return wrongTemplate("has %d domains and %d volumes; at most %d and %d", len(t.domains), len(t.volumes), maxTileGuests, maxVolumes)
	}
	for _, v := range t.volumes {
		if v.Attr("pool") == "" {
			return wrongTemplate("has a <volume> without the attribute pool")
		}
	}
	for _, d := range t.domains {
		if d.Child("uuid") != nil {
			return wrongTemplate("gives a domain its <uuid>; leave it out, so that each tile gets one of its own")
		}
	}
	seen := map[string]bool{}
	for _, e := range slices.Concat(t.volumes, t.domains) {
		name := e.Child("name").Text()
		if !containsTileNumber(e.Child("name")) {
			return wrongTemplate("names a %s %q; the name needs %s, so that each tile has its own", e.Name, name, tilePlaceholder)
		}
		whole := e.Name + " " + e.Attr("pool") + " " + name
		if seen[whole] {
			return wrongTemplate("has two of %s %q", e.Name, name)
		}
		seen[whole] = true
	}
	return nil
}

// containsTileNumber says whether a name contains the tile's number in one text node: placeholders are replaced in each
// text node, and a comment splits a text into two.
func containsTileNumber(name *xmltree.Element) bool {
	return name != nil && slices.ContainsFunc(name.Children, func(n xmltree.Node) bool {
		text, ok := n.(xmltree.Text)
		return ok && strings.Contains(string(text), tilePlaceholder)
	})
}

func wrongTemplate(format string, args ...any) error {
	return fault.Wrap(fault.New(fault.Invalid, fault.XML, format, args...), fault.Invalid, fault.XML, "the template of a tile is wrong: it")
}

// inheritNamespaces declares on an element the namespaces of its ancestors.
func inheritNamespaces(e, around *xmltree.Element) {
	for _, a := range around.Attrs {
		if a.Prefix == "xmlns" {
			e.Attrs = append(e.Attrs, a)
		}
	}
}

// checkTemplate scans the document again for errors that are reported by line: misplaced elements and unknown
// placeholders.
func checkTemplate(doc string) error {
	d := xml.NewDecoder(strings.NewReader(doc))
	d.CharsetReader = func(_ string, rest io.Reader) (io.Reader, error) { return rest, nil } // the parser has checked it before
	depth := 0
	for {
		from := d.InputOffset()
		token, err := d.RawToken()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fault.Wrap(err, fault.Invalid, fault.XML, "cannot read the template of a tile")
		}
		where := templatePart{doc, int(from), int(d.InputOffset())}
		switch token := token.(type) {
		case xml.StartElement:
			depth++
			err = where.checkElement(token, depth)
		case xml.EndElement:
			depth--
		case xml.CharData:
			err = where.checkText(string(token), depth > 1)
		}
		if err != nil {
			return err
		}
	}
}

// templatePart is the position of a token in a document, as offsets.
type templatePart struct {
	doc      string
	from, to int
}

func (p templatePart) checkElement(e xml.StartElement, depth int) error {
	name := e.Name.Local
	switch {
	case depth == 1 && (name != "tile" || e.Name.Space != ""):
		return p.wrong("<"+name, "the template of a tile is a <tile>, not a <%s>", name)
	case depth == 2 && (name != "volume" && name != "domain" || e.Name.Space != ""):
		return p.wrong("<"+name, "a <tile> holds <volume> and <domain>, not <%s>", name)
	}
	for _, a := range e.Attr {
		if depth == 1 && a.Name.Space != "xmlns" {
			return p.wrong(a.Name.Local, "a <tile> has no attribute %s", a.Name.Local)
		}
		if err := p.checkText(a.Value, true); err != nil {
			return err
		}
	}
	return nil
}

func (p templatePart) checkText(text string, allowed bool) error {
	if !allowed && strings.TrimSpace(text) != "" {
		return p.wrong(strings.TrimSpace(text), "a <tile> holds <volume> and <domain>, and no text")
	}
	for _, found := range placeholder.FindAllString(text, -1) {
		if found != setPlaceholder && found != tilePlaceholder {
			return p.wrong(found, "no placeholder %s; there are %s, the set's name, and %s, the tile's number", found, setPlaceholder, tilePlaceholder)
		}
	}
	return nil
}

// wrong makes an error with the line of found within the part.
func (p templatePart) wrong(found, format string, args ...any) error {
	at := p.from + max(strings.Index(p.doc[p.from:p.to], found), 0)
	line := 1 + strings.Count(p.doc[:at], "\n")
	return fault.Wrap(fault.New(fault.Invalid, fault.XML, format, args...), fault.Invalid, fault.XML, "line %d of the template of a tile", line)
}

// tileDocuments are the documents of one tile, ready to be defined.
type tileDocuments struct {
	name    string // SET/NUMBER
	volumes []volumeDocument
	domains []domainDocument
}

type volumeDocument struct {
	VolumeName
	doc string
}

type domainDocument struct{ name, uuid, doc string }

// expand returns the documents of one tile. Each domain is marked with the tile and all of its volumes, so
// that any of them identifies the whole. Each has its own UUID, which tells it from another guest of that
// name.
func (t *TileTemplate) expand(set string, number int) (*tileDocuments, error) {
	fill := strings.NewReplacer(setPlaceholder, set, tilePlaceholder, strconv.Itoa(number))
	tile := &tileDocuments{name: tileName(set, number)}
	var volumes []VolumeName
	for _, e := range t.volumes {
		v, err := expandVolume(substitute(e, fill))
		if err != nil {
			return nil, err
		}
		tile.volumes, volumes = append(tile.volumes, v), append(volumes, v.VolumeName)
	}
	for _, e := range t.domains {
		d, err := expandDomain(substitute(e, fill), tile.name, volumes)
		if err != nil {
			return nil, err
		}
		tile.domains = append(tile.domains, d)
	}
	return tile, nil
}

func expandVolume(e *xmltree.Element) (volumeDocument, error) {
	v := volumeDocument{VolumeName: VolumeName{Pool: e.Attr("pool"), Name: e.Child("name").Text()}}
	kept := e.Attrs[:0]
	for _, a := range e.Attrs {
		if a.Name != "pool" || a.Prefix != "" {
			kept = append(kept, a)
		}
	}
	e.Attrs = kept
	var err error
	v.doc, err = xmltree.Format(e)
	return v, err
}

func expandDomain(e *xmltree.Element, tile string, volumes []VolumeName) (domainDocument, error) {
	d := domainDocument{name: e.Child("name").Text(), uuid: uuid.NewString()}
	if err := domain.CheckName(d.name); err != nil {
		return d, err
	}
	e.Children = append(e.Children, &xmltree.Element{Name: "uuid", Children: []xmltree.Node{xmltree.Text(d.uuid)}})
	metadata := e.Child("metadata")
	if metadata == nil {
		metadata = &xmltree.Element{Name: "metadata"}
		e.Children = append(e.Children, metadata)
	}
	inheritNamespaces(metadata, e)
	inner, err := addTileMarks(xmltree.FormatInner(metadata), tile, volumes)
	if err != nil {
		return d, err
	}
	marked, err := xmltree.Parse("<metadata>" + inner + "</metadata>")
	if err != nil {
		return d, err
	}
	*metadata = *marked
	d.doc, err = xmltree.Format(e)
	return d, err
}

// addTileMarks adds a tile and its volumes to a definition's <metadata>.
func addTileMarks(metadata, tile string, volumes []VolumeName) (string, error) {
	m, err := ReadMarks(metadata)
	if err != nil {
		return "", err
	}
	m = m.clone()
	m.Labels[tileLabel], m.Volumes = tile, volumes
	if err := m.check(); err != nil {
		return "", err
	}
	doc, err := m.document()
	if err != nil {
		return "", err
	}
	return xmltree.SetMetadataElement(metadata, Namespace, prefix, doc)
}

// substitute returns a copy of an element with its placeholders replaced. Values are replaced in the tree, so they
// can never become markup.
func substitute(e *xmltree.Element, fill *strings.Replacer) *xmltree.Element {
	c := *e
	c.Attrs = make([]xmltree.Attr, len(e.Attrs))
	for i, a := range e.Attrs {
		a.Value = fill.Replace(a.Value)
		c.Attrs[i] = a
	}
	c.Children = make([]xmltree.Node, 0, len(e.Children))
	for _, n := range e.Children {
		switch n := n.(type) {
		case *xmltree.Element:
			c.Children = append(c.Children, substitute(n, fill))
		case xmltree.Text:
			c.Children = append(c.Children, xmltree.Text(fill.Replace(string(n))))
		default:
			c.Children = append(c.Children, n)
		}
	}
	return &c
}
