package bare

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// handed turns the files that a process was handed as open descriptors (-add-fd,
// opened as /dev/fdset/N) back into their paths, which QEMU run bare opens by
// itself. A daemon says the path as what the descriptor is called (opaque).
func handed(args []string) ([]string, error) {
	var kept []string
	paths := map[string]string{} // by the set's number
	for i := 0; i < len(args); i++ {
		if args[i] != "-add-fd" || i+1 == len(args) {
			kept = append(kept, args[i])
			continue
		}
		i++
		set, path := parameter(args[i], "set"), parameter(args[i], "opaque")
		// Where the path would need an escape, in JSON or among parameters, it is refused.
		if quoted, err := json.Marshal(path); err != nil || string(quoted) != `"`+path+`"` || !filepath.IsAbs(path) || strings.Contains(args[i], ",,") {
			return nil, fault.New(fault.Unsupported, fault.Domain, "argument -add-fd %q does not say the path of a file", args[i])
		}
		if was, twice := paths[set]; twice && was != path || set == "" {
			return nil, fault.New(fault.Unsupported, fault.Domain, "argument -add-fd %q makes a set of several files", args[i])
		}
		paths[set] = path
	}
	var pairs []string
	for set, path := range paths {
		pairs = append(pairs, `"/dev/fdset/`+set+`"`, `"`+path+`"`, "=/dev/fdset/"+set+",", "="+path+",")
	}
	replacer := strings.NewReplacer(pairs...)
	for i, arg := range kept {
		kept[i] = strings.TrimSuffix(replacer.Replace(arg+","), ",")
	}
	return kept, nil
}
