// Package promises holds SPECIFICATION.md to the tests that it names.
package promises
