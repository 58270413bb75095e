package fleet

import (
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Bounds of a selector's text.
const (
	maxSelector = 4096
	maxTerms    = 32
)

// A Selector selects guests. Its text is one or more terms joined by commas; a
// guest must meet all of them:
//
//	web-*              the name; '*' matches any text, '?' one character
//	name=GLOB          the same, for names that contain '=' or are "all"
//	uuid=UUID
//	state=STATE        running, paused, shutoff, crashed, ...; active or inactive
//	label=NAME[:GLOB]  has the label, with a value that matches
//	tile=SET[/NUMBER]  belongs to a tile; both are globs
//	pool=GLOB          has a disk in a storage pool
//	autostart=yes|no   persistent=yes|no   saved=yes|no
//	all                every guest
//
// A '!' before a term negates it. Several selectors select what any of them selects.
type Selector struct {
	text  string
	terms []term
}

// term is one condition.
type term struct {
	key    string
	not    bool
	name   string // name of a label
	value  glob
	states []domain.State // for key state
	yes    bool           // for keys with yes or no
}

// The keys of terms; allGuests is the term "all".
const (
	byName       = "name"
	byUUID       = "uuid"
	byState      = "state"
	byLabel      = "label"
	byTile       = "tile"
	byPool       = "pool"
	byAutostart  = "autostart"
	byPersistent = "persistent"
	bySaved      = "saved"
	allGuests    = "all"
)

const allowedTerms = "a name glob such as web-*, all, or one of name=, uuid=, state=, label=, tile=, pool=, autostart=, persistent=, saved="

// stateNames are the names of states in selectors.
var stateNames = map[string][]domain.State{
	"running":      {domain.Running},
	"blocked":      {domain.Blocked},
	"paused":       {domain.Paused},
	"shuttingdown": {domain.ShuttingDown},
	"shutoff":      {domain.ShutOff},
	"crashed":      {domain.Crashed},
	"pmsuspended":  {domain.PMSuspended},
	"active":       {domain.Running, domain.Blocked, domain.Paused, domain.ShuttingDown, domain.PMSuspended},
	"inactive":     {domain.ShutOff, domain.Crashed},
}

// ParseSelector parses a selector.
func ParseSelector(text string) (Selector, error) {
	if len(text) > maxSelector {
		return Selector{}, fault.New(fault.Invalid, fault.Call, "a selector of %d bytes is too long; the maximum is %d", len(text), maxSelector)
	}
	if strings.TrimSpace(text) == "" {
		return Selector{}, fault.New(fault.Invalid, fault.Call, "a selector is empty; give %s", allowedTerms)
	}
	words := strings.Split(text, ",")
	if len(words) > maxTerms {
		return Selector{}, fault.New(fault.Invalid, fault.Call, "a selector of %d terms is too long; the maximum is %d", len(words), maxTerms)
	}
	s := Selector{text: text}
	for _, word := range words {
		t, err := parseTerm(strings.TrimSpace(word))
		if err != nil {
			return Selector{}, fault.Wrap(err, fault.Invalid, fault.Call, "selector %q: term %q", text, strings.TrimSpace(word))
		}
		s.terms = append(s.terms, t)
	}
	return s, nil
}

// String returns the selector's text.
func (s Selector) String() string { return s.text }

func parseTerm(word string) (term, error) {
	word, not := strings.CutPrefix(word, "!")
	word = strings.TrimSpace(word)
	key, value, keyed := strings.Cut(word, "=")
	t := term{key: key, not: not, value: glob(value)}
	switch {
	case word == "":
		return term{}, wrongTerm("is empty; give %s", allowedTerms)
	case word == allGuests:
		return t, nil
	case !keyed:
		return term{key: byName, not: not, value: glob(word)}, nil
	case value == "":
		return term{}, wrongTerm("has no value after %s=", key)
	}
	return t.parseValue()
}

// parseValue parses the value of a term by its key.
func (t term) parseValue() (term, error) {
	value := string(t.value)
	switch t.key {
	case byName, byPool:
	case byUUID:
		id, err := uuid.Parse(value)
		if err != nil {
			return term{}, wrongTerm("is no UUID")
		}
		t.value = glob(id.String())
	case byState:
		if t.states = stateNames[strings.ToLower(value)]; t.states == nil {
			return term{}, wrongTerm("is no state; states are running, paused, shutoff, crashed, shuttingdown, blocked, pmsuspended, active and inactive")
		}
	case byLabel:
		name, wanted, valued := strings.Cut(value, ":")
		if err := checkLabelName(name); err != nil {
			return term{}, err
		}
		if t.name, t.value = name, glob(wanted); !valued {
			t.value = "*"
		}
	case byTile:
		if strings.Count(value, "/") > 1 {
			return term{}, wrongTerm("is no tile; say SET, SET/NUMBER or SET/*")
		}
		if !strings.Contains(value, "/") {
			t.value += "/*"
		}
	case byAutostart, byPersistent, bySaved:
		if value != "yes" && value != "no" {
			return term{}, wrongTerm("has to be yes or no")
		}
		t.yes = value == "yes"
	default:
		return term{}, wrongTerm("has an unknown key %q; give %s", t.key, allowedTerms)
	}
	return t, nil
}

func wrongTerm(format string, args ...any) error {
	return fault.New(fault.Invalid, fault.Call, format, args...)
}

// matches says whether a guest is selected. If poolsOf is not nil, it lists the pools of a disk's file.
func (s Selector) matches(v *guest.View, labels Labels, poolsOf func(path string) []string) bool {
	for _, t := range s.terms {
		if t.holds(v, labels, poolsOf) == t.not {
			return false
		}
	}
	return len(s.terms) > 0
}

func (t term) holds(v *guest.View, labels Labels, poolsOf func(string) []string) bool {
	switch t.key {
	case allGuests:
		return true
	case byName:
		return t.value.matches(v.Name)
	case byUUID:
		return string(t.value) == v.UUID
	case byState:
		return slices.Contains(t.states, v.State)
	case byLabel:
		value, has := labels[t.name]
		return has && t.value.matches(value)
	case byTile:
		tile, has := labels[tileLabel]
		return has && t.value.matches(tile)
	case byPool:
		return t.inPool(v.Current(), poolsOf)
	case byAutostart:
		return v.Autostart == t.yes
	case byPersistent:
		return v.Persistent == t.yes
	case bySaved:
		return v.ManagedSave == t.yes
	}
	return false
}

// inPool looks for a disk in a pool that matches the term.
func (t term) inPool(d *domain.Definition, poolsOf func(string) []string) bool {
	if d == nil {
		return false
	}
	for _, disk := range d.Devices.Disks {
		switch {
		case disk.Source == nil:
		case disk.Source.Volume != nil:
			if t.value.matches(disk.Source.Volume.Pool) {
				return true
			}
		case poolsOf != nil:
			if slices.ContainsFunc(poolsOf(disk.Source.Path()), t.value.matches) {
				return true
			}
		}
	}
	return false
}

// exactName returns the name of the one guest that a selector exactName exactly.
func (s Selector) exactName() (string, bool) {
	for _, t := range s.terms {
		if t.key == byName && !t.not && t.value.literal() {
			return string(t.value), true
		}
	}
	return "", false
}

// needsPools says that the selector depends on pools.
func (s Selector) needsPools() bool {
	return slices.ContainsFunc(s.terms, func(t term) bool { return t.key == byPool })
}

// NeedsState says that the selector depends on more than a guest's name, UUID, labels and tile, that is, on
// state that changes often.
func (s Selector) NeedsState() bool {
	return slices.ContainsFunc(s.terms, func(t term) bool {
		switch t.key {
		case byName, byUUID, byLabel, byTile, allGuests:
			return false
		}
		return true
	})
}

// NeedsLabels says that the selector depends on labels. The tile is one of them.
func (s Selector) NeedsLabels() bool {
	return slices.ContainsFunc(s.terms, func(t term) bool { return t.key == byLabel || t.key == byTile })
}

// Matches says whether a guest matches a selector without terms on pools.
func (s Selector) Matches(m Member) bool { return s.matches(m.View, m.Labels, nil) }
