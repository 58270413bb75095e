package xmltree

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

func declared(encoding, text string) string {
	return fmt.Sprintf("<?xml version='1.0' encoding='%s'?>\n<domain><title>%s</title></domain>", encoding, text)
}

// TestEncoding_DeclaredByClients: a document that was converted to UTF-8 on its way is UTF-8, whatever it declares.
func TestEncoding_DeclaredByClients(t *testing.T) {
	for _, name := range []string{
		"us-ascii", "US-ASCII", "ASCII", "ANSI_X3.4-1968", "iso-646-us", "utf8", "UTF-8", "UTF_8", "utf-16", "UTF-16LE", "UCS-2", "UTF-32", "unicode",
		"ISO-8859-1", "iso_8859-1", "iso8859-15", "latin1", "latin-1", "L1", "windows-1252", "cp1252", "cp437", "IBM037", "windows-1251", "koi8-r",
		"GBK", "gb18030", "big5", "Shift_JIS", "EUC-JP", "macintosh",
	} {
		e, err := Parse(declared(name, "caf\u00e9 \u20ac"))
		if err != nil || e.Child("title").Text() != "caf\u00e9 \u20ac" {
			t.Errorf("%s: %q, %v", name, e.Child("title").Text(), err)
		}
	}
}

func TestEncoding_Converted(t *testing.T) {
	inUTF16 := func(order binary.AppendByteOrder, text string) string {
		var b []byte
		for _, u := range utf16.Encode([]rune(text)) {
			b = order.AppendUint16(b, u)
		}
		return string(b)
	}
	const wide = "\u00e9 \u20ac \U0001f600"
	for name, c := range map[string]struct{ doc, want string }{
		"latin-1":              {declared("ISO-8859-1", "caf\xe9 \x80"), "caf\u00e9 \u0080"},
		"latin-9":              {declared("iso-8859-15", "\xa4"), "\u20ac"},
		"windows":              {declared("windows-1252", "\x80\x81\x93x\x94"), "\u20ac\u0081\u201cx\u201d"},
		"in comments":          {strings.Replace(declared("latin1", "x"), "<title>", "<!-- \xe9 --><title>", 1), "x"},
		"UTF-16, big end":      {inUTF16(binary.BigEndian, "\ufeff"+declared("UTF-16", wide)), wide},
		"UTF-16, little end":   {inUTF16(binary.LittleEndian, "\ufeff"+declared("UTF-16", wide)), wide},
		"UTF-16 of no mark":    {inUTF16(binary.LittleEndian, declared("UTF-16LE", wide)), wide},
		"UTF-16 undeclared":    {inUTF16(binary.BigEndian, "<domain><title>x</title></domain>"), "x"},
		"UTF-8 of a mark":      {"\ufeff" + declared("utf-8", wide), wide},
		"UTF-8 that is latin1": {declared("latin1", "\xc3\xa9"), "\u00e9"},
	} {
		if !StartsLikeXML(c.doc) {
			t.Errorf("%s: who looks for documents does not find it", name)
		}
		e, err := Parse(c.doc)
		if err != nil || e.Child("title").Text() != c.want {
			t.Errorf("%s: %q, %v", name, e.Child("title").Text(), err)
		}
	}
}

func TestEncoding_Refusals(t *testing.T) {
	for name, c := range map[string]struct{ doc, says string }{
		"unknown":              {declared("nonsense", "x"), `no encoding is called "nonsense"; write the document in UTF-8`},
		"a trap":               {declared(strings.Repeat("x", 100), "x"), "no encoding is called"},
		"no ASCII":             {declared("us-ascii", "caf\xe9"), "declared as us-ascii and is not UTF-8; convert it"},
		"no table":             {declared("koi8-r", "\xe9"), "convert it to UTF-8"},
		"half a character":     {"\xff\xfe<\x00d", "UTF-16 and is cut off"},
		"an unknown version":   {"<?xml version='2.0'?><domain/>", "unsupported version"},
		"undeclared, no UTF-8": {"<domain><title>\xe9</title></domain>", "invalid UTF-8"},
	} {
		_, err := Parse(c.doc)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, word := range []string{"CharsetReader", "nil", "xml:", "Decoder"} {
			if strings.Contains(err.Error(), word) {
				t.Errorf("%s: %q is no plain word: %v", name, word, err)
			}
		}
	}
}

// TestEncoding_Bounds: a document that becomes longer by its conversion is not longer than others may be by much.
func TestEncoding_Bounds(t *testing.T) {
	if _, err := Parse("\xff\xfe" + strings.Repeat("<\x00", MaxSize/2)); !fault.Is(err, fault.Invalid) {
		t.Errorf("too long in UTF-16: %v", err)
	}
	if _, err := Parse("\xff\xfe" + strings.Repeat("<\x00", MaxSize/2-1)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "nodes") {
		t.Errorf("too many nodes in UTF-16: %v", err)
	}
}
