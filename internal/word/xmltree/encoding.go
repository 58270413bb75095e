package xmltree

import (
	"bufio"
	"encoding/binary"
	"io"
	"regexp"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A document is a string on the wire, and most clients send UTF-8 whatever the declaration says:
// Python's writers declare us-ascii, those of Java and .NET UTF-16. So a document that is valid UTF-8
// is read as UTF-8, as libvirt does, if the declaration names any real encoding. Other documents are
// converted from the encodings that files of western hosts have.

// encodingNames are the names of real encodings. Which one it is matters only for a document that is
// not UTF-8.
var encodingNames = regexp.MustCompile(`(?i)^(utf[-_]?(7|8|16|32)([-_]?[lb]e)?|ucs-?[24]([lb]e)?|iso-10646-ucs-[24]|unicode` +
	`|(us-?)?ascii|ansi_x3\.4-19(68|86)|iso-?646-us` +
	`|iso[-_]?8859[-_]\d{1,2}|latin-?\d{1,2}|l\d{1,2}` +
	`|(windows|cp|ibm)-?\d{3,5}|koi8-(r|u|ru|t)|macintosh|viscii|tcvn|tis-?620` +
	`|gb[-_]?2312|gbk|gb18030|big5(-?hkscs)?|(shift[-_]?|s)jis|euc-?(jp|kr|cn|tw)|iso-2022-(jp|kr|cn)(-\d)?|uhc|johab|hz)$`)

// convertedEncodings are the encodings of one byte a character that are supported. A byte that is not in
// the table is the character of the same number.
var convertedEncodings = []struct {
	names *regexp.Regexp
	table map[byte]rune
}{
	{regexp.MustCompile(`(?i)^(iso[-_]?8859[-_]1|latin-?1|l1)$`), nil},
	{regexp.MustCompile(`(?i)^(iso[-_]?8859[-_]15|latin-?9)$`), latin9},
	{regexp.MustCompile(`(?i)^(windows|cp)-?1252$`), windows1252},
}

var latin9 = map[byte]rune{0xa4: '€', 0xa6: 'Š', 0xa8: 'š', 0xb4: 'Ž', 0xb8: 'ž', 0xbc: 'Œ', 0xbd: 'œ', 0xbe: 'Ÿ'}

var windows1252 = map[byte]rune{
	0x80: '€', 0x82: '‚', 0x83: 'ƒ', 0x84: '„', 0x85: '…', 0x86: '†', 0x87: '‡', 0x88: 'ˆ', 0x89: '‰', 0x8a: 'Š', 0x8b: '‹', 0x8c: 'Œ', 0x8e: 'Ž',
	0x91: '‘', 0x92: '’', 0x93: '“', 0x94: '”', 0x95: '•', 0x96: '–', 0x97: '—', 0x98: '˜', 0x99: '™', 0x9a: 'š', 0x9b: '›', 0x9c: 'œ', 0x9e: 'ž', 0x9f: 'Ÿ',
}

// charset converts the rest of a document, after its declaration, to UTF-8. The result
// is at most three times as long.
func charset(doc, name string, rest io.Reader) (io.Reader, error) {
	switch {
	case !encodingNames.MatchString(name):
		return nil, invalid("line 1: no encoding is called %q; write the document in UTF-8", name)
	case utf8.ValidString(doc):
		return rest, nil
	}
	for _, c := range convertedEncodings {
		if c.names.MatchString(name) {
			return &singleBytes{bufio.NewReader(rest), c.table}, nil
		}
	}
	return nil, invalid("line 1: the document is declared as %s and is not UTF-8; convert it to UTF-8", name)
}

// singleBytes decodes an encoding of one byte a character.
type singleBytes struct {
	from  *bufio.Reader
	table map[byte]rune
}

func (s *singleBytes) Read(p []byte) (n int, err error) {
	if len(p) < utf8.UTFMax {
		return 0, io.ErrShortBuffer
	}
	for n+utf8.UTFMax <= len(p) {
		b, err := s.from.ReadByte()
		if err != nil {
			return n, err
		}
		r, is := s.table[b]
		if !is {
			r = rune(b)
		}
		n += utf8.EncodeRune(p[n:], r)
	}
	return n, nil
}

// byteOrder returns the byte order of a text in UTF-16, by its first character, which is a byte order
// mark or '<'. Nil: it is not UTF-16.
func byteOrder(text string) binary.ByteOrder {
	switch {
	case strings.HasPrefix(text, "\xfe\xff"), strings.HasPrefix(text, "\x00<"):
		return binary.BigEndian
	case strings.HasPrefix(text, "\xff\xfe"), strings.HasPrefix(text, "<\x00"):
		return binary.LittleEndian
	}
	return nil
}

// fromUTF16 converts a text in UTF-16 to UTF-8, and returns any other text unchanged.
func fromUTF16(text string) (string, error) {
	order := byteOrder(text)
	if order == nil {
		return text, nil
	}
	if len(text)%2 != 0 {
		return "", invalid("line 1: the document is UTF-16 and is cut off, as strings with zero bytes are in this protocol; write it in UTF-8")
	}
	units := make([]uint16, len(text)/2)
	for i := range units {
		units[i] = order.Uint16([]byte(text[2*i : 2*i+2]))
	}
	return string(utf16.Decode(units)), nil
}
