// Package xmltree reads and writes XML for Lodge: it parses documents into
// bounded trees, prints values and trees the way libvirt prints them, and
// compares trees to find the parts that were not understood.
//
// Documents come from clients, which are not trusted. The bounds of Parse:
//
//	size                4 MiB (MaxSize), checked before anything is read
//	nodes, attributes   200,000 each; '<' and '=' are counted before anything is allocated
//	depth               256 elements (MaxDepth)
//	document type       refused; entities are the five of XML, and numbers
//	encoding            UTF-8, UTF-16 with a mark, and a few of one byte a character (encoding.go)
//	namespaces          a prefix that is not declared, and an attribute that comes twice, are refused
//
// This package holds the rules that apply to every document. It does not know the
// meaning of any element.
package xmltree
