// Package law holds tests of the house itself: that the rooms import each other
// only as docs/design.md says.
package law
