package polkit

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/godbus/dbus/v5"
)

// FuzzAnswer sends answers of any shape, as the bus would pass them on. The bus rejects
// bytes that are no D-Bus message. An answer in
// another shape than polkit's must not admit a client.
func FuzzAnswer(f *testing.F) {
	for shape := range uint8(6) {
		f.Add(shape, true, false, "polkit.dismissed", "true")
	}
	f.Fuzz(func(t *testing.T, shape uint8, authorized, challenge bool, key, value string) {
		details := map[string]string{key: value}
		answers := []any{
			verdict{authorized, challenge, details},
			authorized, value, details,
			[]bool{authorized, challenge},
			struct{ Authorized, Challenge, Details bool }{authorized, challenge, true},
		}
		answer := answers[int(shape)%len(answers)]
		m := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldReplySerial: dbus.MakeVariant(uint32(1)), dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(answer)),
		}, Body: []any{answer}}
		var wire bytes.Buffer
		if m.EncodeTo(&wire, binary.LittleEndian) != nil {
			return // not text
		}
		got, err := dbus.DecodeMessage(&wire)
		if err != nil {
			t.Fatal(err)
		}
		var v verdict
		err = dbus.Store(got.Body, &v)
		if polkits := int(shape)%len(answers) == 0; (err == nil) != polkits || polkits && (v.Authorized != authorized || v.Challenge != challenge || v.Details[key] != value) {
			t.Fatalf("%+v is %+v, %v", answer, v, err)
		}
	})
}
