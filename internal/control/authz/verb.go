package authz

import (
	"fmt"
	"slices"
	"strings"
)

// Verb is what a client wants to do.
type Verb int

// The verbs. Open is the zero value: what every client that was let in may do.
const (
	Open     Verb = iota
	Read          // see that it is there, its definition without secrets, state, statistics, events
	Start         // start, resume, wake
	Stop          // shut down, destroy, reboot, reset, suspend
	Define        // define, undefine, rename, mark, start with the host
	Change        // devices, memory, processors, limits and pins of a guest that is there
	Console       // consoles, channels, displays, screenshots, keys
	Agent         // what the agent in the guest does and tells
	Save          // save, dump, snapshots, checkpoints, backups, jobs on disks
	Migrate       // send away and take in
	Volumes       // make, fill, read, resize, wipe and delete volumes
	Pools         // define, start, stop and build pools
	Networks      // define, start, stop and change networks
	Filters       // define packet filters
	Secrets       // define secrets, and see and set their values
	Host          // change the host: its devices, interfaces, memory, sleep
	Monitor       // speak to QEMU itself, which is to be root of all guests
	verbs
)

var verbNames = [verbs]string{
	"open", "read", "start", "stop", "define", "change", "console", "agent", "save", "migrate",
	"volumes", "pools", "networks", "filters", "secrets", "host", "monitor",
}

func (v Verb) String() string {
	if v < 0 || v >= verbs {
		return fmt.Sprintf("verb(%d)", int(v))
	}
	return verbNames[v]
}

// changes says whether the verb changes anything, or shows what only some may see.
func (v Verb) changes() bool { return v > Read }

// ofGuests says whether the verb is done to guests.
func (v Verb) ofGuests() bool { return v > Open && v < Volumes }

// whole are the verbs that reach beyond any one object: they cannot be given for some.
var whole = []Verb{Filters, Secrets, Host, Monitor}

// everything is the word for all verbs in the file of rules.
const everything = "all"

// ParseVerb finds a verb by its name in the file of rules.
func ParseVerb(name string) (Verb, bool) {
	i := slices.Index(verbNames[:], name)
	return Verb(i), i > int(Open)
}

// verbSet is a set of verbs, by their bits.
type verbSet uint32

func (s verbSet) has(v Verb) bool { return v == Open || s&(1<<v) != 0 }

// givableVerbs are the words that a rule may use.
func givableVerbs() string { return strings.Join(append(verbNames[Read:], everything), ", ") }
