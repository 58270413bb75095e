package workload

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// kinds are the loads there are: what makes each of its configuration.
var kinds = map[string]func(config json.RawMessage) (Load, error){
	"bulk":             newBulk,
	"mix-cpu":          newMixCPU,
	"mix-disk":         newMixDisk,
	"oltp":             newOLTP,
	"oltp-check":       newOLTPCheck,
	"oltp-prepare":     newOLTPPrepare,
	"ping":             newPing,
	"shop":             newShop,
	"shop-check":       newShopCheck,
	"shop-prepare":     newShopPrepare,
	"sysbench":         newSysbench,
	"sysbench-prepare": newSysbenchPrepare,
	"varmail":          newVarmail,
	"web":              newWeb,
}

// Kinds names the loads there are, in order.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// New makes a load. A configuration with unknown fields, or one that cannot be
// run, is refused before anything is sent.
func New(kind string, config json.RawMessage) (Load, error) {
	build, known := kinds[kind]
	if !known {
		return nil, fault.New(fault.Invalid, fault.Config, "there is no load %q: there are %s", kind, strings.Join(Kinds(), ", "))
	}
	load, err := build(config)
	if err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.Config, "load %s", kind)
	}
	return load, nil
}

// AtOnce says whether a load tells at its end only how long its operations took: one
// that is stopped before has no times.
func AtOnce(kind string) bool { return kind == "sysbench" }
