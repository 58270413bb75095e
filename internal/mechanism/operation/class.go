package operation

import "slices"

// Class says how an operation relates to others of the same owner.
type Class int

// Classes. A read is no operation. Some actions may run at any time and are none either: suspend,
// resume, the abort of a job, the end of the guest.
const (
	// Change takes seconds; only one runs at a time.
	Change Class = iota
	// DiskJob copies in QEMU while the guest runs: commit, pull, copy.
	DiskJob
	// Move takes the guest's memory somewhere: save, dump, migration.
	Move
	// Backup gives out the disks as they were at one moment.
	Backup
	// Unplug waits until the guest releases a device.
	Unplug
	// Cleanup removes leftovers. Only the objects that it works on are not free yet.
	Cleanup
)

var classNames = [...]string{"change", "disk job", "move", "backup", "unplug", "cleanup"}

func (c Class) String() string { return classNames[c] }

// Admission is the verdict on a new operation while another one is open.
type Admission int

// Admissions.
const (
	// Allow: both may be open.
	Allow Admission = iota
	// Wait: the new one waits until the open one has ended.
	Wait
	// Refuse: the new one makes no sense now; libvirt answers 55, operation invalid.
	Refuse
)

// admissions has a row for each open class and a column for each new
// class: first for operations that share an object, then for those that do not.
var admissions = [2][6][6]Admission{
	{ // the same object
		//       change  disk job move    backup  unplug  cleanup
		Change:  {Wait, Wait, Wait, Wait, Wait, Allow},
		DiskJob: {Refuse, Refuse, Refuse, Refuse, Refuse, Allow},
		Move:    {Wait, Wait, Wait, Wait, Wait, Allow},
		Backup:  {Refuse, Refuse, Refuse, Refuse, Refuse, Allow},
		Unplug:  {Allow, Refuse, Allow, Allow, Allow, Allow},
		Cleanup: {Wait, Wait, Wait, Wait, Wait, Allow},
	},
	{ // other objects
		Change:  {Wait, Wait, Wait, Wait, Wait, Allow},
		DiskJob: {Allow, Allow, Refuse, Allow, Allow, Allow},
		Move:    {Wait, Wait, Wait, Wait, Wait, Allow},
		Backup:  {Allow, Allow, Refuse, Refuse, Allow, Allow},
		Unplug:  {Allow, Allow, Allow, Allow, Allow, Allow},
		Cleanup: {Allow, Allow, Allow, Allow, Allow, Allow},
	},
}

// Admit says whether a new operation may begin beside an open one of the same owner.
func Admit(open Class, openObjects []string, next Class, objects []string) Admission {
	if shareObject(openObjects, objects) {
		return admissions[0][open][next]
	}
	return admissions[1][open][next]
}

func shareObject(a, b []string) bool {
	return slices.ContainsFunc(a, func(object string) bool { return slices.Contains(b, object) })
}
