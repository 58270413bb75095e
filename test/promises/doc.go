// Package promises holds SPECIFICATION.md to the tests that say which promises they hold.
package promises
