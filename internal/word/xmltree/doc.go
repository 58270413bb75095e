// Package xmltree is XML as Lodge reads and writes it: documents parsed into
// bounded trees, values and trees printed the way libvirt prints them, and
// trees compared to find what was lost on the way to understanding.
//
// Documents come from clients, who are not trusted: Parse bounds size, depth
// and counts before and while it reads, and takes no document type and no
// entities but the five of XML. What belongs here: anything that is true of
// every document, whatever it describes. What does not: the meaning of any
// element.
package xmltree
