package scenario

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Size is a number of bytes, written as 512MiB or 1.5GiB.
type Size uint64

// The units of a Size.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
)

var units = []struct {
	name string
	size Size
}{{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", 1}}

// ParseSize reads what String writes.
func ParseSize(text string) (Size, error) {
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || !(n >= 0) || n*float64(u.size) > math.MaxInt64 {
			break
		}
		return Size(n * float64(u.size)), nil
	}
	return 0, fmt.Errorf("%q is no size: 512MiB and 1.5GiB are", text)
}

// UnmarshalYAML reads a size.
func (s *Size) UnmarshalYAML(node *yaml.Node) (err error) {
	if *s, err = ParseSize(node.Value); err != nil || node.Kind != yaml.ScalarNode {
		return wrong(node.Line, "%q is no size: 512MiB and 1.5GiB are", node.Value)
	}
	return nil
}

func (s Size) String() string {
	for _, u := range units {
		if s >= u.size {
			return strconv.FormatFloat(math.Round(float64(s)/float64(u.size)*10)/10, 'f', -1, 64) + " " + u.name
		}
	}
	return "0 B"
}
