package secret

import (
	"github.com/google/uuid"
	"libvirt.org/go/libvirtxml"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Definition is a secret's metadata. It never contains the secret's value.
type Definition struct {
	UUID        string `json:"uuid"` // lower case, with dashes
	Description string `json:"description,omitempty"`
	Ephemeral   bool   `json:"ephemeral,omitempty"` // never on disk, lost when the daemon ends
	Private     bool   `json:"private,omitempty"`   // only the daemon may read its value
	Usage       Usage  `json:"usage"`
}

// Usage is the usage of a secret. The zero value means no usage.
type Usage struct {
	Type string `json:"type,omitempty"` // a key of usageElements, or empty
	ID   string `json:"id,omitempty"`   // unique among the secrets of the type
}

func (u Usage) String() string {
	if u.Type == "" {
		return "nothing in particular"
	}
	return u.Type + " " + u.ID
}

// usageElements are the usage types, with the element that names the user.
var usageElements = map[string]string{"volume": "volume", "ceph": "name", "iscsi": "target", "tls": "name", "vtpm": "name"}

// maxText bounds a description and maxUsage a usage, in bytes, so that a list of the maximum number of secrets
// fits into one answer.
const (
	maxText  = 64 << 10
	maxUsage = 1 << 10
)

// Parse parses a secret's document. The UUID may be missing. With strict set, unknown elements and attributes
// are refused.
func Parse(doc string, strict bool) (Definition, error) {
	root, err := xmltree.Parse(doc)
	if err != nil {
		return Definition{}, err
	}
	if root.Name != "secret" {
		return Definition{}, fault.New(fault.Invalid, fault.XML, "the document describes a %q, not a secret", root.Name)
	}
	d := Definition{UUID: root.Child("uuid").Text(), Description: root.Child("description").Text()}
	for name, into := range map[string]*bool{"ephemeral": &d.Ephemeral, "private": &d.Private} {
		if *into, err = parseYesNo(root, name); err != nil {
			return Definition{}, err
		}
	}
	if d.UUID != "" {
		id, err := uuid.Parse(d.UUID)
		if err != nil {
			return Definition{}, fault.New(fault.Invalid, fault.XML, "%q is not a UUID", d.UUID)
		}
		d.UUID = id.String()
	}
	if d.Usage, err = parseUsage(root.Child("usage")); err != nil {
		return Definition{}, err
	}
	if len(d.Description) > maxText || len(d.Usage.ID) > maxUsage {
		return Definition{}, fault.New(fault.Invalid, fault.XML, "the secret's description is longer than %d bytes, or its usage than %d", maxText, maxUsage)
	}
	return d, refuseUnknown(root, strict)
}

func parseYesNo(e *xmltree.Element, name string) (bool, error) {
	switch v := e.Attr(name); v {
	case "yes":
		return true, nil
	case "", "no":
		return false, nil
	default:
		return false, fault.New(fault.Invalid, fault.XML, "the attribute %s of a secret is yes or no, not %q", name, v)
	}
}

func parseUsage(e *xmltree.Element) (Usage, error) {
	if e == nil || e.Attr("type") == "" || e.Attr("type") == "none" {
		return Usage{}, nil
	}
	u := Usage{Type: e.Attr("type")}
	element, ok := usageElements[u.Type]
	if !ok {
		return Usage{}, fault.New(fault.Invalid, fault.XML, "unknown usage type %q; known are volume, ceph, iscsi, tls and vtpm", u.Type)
	}
	if u.ID = e.Child(element).Text(); u.ID == "" {
		return Usage{}, fault.New(fault.Invalid, fault.XML, "a secret with usage type %s needs the element <%s>", u.Type, element)
	}
	return u, nil
}

func refuseUnknown(root *xmltree.Element, strict bool) error {
	if !strict {
		return nil
	}
	var x libvirtxml.Secret
	if err := root.Unmarshal(&x); err != nil {
		return err
	}
	text, err := xmltree.Format(&x)
	if err != nil {
		return err
	}
	known, err := xmltree.Parse(text)
	if err != nil {
		return err
	}
	for _, path := range xmltree.Unknown(root, known) {
		return fault.New(fault.Invalid, fault.XML, "the secret's document has an unknown element or attribute: %s", path)
	}
	return nil
}

// XML is the document of a definition, as libvirt prints it.
func (d Definition) XML() (string, error) {
	word := map[bool]string{true: "yes", false: "no"}
	root := &xmltree.Element{Name: "secret", Attrs: []xmltree.Attr{
		{Name: "ephemeral", Value: word[d.Ephemeral]}, {Name: "private", Value: word[d.Private]},
	}}
	add := func(to *xmltree.Element, name, text string) {
		to.Children = append(to.Children, &xmltree.Element{Name: name, Children: []xmltree.Node{xmltree.Text(text)}})
	}
	add(root, "uuid", d.UUID)
	if d.Description != "" {
		add(root, "description", d.Description)
	}
	if d.Usage.Type != "" {
		usage := &xmltree.Element{Name: "usage", Attrs: []xmltree.Attr{{Name: "type", Value: d.Usage.Type}}}
		add(usage, usageElements[d.Usage.Type], d.Usage.ID)
		root.Children = append(root.Children, usage)
	}
	return xmltree.Format(root)
}
