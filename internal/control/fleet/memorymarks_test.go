package fleet

import (
	"testing"
)

// Settings of memory go to the marks and come back; an empty value resets one alone.
func TestSettings_MemoryMarks(t *testing.T) {
	was := &Marks{Labels: Labels{"app": "web"}, Memory: MemoryMarks{Shares: 500, Mode: "off"}}
	for _, c := range []struct {
		said map[string]string
		want MemoryMarks
	}{
		{map[string]string{"memory.shares": "2000", "memory.floor": "1536MiB", "memory.mode": "advise"}, MemoryMarks{2000, 1536 << 20, "advise"}},
		{map[string]string{"memory.floor": "2GiB"}, MemoryMarks{500, 2 << 30, "off"}},
		{map[string]string{"memory.shares": "", "memory.mode": ""}, MemoryMarks{}},
	} {
		s, err := parseSettings(c.said)
		if err != nil {
			t.Fatal(err)
		}
		is, changed, err := s.apply("g", was)
		if err != nil || !changed || is.Memory != c.want || is.Labels["app"] != "web" {
			t.Errorf("%v: %+v (changed %t), %v", c.said, is.Memory, changed, err)
		}
	}
	for key, value := range map[string]string{"memory.shares": "0", "memory.floor": "some", "memory.mode": "on", "memory.size": "1GiB"} {
		if _, err := parseSettings(map[string]string{key: value}); err == nil {
			t.Errorf("%s=%s is taken", key, value)
		}
	}
}
