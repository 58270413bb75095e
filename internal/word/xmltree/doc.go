// Package xmltree reads and writes XML for Lodge: it parses documents into
// bounded trees, prints values and trees the way libvirt prints them, and
// compares trees to find the parts that were not understood.
//
// Documents come from clients, which are not trusted: Parse bounds size, depth
// and counts before and while it reads. It accepts no document type and no
// entities but the five of XML. This package holds rules that are true of
// every document, whatever it describes. It does not know the meaning of any
// element.
package xmltree
