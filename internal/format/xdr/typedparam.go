package xdr

import (
	"fmt"
	"math"
)

// TypedKind is the type of a TypedValue, by its number on the wire.
type TypedKind int32

// The kinds of value.
const (
	KindInt    TypedKind = 1
	KindUint   TypedKind = 2
	KindInt64  TypedKind = 3
	KindUint64 TypedKind = 4
	KindDouble TypedKind = 5
	KindBool   TypedKind = 6
	KindString TypedKind = 7
)

var kindNames = [...]string{"none", "int", "uint", "int64", "uint64", "double", "bool", "string"}

func (k TypedKind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind(%d)", int32(k))
	}
	return kindNames[k]
}

// TypedParam is a named value, the form of statistics and tunables.
type TypedParam struct {
	Field string
	Value TypedValue
}

// TypedValue is a value of one of seven types. Make one with Int, Uint, ...;
// read it with the method of its kind. The zero value has no kind and cannot
// be put on the wire.
type TypedValue struct {
	kind TypedKind
	bits uint64
	text string
}

// Int makes a 32-bit signed value.
func Int(v int32) TypedValue { return TypedValue{kind: KindInt, bits: uint64(v)} }

// Uint makes a 32-bit unsigned value.
func Uint(v uint32) TypedValue { return TypedValue{kind: KindUint, bits: uint64(v)} }

// Int64 makes a 64-bit signed value.
func Int64(v int64) TypedValue { return TypedValue{kind: KindInt64, bits: uint64(v)} }

// Uint64 makes a 64-bit unsigned value.
func Uint64(v uint64) TypedValue { return TypedValue{kind: KindUint64, bits: v} }

// Double makes a floating-point value.
func Double(v float64) TypedValue { return TypedValue{kind: KindDouble, bits: math.Float64bits(v)} }

// Bool makes a truth value.
func Bool(v bool) TypedValue {
	if v {
		return TypedValue{kind: KindBool, bits: 1}
	}
	return TypedValue{kind: KindBool}
}

// String makes a text value.
func String(v string) TypedValue { return TypedValue{kind: KindString, text: v} }

// Kind is the value's type.
func (v TypedValue) Kind() TypedKind { return v.kind }

// Int is the number of a KindInt or KindInt64; check Kind first.
func (v TypedValue) Int() int64 { return int64(v.bits) }

// Uint is the number of a KindUint or KindUint64; check Kind first.
func (v TypedValue) Uint() uint64 { return v.bits }

// Double is the number of a KindDouble.
func (v TypedValue) Double() float64 { return math.Float64frombits(v.bits) }

// Bool is the truth of a KindBool.
func (v TypedValue) Bool() bool { return v.bits != 0 }

// Text is the text of a KindString.
func (v TypedValue) Text() string { return v.text }

// String shows the value in logs and tests.
func (v TypedValue) String() string {
	switch v.kind {
	case KindInt, KindInt64:
		return fmt.Sprint(v.Int())
	case KindUint, KindUint64:
		return fmt.Sprint(v.Uint())
	case KindDouble:
		return fmt.Sprint(v.Double())
	case KindBool:
		return fmt.Sprint(v.Bool())
	case KindString:
		return fmt.Sprintf("%q", v.text)
	}
	return v.kind.String()
}

func (p *TypedParam) encode(w *writer) {
	w.string("TypedParam.Field", p.Field)
	w.int32(int32(p.Value.kind))
	switch v := p.Value; v.kind {
	case KindInt, KindUint, KindBool:
		w.uint32(uint32(v.bits))
	case KindInt64, KindUint64, KindDouble:
		w.uint64(v.bits)
	case KindString:
		w.string("TypedParam.Value", v.text)
	default:
		w.fail("TypedParam.Value: %s has unknown type %d", p.Field, int32(v.kind))
	}
}

func (p *TypedParam) decode(r *Reader) {
	p.Field = r.String("TypedParam.Field", MaxString)
	switch kind := TypedKind(r.Int32("TypedParam.Type")); kind {
	case KindInt:
		p.Value = Int(r.Int32("TypedParam.Value"))
	case KindUint:
		p.Value = Uint(r.Uint32("TypedParam.Value"))
	case KindInt64:
		p.Value = Int64(r.Int64("TypedParam.Value"))
	case KindUint64:
		p.Value = Uint64(r.Uint64("TypedParam.Value"))
	case KindDouble:
		p.Value = Double(r.Float64("TypedParam.Value"))
	case KindBool:
		p.Value = Bool(r.Flag("TypedParam.Value"))
	case KindString:
		p.Value = String(r.String("TypedParam.Value", MaxString))
	default:
		r.fail("TypedParam.Type: %q has unknown type %d", p.Field, int32(kind))
	}
}
