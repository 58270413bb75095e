package api

import (
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxItems bounds the fields and the members of lists and maps in a client's message. An empty one takes two
// bytes on the wire and dozens in memory, so a bound on bytes does not bound memory.
const maxItems = 1 << 16

// codecs returns Connect's codecs with a check before parsing.
func codecs() []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithCodec(binaryCodec{}), connect.WithCodec(jsonCodec{"json"}), connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
	}
}

type binaryCodec struct{}

func (binaryCodec) Name() string { return "proto" }

func (c binaryCodec) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

func (binaryCodec) MarshalAppend(b []byte, message any) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(b, message.(proto.Message))
}

func (binaryCodec) Unmarshal(b []byte, message any) error {
	m := message.(proto.Message)
	if err := countBinary(b, m.ProtoReflect().Descriptor(), new(int)); err != nil {
		return err
	}
	return proto.Unmarshal(b, m)
}

type jsonCodec struct{ name string }

func (c jsonCodec) Name() string { return c.name }

func (c jsonCodec) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

func (jsonCodec) MarshalAppend(b []byte, message any) ([]byte, error) {
	return protojson.MarshalOptions{}.MarshalAppend(b, message.(proto.Message))
}

func (jsonCodec) Unmarshal(b []byte, message any) error {
	if err := countJSON(b); err != nil {
		return err
	}
	// Fields of newer clients are ignored, as in the binary form.
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, message.(proto.Message))
}

var errTooManyItems = fmt.Errorf("a message has more than %d fields and list members", maxItems)

// countBinary counts the fields of a message and of the messages in it.
func countBinary(b []byte, d protoreflect.MessageDescriptor, counted *int) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		value := b[n:]
		n = protowire.ConsumeFieldValue(number, kind, value)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b, value = value[n:], value[:n]
		if *counted++; *counted > maxItems {
			return errTooManyItems
		}
		field := d.Fields().ByNumber(number)
		if kind != protowire.BytesType || field == nil {
			continue // unknown fields are kept unparsed
		}
		inner, _ := protowire.ConsumeBytes(value)
		switch {
		case field.Message() != nil:
			if err := countBinary(inner, field.Message(), counted); err != nil {
				return err
			}
		case field.IsList() && field.Kind() != protoreflect.StringKind && field.Kind() != protoreflect.BytesKind:
			*counted += len(inner) // packed numbers have at least one byte each
		}
	}
	return nil
}

// countJSON counts the values between commas, colons and brackets outside of strings.
func countJSON(b []byte) error {
	counted, inText := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case inText:
		case c == ',' || c == '[' || c == '{':
			if counted++; counted > maxItems {
				return errTooManyItems
			}
		}
	}
	return nil
}
