package schema_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/qmp/qmptest"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp/schema"
)

func TestSchema_Paths(t *testing.T) {
	s := qmptest.Schema(t)
	for path, want := range map[string]bool{
		"query-status":                                true,
		"STOP":                                        true,
		"blockdev-add/file/aio/io_uring":              true,
		"blockdev-add/file/aio/telepathy":             false,
		"blockdev-add/node-name":                      true,
		"netdev_add/tap/vhostfds":                     true,
		"netdev_add/vmnet-shared":                     false,
		"object-add/memory-backend-memfd/hugetlbsize": true,
		"chardev-add/backend/socket/data/server":      true,
		"set-numa-node":                               true,
		"query-status/":                               false,
		"no-such-command":                             false,
		"":                                            false,
		"str":                                         false, // a type is no command
		"migrate-set-capabilities/capabilities/capability/multifd": true,
	} {
		if got := s.Has(path); got != want {
			t.Errorf("Has(%q) = %v", path, got)
		}
	}
	if got := s.Values("netdev_add/type"); !slices.Contains(got, "tap") || slices.Contains(got, "id") {
		t.Errorf("netdev types %q", got)
	}
	if got := s.AnswerValues("query-display-options/type"); !slices.Contains(got, "none") {
		t.Errorf("display types %q", got)
	}
	if got := s.Values("balloon/value"); got != nil {
		t.Errorf("a number may be one of %q", got)
	}
	if !slices.Contains(s.Commands(), "device_add") || !slices.Contains(s.Events(), "SHUTDOWN") {
		t.Error("a command or an event is not listed")
	}
}

func TestSchema_Arguments(t *testing.T) {
	s := qmptest.Schema(t)
	for _, c := range []struct {
		command, args string
		ok            bool
	}{
		{"query-status", "", true},
		{"query-status", "{}", true},
		{"query-status", `{"x": 1}`, false},
		{"balloon", `{"value": 1073741824}`, true},
		{"balloon", `{"value": 1.5}`, false},
		{"balloon", `{"value": "1"}`, false},
		{"balloon", ``, false},
		{"balloon", `[]`, false},
		{"device_add", `{"driver": "virtio-blk-pci", "id": "d", "drive": "x", "queue-size": 256}`, true},
		{"device_add", `{"id": "d"}`, false},
		{"blockdev-add", `{"driver": "qcow2", "node-name": "n", "file": {"driver": "file", "filename": "/a"}}`, true},
		{"blockdev-add", `{"driver": "qcow2", "node-name": "n", "file": "other-node"}`, true},
		{"blockdev-add", `{"driver": "qcow2", "node-name": "n", "file": {"driver": "file", "filenam": "/a"}}`, false},
		{"blockdev-add", `{"driver": "raw", "node-name": "n", "filename": "/a"}`, false},
		{"blockdev-add", `{"driver": "qcow9"}`, false},
		{"send-key", `{"keys": [{"type": "qcode", "data": "a"}]}`, true},
		{"send-key", `{"keys": [{"type": "qcode", "data": "any"}]}`, false},
		{"send-key", `{"keys": {"type": "qcode", "data": "a"}}`, false},
		{"qom-set", `{"path": "/x", "property": "y", "value": [1, null, "z"]}`, true},
		{"fire", `{}`, false},
		{"balloon", `{`, false},
	} {
		if err := s.CheckArguments(c.command, []byte(c.args)); (err == nil) != c.ok {
			t.Errorf("%s %s: %v", c.command, c.args, err)
		}
	}
}

func TestSchema_AnswersAndEvents(t *testing.T) {
	s := qmptest.Schema(t)
	if err := s.CheckReturn("query-status", []byte(`{"status": "running"}`)); err != nil {
		t.Error(err)
	}
	if s.CheckReturn("query-status", []byte(`{"status": "happy"}`)) == nil {
		t.Error("an impossible answer passed")
	}
	if err := s.CheckEvent("STOP", nil); err != nil {
		t.Error(err)
	}
	if s.CheckEvent("SHUTDOWN", []byte(`{"guest": true}`)) == nil {
		t.Error("an event without its reason passed")
	}
	if s.CheckEvent("query-status", nil) == nil || s.CheckReturn("STOP", nil) == nil {
		t.Error("a command passed as an event, or an event as a command")
	}
}

func TestParse_Invalid(t *testing.T) {
	if _, err := schema.Parse([]byte(`{"a": 1}`)); err == nil {
		t.Error("no error")
	}
}

// TestHas_CyclicSchema is one that no QEMU has: questions end.
func TestHas_CyclicSchema(t *testing.T) {
	if _, err := schema.Parse([]byte("[null]")); err == nil {
		t.Error("an entry that is none is taken")
	}
	members := strings.Repeat(`{"type":"a"},`, 40)
	s, err := schema.Parse([]byte(`[{"name":"c","meta-type":"command","arg-type":"o","ret-type":"a"},{"name":"o","meta-type":"object","members":[{"name":"x","type":"a"}]},
		{"name":"a","meta-type":"alternate","members":[` + members + `{"type":"e"}]},{"name":"e","meta-type":"enum","values":["v"]}]`))
	if err != nil {
		t.Fatal(err)
	}
	if !s.Has("c/x/v") || s.Has("c/x/w") {
		t.Error("what the circle holds besides is not found")
	}
}
