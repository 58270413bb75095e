package polkit

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"github.com/godbus/dbus/v5"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Process is who a question is about. Its number alone could be another's by the
// time that polkit looks.
type Process struct {
	PID     int32
	UID     uint32
	Started uint64 // ticks of the clock since the host started
}

// Find gives the process with a number, of whom the kernel has told the user.
func Find(pid int32, uid uint32) (Process, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, fault.Wrap(err, fault.Denied, fault.Call, "cannot look at process %d, which has gone or is in a name space of its own", pid)
	}
	// The name, in parentheses, may hold anything. The start is the 20th word behind it.
	words := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(words) < 20 {
		return Process{}, fault.New(fault.Denied, fault.Call, "cannot tell when process %d was started", pid)
	}
	started, err := strconv.ParseUint(string(words[19]), 10, 64)
	if err != nil {
		return Process{}, fault.Wrap(err, fault.Denied, fault.Call, "cannot tell when process %d was started", pid)
	}
	return Process{PID: pid, UID: uid, Started: started}, nil
}

// subject is the process in polkit's words.
func (p Process) subject() subject {
	return subject{Kind: "unix-process", Details: map[string]dbus.Variant{
		"pid": dbus.MakeVariant(uint32(p.PID)), "start-time": dbus.MakeVariant(p.Started), "uid": dbus.MakeVariant(int32(p.UID)),
	}}
}
