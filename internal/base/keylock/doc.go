// Package keylock locks by key: callers with one key take turns, callers with different keys do not meet.
package keylock
