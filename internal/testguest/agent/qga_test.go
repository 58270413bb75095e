package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func ask(t *testing.T, q *qga, request string) (result json.RawMessage, class string) {
	t.Helper()
	var reply struct {
		Return json.RawMessage `json:"return"`
		Error  *qgaError       `json:"error"`
	}
	if err := json.Unmarshal(bytes.TrimPrefix(q.answer([]byte(request)), []byte{0xFF}), &reply); err != nil {
		t.Fatalf("%s: %v", request, err)
	}
	if reply.Error != nil {
		return nil, reply.Error.Class
	}
	return reply.Return, ""
}

func TestAgent_Protocol(t *testing.T) {
	q := &qga{guest: &guest{}, running: map[int]*program{}}
	for _, c := range []struct{ request, want, class string }{
		{`{"execute":"guest-sync","arguments":{"id":77}}`, `77`, ""},
		{"half a request\xff" + `{"execute":"guest-sync-delimited","arguments":{"id":9007199254740993}}`, `9007199254740993`, ""},
		{`{"execute":"guest-ping"}`, `{}`, ""},
		{`{"execute":"guest-fsfreeze-status"}`, `"thawed"`, ""},
		{`{"execute":"guest-fsfreeze-thaw"}`, `0`, ""},
		{`{"execute":"guest-get-users"}`, `[]`, ""},
		{`{"execute":"guest-wish"}`, "", "CommandNotFound"},
		{`{"execute":`, "", "GenericError"},
		{`{"execute":"guest-shutdown","arguments":{"mode":"explode"}}`, "", "GenericError"},
		{`{"execute":"guest-exec-status","arguments":{"pid":12}}`, "", "GenericError"},
		{`{"execute":"guest-exec","arguments":{"path":"no-such-program"}}`, "", "GenericError"},
	} {
		got, class := ask(t, q, c.request)
		if string(got) != c.want || class != c.class {
			t.Errorf("%q: got %s %s, want %s %s", c.request, got, class, c.want, c.class)
		}
	}
}

func TestSyncDelimited_StartsWithMark(t *testing.T) {
	q := &qga{guest: &guest{}}
	reply := q.answer([]byte(`{"execute":"guest-sync-delimited","arguments":{"id":1}}`))
	if len(reply) == 0 || reply[0] != 0xFF {
		t.Fatalf("reply %q does not start with the byte that hosts wait for", reply)
	}
	if got := q.answer([]byte("  \r")); got != nil {
		t.Fatalf("an empty line got %q", got)
	}
}

func TestGuestInfo_ListsServedCommands(t *testing.T) {
	q := &qga{guest: &guest{}}
	info, _ := ask(t, q, `{"execute":"guest-info"}`)
	for name := range qgaCommands {
		if !strings.Contains(string(info), `"`+name+`"`) {
			t.Errorf("guest-info does not list %s", name)
		}
	}
}

func TestLines_Cut(t *testing.T) {
	first, rest, found := cutLine([]byte("one\r\ntwo"))
	if string(first) != "one" || string(rest) != "two" || !found {
		t.Fatalf("got %q, %q, %v", first, rest, found)
	}
	if _, _, found := cutLine([]byte("half")); found {
		t.Fatal("half a line was taken for a whole one")
	}
}
