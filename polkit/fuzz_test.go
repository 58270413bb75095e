package polkit

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/godbus/dbus/v5"
)

// FuzzAnswer reads polkit's answer as it comes over the bus: nobody comes in by one
// that is not whole, nor by one of another shape.
func FuzzAnswer(f *testing.F) {
	for _, v := range []any{verdict{Authorized: true}, verdict{Challenge: true, Details: map[string]string{"polkit.dismissed": "true"}}, "yes", true, []string{"a"}} {
		m := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldReplySerial: dbus.MakeVariant(uint32(1)), dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(v)),
		}, Body: []any{v}}
		var wire bytes.Buffer
		if err := m.EncodeTo(&wire, binary.LittleEndian); err != nil {
			f.Fatal(err)
		}
		f.Add(wire.Bytes())
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		m, err := dbus.DecodeMessage(bytes.NewReader(wire))
		if err != nil {
			return
		}
		var v verdict
		if dbus.Store(m.Body, &v) != nil {
			return
		}
		if s, _ := m.Headers[dbus.FieldSignature].Value().(dbus.Signature); s.String() != "(bba{ss})" {
			t.Fatalf("an answer of the shape %s is %+v", s, v)
		}
	})
}
