package authz

import (
	"fmt"
	"slices"
	"strings"
)

// Verb is what a client wants to do.
type Verb int

// The verbs. Open is the zero value: what every admitted client may do.
const (
	Open     Verb = iota
	Read          // existence, definition without secrets, state, statistics, events
	Start         // start, resume, wake up
	Stop          // shut down, destroy, reboot, reset, suspend
	Define        // define, undefine, rename, set marks, set autostart
	Change        // devices, memory, processors, limits and pins of an existing guest
	Console       // consoles, channels, displays, screenshots, keys
	Agent         // what the guest agent does and reports
	Save          // save, dump, snapshots, checkpoints, backups, jobs on disks
	Migrate       // migrate out and in
	Volumes       // create, fill, read, resize, wipe and delete volumes
	Pools         // define, start, stop and build pools
	Networks      // define, start, stop and change networks
	Filters       // define packet filters
	Secrets       // define secrets, read and set their values
	Host          // change the host: its devices, interfaces, memory, sleep
	Monitor       // send QMP commands to QEMU, equal to root in all guests
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

// changes says whether the verb changes anything, or reveals what only some clients may see.
func (v Verb) changes() bool { return v > Read }

// ofGuests says whether the verb applies to guests.
func (v Verb) ofGuests() bool { return v > Open && v < Volumes }

// hostVerbs are the verbs that reach beyond any one object: a rule cannot give them for some objects.
var hostVerbs = []Verb{Filters, Secrets, Host, Monitor}

// everything is the word for all verbs in the file of rules.
const everything = "all"

// ParseVerb finds a verb by its name in the file of rules.
func ParseVerb(name string) (Verb, bool) {
	i := slices.Index(verbNames[:], name)
	return Verb(i), i > int(Open)
}

// verbSet is a set of verbs, one bit each.
type verbSet uint32

func (s verbSet) has(v Verb) bool { return v == Open || s&(1<<v) != 0 }

// givableVerbs lists the words that a rule may use.
func givableVerbs() string { return strings.Join(append(verbNames[Read:], everything), ", ") }
