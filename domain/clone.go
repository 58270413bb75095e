package domain

import (
	"reflect"

	"github.com/lodge-kvm/lodge/topology"
)

// Clone gives a deep copy, so that a change to it cannot be seen through the
// original. A published definition is never changed: clone, change, publish.
func (d *Definition) Clone() *Definition {
	return deepCopy(reflect.ValueOf(d)).Interface().(*Definition)
}

// shared are the types whose values are immutable and may stay shared.
var shared = reflect.TypeFor[topology.CPUSet]()

// deepCopy walks by reflection: the model is wide and flat, and a
// hand-written copy would forget the next field that somebody adds.
func deepCopy(v reflect.Value) reflect.Value {
	if v.Type() == shared {
		return v
	}
	c := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			c.Set(reflect.New(v.Type().Elem()))
			c.Elem().Set(deepCopy(v.Elem()))
		}
	case reflect.Interface: // device.Address: comparable values, no pointers inside
		c.Set(v)
	case reflect.Struct:
		for i := range v.NumField() {
			c.Field(i).Set(deepCopy(v.Field(i)))
		}
	case reflect.Slice:
		if !v.IsNil() {
			c.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
			for i := range v.Len() {
				c.Index(i).Set(deepCopy(v.Index(i)))
			}
		}
	case reflect.Map:
		if !v.IsNil() {
			c.Set(reflect.MakeMapWithSize(v.Type(), v.Len()))
			for _, k := range v.MapKeys() {
				c.SetMapIndex(k, deepCopy(v.MapIndex(k)))
			}
		}
	default:
		c.Set(v)
	}
	return c
}
