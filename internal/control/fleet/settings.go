package fleet

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// settings are the values that verb set gives a guest; nil: not set.
type settings struct {
	memory             *uint64 // bytes
	vcpus              *uint
	autostart          *bool
	template           *bool
	title, description *string
	// The following settings are stored in the marks.
	priority *int
	after    *[]string
	labels   map[string]string // an empty value removes the label
	memoryMarks
}

// memoryMarks are the settings of MemoryMarks; a zero value resets one.
type memoryMarks struct {
	shares *int
	floor  *uint64
	mode   *MemoryMode
}

// parse parses one of the settings; known says that the key is one.
func (s *memoryMarks) parse(key, value string) (known bool, err error) {
	switch {
	case key == "memory.shares" && value == "":
		s.shares = new(0)
	case key == "memory.shares":
		s.shares, err = parsed(parseShares(value))
	case key == "memory.floor" && value == "":
		s.floor = new(uint64(0))
	case key == "memory.floor":
		s.floor, err = parsed(ParseSize(value))
	case key == "memory.mode" && value == "":
		s.mode = new(MemoryMode(""))
	case key == "memory.mode":
		s.mode, err = parsed(ParseMemoryMode(value))
	default:
		return false, nil
	}
	return true, err
}

// apply changes marks.
func (s *memoryMarks) apply(m *MemoryMarks) {
	if s.shares != nil {
		m.Shares = *s.shares
	}
	if s.floor != nil {
		m.Floor = *s.floor >> 10 << 10
	}
	if s.mode != nil {
		m.Mode = *s.mode
	}
}

const allowedSettings = "memory, memory.shares, memory.floor, memory.mode, vcpus, autostart, template, title, description, priority, after and label.NAME"

const labelKey = "label."

// parseSettings parses settings as a user writes them.
func parseSettings(said map[string]string) (*settings, error) {
	if len(said) == 0 {
		return nil, fault.New(fault.Invalid, fault.Call, "say what to set: %s", allowedSettings)
	}
	s := &settings{labels: map[string]string{}}
	for _, key := range slices.Sorted(maps.Keys(said)) {
		if err := s.parse(key, said[key]); err != nil {
			return nil, fault.Wrap(err, fault.Invalid, fault.Call, "cannot set %s", key)
		}
	}
	return s, nil
}

func (s *settings) parse(key, value string) (err error) {
	if known, err := s.memoryMarks.parse(key, value); known {
		return err
	}
	switch key {
	case "memory":
		s.memory, err = parsed(ParseSize(value))
	case "vcpus":
		var n uint64
		if n, err = strconv.ParseUint(value, 10, 12); err != nil || n == 0 {
			return wrongSetting("%q is not from 1 to 4095", value)
		}
		s.vcpus = new(uint(n))
	case "autostart":
		s.autostart, err = parsed(parseYes(value))
	case "template":
		s.template, err = parsed(parseYes(value))
	case "title":
		s.title, err = &value, new(domain.Definition).SetTitle(value)
	case "description":
		s.description = &value
	case "priority":
		s.priority, err = parsed(parsePriority(cmp.Or(value, "0")))
	case "after":
		s.after, err = parsed(parseAfter(value))
	default:
		name, isLabel := strings.CutPrefix(key, labelKey)
		switch {
		case !isLabel:
			return wrongSetting("no such setting; there are %s", allowedSettings)
		case name == tileLabel:
			return wrongSetting("guests become part of a tile only when the tile is created")
		}
		s.labels[name] = value
		err = checkLabel(name, value)
	}
	return err
}

func wrongSetting(format string, args ...any) error {
	return fault.New(fault.Invalid, fault.Call, format, args...)
}

func parsed[T any](value T, err error) (*T, error) { return &value, err }

func parseYes(text string) (bool, error) {
	if text != "yes" && text != "no" {
		return false, wrongSetting("%q is neither yes nor no", text)
	}
	return text == "yes", nil
}

// units are the units of sizes, in bytes.
var units = map[string]uint64{
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40,
}

