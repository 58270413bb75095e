package fleet

import (
	"path"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

func TestSelector_Matches(t *testing.T) {
	v := &guest.View{
		Name: "web-1", UUID: "11111111-2222-3333-4444-555555555555", State: domain.Paused, Persistent: true, Autostart: true,
		Inactive: &domain.Definition{Devices: device.Set{Disks: []*device.Disk{
			{Source: nil},
			{Source: &device.DiskSource{Volume: &device.VolumeRef{Pool: "fast", Volume: "v"}}},
			{Source: &device.DiskSource{File: "/images/slow/x"}},
		}}},
	}
	labels := Labels{"app": "shop", "empty": "", "tile": "lab/12"}
	for text, want := range map[string]bool{
		"all": true, "!all": false, "web-1": true, "web-*": true, "w?b-1": true, "web": false, "*": true, "!web-*": false, " web-1 , all ": true,
		"name=web-1": true, "name=all": false, "uuid=11111111-2222-3333-4444-555555555555": true, "uuid=11111111222233334444555555555555": true,
		"uuid=21111111-2222-3333-4444-555555555555": false,
		"state=paused": true, "state=Running": false, "state=active": true, "state=inactive": false, "!state=shutoff": true,
		"label=app": true, "label=app:shop": true, "label=app:s*": true, "label=app:x": false, "label=other": false, "!label=other": true, "label=empty": true, "label=empty:?*": false,
		"tile=lab": true, "tile=lab/12": true, "tile=lab/1": false, "tile=l*/1?": true, "tile=other/*": false, "label=tile:lab/*": true,
		"pool=fast": true, "pool=sl*": true, "pool=none": false,
		"autostart=yes": true, "autostart=no": false, "persistent=yes": true, "saved=yes": false, "saved=no": true,
		"web-*,label=app,!state=running": true, "web-*,label=app,state=running": false,
	} {
		s, err := ParseSelector(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		poolsOf := func(p string) []string {
			if path.Dir(p) == "/images/slow" {
				return []string{"slow"}
			}
			return nil
		}
		if got := s.matches(v, labels, poolsOf); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	if (Selector{}).matches(v, labels, nil) {
		t.Error("no selector at all chooses somebody")
	}
}

func TestParseSelector_Invalid(t *testing.T) {
	for text, says := range map[string]string{
		"":                                   "empty",
		"  ":                                 "empty",
		"web,,db":                            `term "": is empty`,
		"web,":                               "is empty",
		"!":                                  "is empty",
		"color=red":                          `term "color=red": has an unknown key "color"; give a name glob`,
		"web,state=runing":                   `term "state=runing": is no state; states are running`,
		"state=":                             "has no value after state=",
		"uuid=1":                             "is no UUID",
		"autostart=true":                     "has to be yes or no",
		"tile=a/1/2":                         "is no tile",
		"label=a b":                          "letters, digits",
		"label=:x":                           "1 to 63",
		strings.Repeat("a", maxSelector+1):   "too long",
		strings.Repeat("a,", maxTerms) + "a": "33 terms",
	} {
		_, err := ParseSelector(text)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%.50s: got %v, want one that says %q", text, err, says)
		}
	}
}

// TestGlob_MatchesLikeRecursion compares the matcher with a plain recursion.
func TestGlob_MatchesLikeRecursion(t *testing.T) {
	var slow func(pattern, text string) bool
	slow = func(pattern, text string) bool {
		switch {
		case pattern == "":
			return text == ""
		case pattern[0] == '*':
			return slow(pattern[1:], text) || text != "" && slow(pattern, text[1:])
		case text == "":
			return false
		}
		return (pattern[0] == '?' || pattern[0] == text[0]) && slow(pattern[1:], text[1:])
	}
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*?]{0,8}`).Draw(t, "pattern")
		text := rapid.StringMatching(`[ab]{0,8}`).Draw(t, "text")
		if got, want := glob(pattern).matches(text), slow(pattern, text); got != want {
			t.Fatalf("%q matches %q: %v, want %v", pattern, text, got, want)
		}
	})
	if !glob("sch?ner*").matches("schöner Gast") {
		t.Error("a character is not a byte")
	}
}

func FuzzParseSelector(f *testing.F) {
	for _, text := range []string{
		"all", "web-*,!state=running", "label=a:b*,tile=x/1", "uuid=11111111-2222-3333-4444-555555555555", "a=b", "!!a",
		"state=paused,state=Active", "autostart=yes,persistent=no,!saved=yes", "pool=p*", "tile=x,tile=x/1/2", "label=team,label=a b,label=:x", "w?b,*,,", "autostart=true", "uuid=1",
	} {
		f.Add(text)
	}
	disk := &device.Disk{Source: &device.DiskSource{File: "/p/a"}}
	guests := []*guest.View{
		{Name: "web", UUID: "11111111-2222-3333-4444-555555555555", Inactive: &domain.Definition{}, State: domain.ShutOff},
		{Name: "web-1", State: domain.Running, Persistent: true, Autostart: true, ManagedSave: true, Active: &domain.Definition{Devices: device.Set{Disks: []*device.Disk{disk}}}},
	}
	labels := Labels{"team": "web", "a": "b", tileLabel: "x/1"}
	inPool := func(string) []string { return []string{"pool"} }
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSelector(text)
		if err != nil {
			return
		}
		again, err := ParseSelector(s.String())
		if err != nil || again.String() != s.String() {
			t.Fatalf("%q is read in two ways: %v", text, err)
		}
		for _, v := range guests {
			if again.matches(v, labels, inPool) != s.matches(v, labels, inPool) || again.matches(v, nil, nil) != s.matches(v, nil, nil) {
				t.Errorf("%q is read in two ways", text)
			}
		}
	})
}
