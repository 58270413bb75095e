package polkit

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"github.com/godbus/dbus/v5"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Process is the subject of a question. The start time is part of it because another process
// could have its PID by the time that polkit looks.
type Process struct {
	PID     int32
	UID     uint32
	Started uint64 // clock ticks since the host started
}

// Find returns the process with a PID, running as the user that the kernel has reported.
func Find(pid int32, uid uint32) (Process, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, fault.Wrap(err, fault.Denied, fault.Call, "cannot read process %d: it has ended or is in another PID namespace", pid)
	}
	// The name, in parentheses, may hold any character. The start time is the 20th field after it.
	words := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(words) < 20 {
		return Process{}, fault.New(fault.Denied, fault.Call, "cannot read the start time of process %d", pid)
	}
	started, err := strconv.ParseUint(string(words[19]), 10, 64)
	if err != nil {
		return Process{}, fault.Wrap(err, fault.Denied, fault.Call, "cannot read the start time of process %d", pid)
	}
	return Process{PID: pid, UID: uid, Started: started}, nil
}

// subject returns the process in polkit's form.
func (p Process) subject() subject {
	return subject{Kind: "unix-process", Details: map[string]dbus.Variant{
		"pid": dbus.MakeVariant(uint32(p.PID)), "start-time": dbus.MakeVariant(p.Started), "uid": dbus.MakeVariant(int32(p.UID)),
	}}
}