// ParseSize parses a size with its unit into bytes.
func ParseSize(text string) (uint64, error) {
	digits := strings.TrimRight(text, "KMGTiB ")
	unit, known := units[strings.TrimSpace(text[len(digits):])]
	n, err := strconv.ParseUint(digits, 10, 64)
	if !known || err != nil || n == 0 || n > math.MaxInt64/unit {
		return 0, wrongSetting("%q is no size; write a number and KiB, MiB, GiB or TiB, as in 512MiB", text)
	}
	return n * unit, nil
}

// parseAfter parses names that are joined by commas.
func parseAfter(text string) ([]string, error) {
	var names []string
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name == "" || slices.Contains(names, name) {
			continue
		}
		if err := domain.CheckName(name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	if len(names) > maxAfter {
		return nil, wrongSetting("%d names are too many; at most %d", len(names), maxAfter)
	}
	return names, nil
}

// apply returns a guest's marks with the settings applied, and whether they changed.
func (s *settings) apply(name string, m *Marks) (*Marks, bool, error) {
	after := m.clone()
	if s.priority != nil {
		after.Priority = *s.priority
	}
	if s.after != nil {
		after.After = slices.Clone(*s.after)
	}
	for label, value := range s.labels {
		if value == "" {
			delete(after.Labels, label)
		} else {
			after.Labels[label] = value
		}
	}
	s.memoryMarks.apply(&after.Memory)
	if slices.Contains(after.After, name) {
		return nil, false, fault.New(fault.Invalid, fault.Metadata, "domain %q cannot depend on itself", name)
	}
	same := after.Priority == m.Priority && slices.Equal(after.After, m.After) && maps.Equal(after.Labels, m.Labels) && after.Memory == m.Memory
	return after, !same, after.check()
}

// settingChange is one setting that differs from the guest's state.
type settingChange struct {
	setting string
	// apply applies it; the note says when it takes effect.
	apply func(t *settingsChange) (note string, err error)
}

// changes returns the changes to make to a guest, in order.
func (s *settings) changes(v *guest.View, m *Marks) ([]settingChange, error) {
	var changes []settingChange
	add := func(what string, differs bool, do func(*settingsChange) (string, error)) {
		if differs {
			changes = append(changes, settingChange{what, do})
		}
	}
	_, differ, err := s.apply(v.Name, m)
	if err != nil {
		return nil, err
	}
	d := v.Current()
	if d == nil {
		return nil, fault.New(fault.NotFound, fault.Domain, "domain %q no longer exists", v.Name)
	}
	add("memory", s.memory != nil && anyDiffers(v, *s.memory, func(d *domain.Definition) uint64 { return d.CurrentMemory }) ||
		s.memory != nil && v.Inactive != nil && v.Inactive.Memory != *s.memory, (*settingsChange).memory)
	add("vcpus", s.vcpus != nil && anyDiffers(v, *s.vcpus, func(d *domain.Definition) uint { return d.VCPUs.Current }), (*settingsChange).vcpus)
	add("autostart", s.autostart != nil && v.Autostart != *s.autostart, (*settingsChange).autostart)
	add("template", s.template != nil && v.Template != *s.template, (*settingsChange).template)
	add("title", s.title != nil && anyDiffers(v, *s.title, func(d *domain.Definition) string { return d.Title }), (*settingsChange).title)
	add("description", s.description != nil && anyDiffers(v, *s.description, func(d *domain.Definition) string { return d.Description }), (*settingsChange).description)
	add("labels, priority, order or memory settings", differ, (*settingsChange).marks) // last, because a rule of access may depend on labels
	return changes, nil
}

// anyDiffers compares with the active and the stored definition.
func anyDiffers[T comparable](v *guest.View, want T, get func(*domain.Definition) T) bool {
	return v.Active != nil && get(v.Active) != want || v.Inactive != nil && get(v.Inactive) != want
}

// settingNames lists the names of the changed settings, for results.
func settingNames(changes []settingChange) string {
	words := make([]string, len(changes))
	for i, c := range changes {
		words[i] = c.setting
	}
	return strings.Join(words, ", ")
}
