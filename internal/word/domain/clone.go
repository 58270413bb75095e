package domain

import (
	"reflect"
	"sync"

	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// Clone returns a deep copy, so that a change to it cannot be seen through the
// original. A published definition is never changed: clone, change, publish.
func (d *Definition) Clone() *Definition {
	c := *d
	unshare(reflect.ValueOf(&c).Elem())
	return &c
}

// unshared reports whether values of a type hold nothing that can change: immutable ones,
// and device.Address, which is an interface of comparable values.
func unshared(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		return t == reflect.TypeFor[topology.CPUSet]() || len(sharing(t)) == 0
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return false
	case reflect.Array:
		return unshared(t.Elem())
	default:
		return true
	}
}

// sharings caches the results of sharing, because a definition is cloned at each
// definition, change and start of a guest.
var sharings sync.Map // reflect.Type to []int

// sharing returns the fields of a struct that a shallow copy shares with the original.
func sharing(t reflect.Type) []int {
	if known, ok := sharings.Load(t); ok {
		return known.([]int)
	}
	var fields []int
	for i := range t.NumField() {
		if !unshared(t.Field(i).Type) {
			fields = append(fields, i)
		}
	}
	sharings.Store(t, fields)
	return fields
}

// unshare turns a settable shallow copy of a value into a deep one. It walks
// by reflection: the model is wide and flat, and a hand-written copy would miss
// fields that are added later.
func unshare(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		c := reflect.New(v.Type().Elem())
		c.Elem().Set(v.Elem())
		unshare(c.Elem())
		v.Set(c)
	case reflect.Struct:
		if unshared(v.Type()) {
			return
		}
		for _, i := range sharing(v.Type()) {
			unshare(v.Field(i))
		}
	case reflect.Slice:
		unshareSlice(v)
	case reflect.Map:
		unshareMap(v)
	}
}

func unshareSlice(v reflect.Value) {
	if v.IsNil() {
		return
	}
	c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
	reflect.Copy(c, v)
	if !unshared(v.Type().Elem()) {
		for i := range c.Len() {
			unshare(c.Index(i))
		}
	}
	v.Set(c)
}

func unshareMap(v reflect.Value) {
	if v.IsNil() {
		return
	}
	c := reflect.MakeMapWithSize(v.Type(), v.Len())
	for entries := v.MapRange(); entries.Next(); {
		value := reflect.New(v.Type().Elem()).Elem()
		value.Set(entries.Value())
		unshare(value)
		c.SetMapIndex(entries.Key(), value)
	}
	v.Set(c)
}
