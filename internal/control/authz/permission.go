package authz

import (
	"fmt"
	"slices"
	"strings"
)

// Permission is the right to one kind of action. docs/access.md has the table for users.
type Permission int

// The permissions. Open is the zero value: the actions of every admitted client.
const (
	Open     Permission = iota
	Read                // existence, definition without secrets, state, statistics, events
	Start               // start, resume, wake up
	Stop                // shut down, destroy, reboot, reset, suspend
	Define              // define, undefine, rename, set marks, set autostart
	Change              // devices, memory, processors, limits and pins of an existing guest
	Console             // consoles, channels, displays, screenshots, keys
	Agent               // what the guest agent does and reports
	Save                // save, dump, snapshots, checkpoints, backups, jobs on disks
	Migrate             // migrate out and in
	Volumes             // create, fill, read, resize, wipe and delete volumes
	Pools               // define, start, stop and build pools
	Networks            // define, start, stop and change networks
	Filters             // define packet filters
	Secrets             // define secrets, read and set their values
	Host                // change the host: its devices, interfaces, memory, sleep
	Monitor             // send QMP commands to QEMU, equal to root in all guests
	permissionCount
)

var permissionNames = [permissionCount]string{
	"open", "read", "start", "stop", "define", "change", "console", "agent", "save", "migrate",
	"volumes", "pools", "networks", "filters", "secrets", "host", "monitor",
}

func (v Permission) String() string {
	if v < 0 || v >= permissionCount {
		return fmt.Sprintf("verb(%d)", int(v))
	}
	return permissionNames[v]
}

// changes says whether calls with the permission are in the audit: they change something, or use a console, an agent
// or a monitor.
func (v Permission) changes() bool { return v > Read }

// ofGuests says whether the permission applies to guests.
func (v Permission) ofGuests() bool { return v > Open && v < Volumes }

// hostPermissions are the permissions that reach beyond any one object: a rule cannot give them for some objects.
var hostPermissions = []Permission{Filters, Secrets, Host, Monitor}

// everything is the word that stands for all permissions in the file of rules.
const everything = "all"

// ParsePermission finds a permission by its name in the file of rules.
func ParsePermission(name string) (Permission, bool) {
	i := slices.Index(permissionNames[:], name)
	return Permission(i), i > int(Open)
}

// permissionSet is a set of permissions, one bit each.
type permissionSet uint32

func (s permissionSet) has(v Permission) bool { return v == Open || s&(1<<v) != 0 }

// givablePermissions lists the words that a rule may use.
func givablePermissions() string {
	return strings.Join(append(permissionNames[Read:], everything), ", ")
}
