package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// printJSON writes a message as one line, in the words of the API's own JSON.
func printJSON(w io.Writer, m proto.Message) error {
	text, err := protojson.Marshal(m)
	if err != nil {
		return err
	}
	var line bytes.Buffer // protojson varies its spaces on purpose
	if err := json.Compact(&line, text); err != nil {
		return err
	}
	line.WriteByte('\n')
	_, err = io.WriteString(w, steerless.Replace(line.String()))
	return err
}

// steerless writes what JSON may hold as it is, and what steers some terminals, as JSON's numbers.
var steerless = func() *strings.Replacer {
	var pairs []string
	for r := rune(0x7f); r <= 0x9f; r++ {
		pairs = append(pairs, string(r), fmt.Sprintf("\\u%04x", r))
	}
	return strings.NewReplacer(pairs...)
}()
