package qemuprobe

import (
	"context"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
)

// askCPUs asks the questions that depend on the accelerator QEMU runs with.
func (a Answers) askCPUs(ctx context.Context, s *qmp.Session, accelerator string) error {
	if err := a.ask(ctx, s, "query-cpu-definitions", nil); err != nil {
		return err
	}
	models, err := a.models()
	if err != nil {
		return err
	}
	names := []string{qemucaps.Accelerator{Name: accelerator}.BestModel()}
	for _, m := range models {
		if m.HasStableName() {
			names = append(names, m.Name)
		}
	}
	for _, name := range names {
		if err := a.ask(ctx, s, "query-cpu-model-expansion", expansionOf(name)); err != nil {
			return err
		}
	}
	return nil
}

func expansionOf(model string) arguments {
	return arguments{"type": "static", "model": arguments{"name": model}}
}

func (a Answers) models() ([]qemucaps.CPUModel, error) {
	var list []struct {
		Name       string
		TypeName   string
		AliasOf    string    `json:"alias-of"`
		Missing    *[]string `json:"unavailable-features"`
		Deprecated bool
		Static     bool
		Migratable bool `json:"migration-safe"`
	}
	err := a.get(&list, "query-cpu-definitions", nil)
	models := make([]qemucaps.CPUModel, 0, len(list))
	for _, m := range list {
		model := qemucaps.CPUModel{
			Name: m.Name, TypeName: m.TypeName, AliasOf: m.AliasOf,
			Deprecated: m.Deprecated, Static: m.Static, Migratable: m.Migratable,
		}
		if m.Missing != nil {
			model.Missing = slices.Compact(slices.Sorted(slices.Values(*m.Missing)))
			model.Usable = len(model.Missing) == 0
		}
		models = append(models, model)
	}
	slices.SortFunc(models, func(a, b qemucaps.CPUModel) int { return strings.Compare(a.Name, b.Name) })
	return models, err
}

// isCandidate reports whether a model may describe the host: a usable one with
// a stable name. qemu64 and its like describe no real processor.
func isCandidate(m qemucaps.CPUModel) bool {
	synthetic := []string{"qemu32", "qemu64", "kvm32", "kvm64"}
	return m.Usable && m.HasStableName() && !slices.Contains(synthetic, m.Name)
}

// expansion is an expanded model: its features and the processor that it describes.
type expansion struct {
	name      string
	vendor    string
	signature qemucaps.Signature
	features  map[string]bool // those it has
	names     map[string]bool // of all features there are
}

// expand reads an expansion; a model that QEMU would not expand has no features.
func (a Answers) expand(name string) (expansion, error) {
	var answer struct {
		Model struct{ Props map[string]any }
	}
	err := a.get(&answer, "query-cpu-model-expansion", expansionOf(name))
	e := expansion{name: name, features: make(map[string]bool), names: make(map[string]bool)}
	for name, value := range answer.Model.Props {
		switch v := value.(type) {
		case bool:
			e.names[name] = true
			if v {
				e.features[name] = true
			}
		case string:
			if name == "vendor" {
				e.vendor = v
			}
		case float64:
			switch name {
			case "family":
				e.signature.Family = int(v)
			case "model":
				e.signature.Model = int(v)
			case "stepping":
				e.signature.Stepping = int(v)
			}
		}
	}
	return e, err
}

// FillCPUs adds the CPU models and features of the accelerator that QEMU ran with.
func (a Answers) FillCPUs(acc *qemucaps.Accelerator) error {
	var err error
	if acc.Models, err = a.models(); err != nil {
		return err
	}
	host, err := a.expand(acc.BestModel())
	if err != nil {
		return err
	}
	acc.HostModel = qemucaps.HostModel{
		Vendor: host.vendor, Signature: host.signature, Features: sortedKeys(host.features),
	}
	acc.Features = sortedKeys(host.names)
	var best expansion
	for i, m := range acc.Models {
		if !m.HasStableName() {
			continue
		}
		e, err := a.expand(m.Name)
		if err != nil {
			return err
		}
		acc.Models[i].Features, acc.Models[i].Signature = sortedKeys(e.features), e.signature
		if isCandidate(m) && len(e.features) > 0 && e.vendor == host.vendor && (acc.HostModel.Base == "" || isCloser(host, e, best)) {
			acc.HostModel.Base, best = m.Name, e
		}
	}
	if acc.HostModel.Base != "" {
		acc.HostModel.Added = sortedKeys(without(host.features, best.features))
		acc.HostModel.Removed = sortedKeys(without(best.features, host.features))
	}
	return nil
}

// isCloser reports whether model a describes the host better than b does: one with
// the host's signature first, then the fewest features to mention.
func isCloser(host, a, b expansion) bool {
	same := func(e expansion) bool {
		return qemucaps.CPUDefinition{Name: e.name, Signature: e.signature}.IsSoldAs(host.signature)
	}
	if same(a) != same(b) {
		return same(a)
	}
	return distance(host, a) < distance(host, b)
}

func distance(host, e expansion) int {
	return len(without(host.features, e.features)) + len(without(e.features, host.features))
}

func without(all, some map[string]bool) map[string]bool {
	rest := make(map[string]bool)
	for name := range all {
		if !some[name] {
			rest[name] = true
		}
	}
	return rest
}

func sortedKeys(set map[string]bool) []string {
	keys := make([]string, 0, len(set))
	for name := range set {
		keys = append(keys, name)
	}
	slices.Sort(keys)
	return keys
}
