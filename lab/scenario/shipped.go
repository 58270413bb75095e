package scenario

import (
	"embed"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

//go:embed shipped/*.yaml
var shipped embed.FS

// Names lists the scenarios that ship.
func Names() []string {
	files, _ := shipped.ReadDir("shipped")
	var all []string
	for _, f := range files {
		all = append(all, strings.TrimSuffix(f.Name(), ".yaml"))
	}
	return all
}

// Shipped reads one of them. Its profiles are not worked out, which takes seconds of
// a large one: that they are plans is tested.
func Shipped(name string) (*Scenario, error) {
	text, err := shipped.ReadFile("shipped/" + name + ".yaml")
	if err != nil {
		return nil, fault.New(fault.NotFound, fault.Config, "there is no scenario %q: %s ship; name a file (./%s.yaml) for one of your own", name, strings.Join(Names(), ", "), name)
	}
	s, err := parse(text)
	return s, fault.Wrap(err, fault.Invalid, fault.Config, "cannot read the scenario %s", name)
}
