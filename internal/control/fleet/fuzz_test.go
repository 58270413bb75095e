package fleet

import (
	"bytes"
	"encoding/json"
	"regexp"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// FuzzSettings parses settings. Accepted ones are within their bounds, and their marks are read back as
// written.
func FuzzSettings(f *testing.F) {
	for key, value := range map[string]string{
		"memory": "512MiB", "vcpus": "4", "autostart": "yes", "template": "no", "title": "a", "description": "b\nc", "priority": "-1000", "memory.shares": "2000", "memory.floor": "1GiB", "memory.mode": "advise", "after": "a, b,c", "label.app": "web",
		"label.tile": "a/1", "odd": "",
	} {
		f.Add(key, value)
	}
	f.Add("memory", "9223372036854775807KiB")
	v := &guest.View{Name: "web", Persistent: true, Inactive: &domain.Definition{Name: "web", Memory: 1 << 30, VCPUs: domain.VCPUs{Max: 2}}}
	f.Fuzz(func(t *testing.T, key, value string) {
		s, err := parseSettings(map[string]string{key: value})
		if err != nil {
			if fault.Is(err, fault.Internal) {
				t.Fatal(err)
			}
			return
		}
		if s.memory != nil && (*s.memory == 0 || *s.memory > 1<<63) || s.vcpus != nil && (*s.vcpus == 0 || *s.vcpus > 4095) {
			t.Fatalf("%s=%q is taken as %d bytes, %d processors", key, value, s.memory, s.vcpus)
		}
		marks, _, err := s.apply("web", emptyMarks)
		if err != nil {
			return
		}
		if _, err := s.changes(v, emptyMarks); err != nil && fault.Is(err, fault.Internal) {
			t.Fatal(err)
		}
		doc, err := marks.document()
		if err != nil {
			return // XML cannot hold it
		}
		metadata, err := xmltree.SetMetadataElement("", Namespace, prefix, doc)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ReadMarks(metadata)
		if err != nil {
			t.Fatalf("marks that %s=%q leaves cannot be read: %v\n%s", key, value, err, metadata)
		}
		if twice, err := again.document(); err != nil || twice != doc {
			t.Fatalf("%q is read again as %q, %v", doc, twice, err)
		}
	})
}

var hostLike = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// FuzzSeed makes the CD of a clone. The user's data are on it unchanged, and the host name is valid.
func FuzzSeed(f *testing.F) {
	f.Add("web-1", "#cloud-config\n{}\n", "version: 2\n")
	f.Add("-Wéb_", "", "\x00")
	f.Fuzz(func(t *testing.T, name, user, network string) {
		s := &Seed{UserData: user, NetworkConfig: network}
		q := CloneRequest{Source: "golden", Names: []string{name}, Seed: s}
		if err := q.check(); err != nil {
			if fault.Is(err, fault.Internal) {
				t.Fatal(err)
			}
			return
		}
		if got := hostName(name); !hostLike.MatchString(got) {
			t.Fatalf("%q becomes host %q", name, got)
		}
		disc, err := s.disc(name, "11111111-2222-3333-4444-555555555555", time.Unix(0, 0))
		if err != nil {
			t.Fatal(err)
		}
		if len(disc)%2048 != 0 || len(disc) > maxUserData+1<<20 || !bytes.Contains(disc, []byte(user)) || !bytes.Contains(disc, []byte(network)) {
			t.Fatalf("a disc of %d bytes, not with all that was given", len(disc))
		}
		quoted, err := json.Marshal(hostName(name))
		if err != nil || !bytes.Contains(disc, quoted) {
			t.Fatalf("the disc does not name the host %s", quoted)
		}
	})
}
