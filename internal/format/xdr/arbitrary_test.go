package xdr_test

import (
	"math"
	"reflect"

	"pgregory.net/rapid"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// fill draws every field of the message that v is.
func fill(t *rapid.T, v reflect.Value) {
	switch v.Interface().(type) {
	case xdr.TypedValue:
		v.Set(reflect.ValueOf(drawValue(t)))
		return
	case []byte:
		if b := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "bytes"); len(b) > 0 {
			v.SetBytes(b)
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range v.Fields() {
			fill(t, f)
		}
	case reflect.Pointer:
		if rapid.Bool().Draw(t, "present") {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem())
		}
	case reflect.Slice:
		if n := rapid.IntRange(0, 5).Draw(t, "items"); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			fillItems(t, v)
		}
	case reflect.Array:
		fillItems(t, v)
	case reflect.String:
		v.SetString(rapid.StringN(0, 12, 40).Draw(t, "text"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int32:
		v.SetInt(int64(rapid.Int32().Draw(t, "int")))
	case reflect.Int64:
		v.SetInt(rapid.Int64().Draw(t, "hyper"))
	case reflect.Uint8:
		v.SetUint(uint64(rapid.Byte().Draw(t, "char")))
	case reflect.Uint16:
		v.SetUint(uint64(rapid.Uint16().Draw(t, "short")))
	case reflect.Uint32:
		v.SetUint(uint64(rapid.Uint32().Draw(t, "uint")))
	case reflect.Uint64:
		v.SetUint(rapid.Uint64().Draw(t, "uhyper"))
	default:
		t.Fatalf("no way to draw a %s", v.Type())
	}
}

func fillItems(t *rapid.T, v reflect.Value) {
	for i := range v.Len() {
		fill(t, v.Index(i))
	}
}

func drawValue(t *rapid.T) xdr.TypedValue {
	bits := rapid.Uint64().Draw(t, "value")
	switch rapid.IntRange(1, 7).Draw(t, "kind") {
	case 1:
		return xdr.Int(int32(bits))
	case 2:
		return xdr.Uint(uint32(bits))
	case 3:
		return xdr.Int64(int64(bits))
	case 4:
		return xdr.Uint64(bits)
	case 5:
		return xdr.Double(math.Float64frombits(bits))
	case 6:
		return xdr.Bool(bits&1 != 0)
	}
	return xdr.String(rapid.StringN(0, 12, 40).Draw(t, "text"))
}

// weight is the memory that a decoded message holds beside itself.
func weight(v reflect.Value) int {
	n := 0
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range v.Fields() {
			n += weight(f)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			n += int(v.Type().Elem().Size()) + weight(v.Elem())
		}
	case reflect.Slice:
		n += v.Cap() * int(v.Type().Elem().Size())
		for i := range v.Len() {
			n += weight(v.Index(i))
		}
	case reflect.String:
		n += v.Len()
	}
	return n
}
