package qemucaps

import "strings"

// Signature is what x86 processors are numbered by.
type Signature struct{ Family, Model, Stepping int }

// sales are the signatures under which processors were sold that QEMU knows by one
// signature alone. The first that fits a model's name counts.
var sales = []struct {
	prefix     string
	family     int
	models     []int
	from, till int // steppings; 0, 0: all
}{
	{"Conroe", 6, []int{15, 22}, 0, 0},
	{"Penryn", 6, []int{23, 29}, 0, 0},
	{"Nehalem", 6, []int{26, 30, 31, 46}, 0, 0},
	{"Westmere", 6, []int{37, 44, 47}, 0, 0},
	{"SandyBridge", 6, []int{42, 45}, 0, 0},
	{"IvyBridge", 6, []int{58, 62}, 0, 0},
	{"Haswell", 6, []int{60, 63, 69, 70}, 0, 0},
	{"Broadwell", 6, []int{61, 71, 79, 86}, 0, 0},
	{"Skylake-Client", 6, []int{78, 94, 142, 158}, 0, 0},
	{"Skylake-Server", 6, []int{85}, 0, 4},
	{"Cascadelake-Server", 6, []int{85}, 5, 7},
	{"Cooperlake", 6, []int{85}, 10, 11},
	{"Icelake-Client", 6, []int{125, 126}, 0, 0},
	{"Icelake-Server", 6, []int{106, 108}, 0, 0},
	{"Snowridge", 6, []int{134}, 0, 0},
}

// sold reports whether processors of a signature are sold as a model, which QEMU
// gives the signature s.
func (s Signature) sold(model string, as Signature) bool {
	for _, sale := range sales {
		if !strings.HasPrefix(model, sale.prefix) {
			continue
		}
		for _, number := range sale.models {
			if as.Family == sale.family && as.Model == number {
				return sale.till == 0 || as.Stepping >= sale.from && as.Stepping <= sale.till
			}
		}
		return false
	}
	return s.Family == as.Family && s.Model == as.Model
}
