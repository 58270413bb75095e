package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/testguest/early"
)

// qga answers the QEMU guest agent's protocol, as far as hosts need it to treat
// this guest like any other: one JSON object a line, a 0xFF byte before a
// request that must not be mistaken for the rest of an older one.
type qga struct {
	guest *guest

	mu      sync.Mutex
	running map[int]*program // started by guest-exec and not yet asked about
	frozen  []string         // mount points
}

// maxRunning limits the results that guest-exec keeps for hosts that never read them.
const maxRunning = 64

type qgaRequest struct {
	Execute   string          `json:"execute"`
	Arguments json.RawMessage `json:"arguments"`
	ID        json.RawMessage `json:"id"`
}

type qgaError struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *qgaError) Error() string { return e.Desc }

// silent is the result of a command without an answer in QEMU's schema.
type silent struct{}

type qgaCommand func(q *qga, arguments json.RawMessage) (any, error)

// qgaCommands is filled in init, because guest-info lists it.
var qgaCommands map[string]qgaCommand

func init() {
	qgaCommands = map[string]qgaCommand{
		"guest-sync":                   (*qga).sync,
		"guest-sync-delimited":         (*qga).sync,
		"guest-ping":                   (*qga).ping,
		"guest-info":                   (*qga).info,
		"guest-get-host-name":          (*qga).hostName,
		"guest-get-osinfo":             (*qga).osInfo,
		"guest-get-time":               (*qga).getTime,
		"guest-set-time":               (*qga).setTime,
		"guest-get-timezone":           (*qga).timezone,
		"guest-get-users":              (*qga).users,
		"guest-get-vcpus":              (*qga).vcpus,
		"guest-network-get-interfaces": (*qga).networkInterfaces,
		"guest-get-fsinfo":             (*qga).fsInfo,
		"guest-fsfreeze-status":        (*qga).freezeStatus,
		"guest-fsfreeze-freeze":        (*qga).freeze,
		"guest-fsfreeze-freeze-list":   (*qga).freeze,
		"guest-fsfreeze-thaw":          (*qga).thaw,
		"guest-shutdown":               (*qga).shutdown,
		"guest-exec":                   (*qga).exec,
		"guest-exec-status":            (*qga).execStatus,
	}
}

// answer gives the reply to one line, or nil when there is none.
func (q *qga) answer(text []byte) []byte {
	if i := bytes.LastIndexByte(text, 0xFF); i >= 0 {
		text = text[i+1:]
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return nil
	}
	var r qgaRequest
	if err := json.Unmarshal(text, &r); err != nil {
		return encodeQGA(nil, nil, &qgaError{"GenericError", "not a request: " + err.Error()})
	}
	command, known := qgaCommands[r.Execute]
	if !known {
		return encodeQGA(r.ID, nil, &qgaError{"CommandNotFound", "The command " + r.Execute + " has not been found"})
	}
	if len(r.Arguments) == 0 {
		r.Arguments = json.RawMessage("{}")
	}
	result, err := command(q, r.Arguments)
	if _, none := result.(silent); none && err == nil {
		return nil
	}
	reply := encodeQGA(r.ID, result, err)
	if r.Execute == "guest-sync-delimited" {
		reply = append([]byte{0xFF}, reply...)
	}
	return reply
}

func encodeQGA(id json.RawMessage, result any, err error) []byte {
	reply := map[string]any{}
	if len(id) > 0 {
		reply["id"] = id
	}
	switch e := err.(type) { //nolint:errorlint // made here, never wrapped
	case nil:
		reply["return"] = result
	case *qgaError:
		reply["error"] = e
	default:
		reply["error"] = &qgaError{"GenericError", err.Error()}
	}
	return encode(reply)
}

func (q *qga) sync(arguments json.RawMessage) (any, error) {
	var a struct {
		ID int64 `json:"id"`
	}
	err := json.Unmarshal(arguments, &a)
	return a.ID, err
}

func (q *qga) ping(json.RawMessage) (any, error) { return struct{}{}, nil }

func (q *qga) info(json.RawMessage) (any, error) {
	type command struct {
		Name            string `json:"name"`
		Enabled         bool   `json:"enabled"`
		SuccessResponse bool   `json:"success-response"`
	}
	var commands []command
	for name := range qgaCommands {
		commands = append(commands, command{name, true, name != "guest-shutdown"})
	}
	slices.SortFunc(commands, func(a, b command) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return map[string]any{"version": "7.2.0", "supported_commands": commands}, nil
}

func (q *qga) hostName(json.RawMessage) (any, error) {
	name, err := os.Hostname()
	return map[string]string{"host-name": name}, err
}

func (q *qga) osInfo(json.RawMessage) (any, error) {
	return map[string]string{
		"id": "lodge-guest", "name": "Lodge test guest", "pretty-name": "Lodge test guest", "machine": "x86_64",
		"kernel-release": early.Trimmed("/proc/sys/kernel/osrelease"),
		"kernel-version": early.Trimmed("/proc/sys/kernel/version"),
	}, nil
}

func (q *qga) getTime(json.RawMessage) (any, error) { return time.Now().UnixNano(), nil }

func (q *qga) setTime(arguments json.RawMessage) (any, error) {
	var a struct {
		Time *int64 `json:"time"`
	}
	if err := json.Unmarshal(arguments, &a); err != nil {
		return nil, err
	}
	if a.Time == nil {
		return nil, &qgaError{"GenericError", "setting the time from the hardware clock is not offered: pass time"}
	}
	t := unix.NsecToTimespec(*a.Time)
	return struct{}{}, unix.ClockSettime(unix.CLOCK_REALTIME, &t)
}

func (q *qga) timezone(json.RawMessage) (any, error) {
	name, offset := time.Now().Zone()
	return map[string]any{"zone": name, "offset": offset}, nil
}

func (q *qga) users(json.RawMessage) (any, error) { return []struct{}{}, nil }

func (q *qga) vcpus(json.RawMessage) (any, error) {
	type vcpu struct {
		ID         int  `json:"logical-id"`
		Online     bool `json:"online"`
		CanOffline bool `json:"can-offline"`
	}
	all := []vcpu{}
	for _, n := range onlineCPUs() {
		_, err := os.Stat(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/online", n))
		all = append(all, vcpu{n, true, err == nil})
	}
	return all, nil
}

func (q *qga) shutdown(arguments json.RawMessage) (any, error) {
	var a struct {
		Mode string `json:"mode"`
	}
	if err := json.Unmarshal(arguments, &a); err != nil {
		return nil, err
	}
	how := map[string]int{
		"": unix.LINUX_REBOOT_CMD_POWER_OFF, "powerdown": unix.LINUX_REBOOT_CMD_POWER_OFF,
		"halt": unix.LINUX_REBOOT_CMD_HALT, "reboot": unix.LINUX_REBOOT_CMD_RESTART,
	}
	command, known := how[a.Mode]
	if !known {
		return nil, &qgaError{"GenericError", "mode is powerdown, halt or reboot, not " + a.Mode}
	}
	go q.guest.end(command)
	return silent{}, nil
}

func (q *qga) exec(arguments json.RawMessage) (any, error) {
	var a struct {
		Path  string   `json:"path"`
		Arg   []string `json:"arg"`
		Input []byte   `json:"input-data"`
	}
	if err := json.Unmarshal(arguments, &a); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.running) >= maxRunning {
		return nil, &qgaError{"GenericError", "too many programs whose end nobody asked for"}
	}
	p, err := q.guest.family.run(append([]string{a.Path}, a.Arg...), a.Input, time.Hour)
	if err != nil {
		return nil, err
	}
	q.running[p.pid] = p
	return map[string]int{"pid": p.pid}, nil
}

func (q *qga) execStatus(arguments json.RawMessage) (any, error) {
	var a struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(arguments, &a); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.running[a.PID]
	if p == nil {
		return nil, &qgaError{"GenericError", fmt.Sprintf("PID %d does not exist", a.PID)}
	}
	select {
	case <-p.done:
	default:
		return map[string]any{"exited": false}, nil
	}
	delete(q.running, a.PID)
	answer := map[string]any{"exited": true, "out-data": p.stdout.kept, "err-data": p.stderr.kept}
	if p.status.Signaled() {
		answer["signal"] = int(p.status.Signal())
	} else {
		answer["exitcode"] = p.status.ExitStatus()
	}
	if p.stdout.dropped {
		answer["out-truncated"] = true
	}
	if p.stderr.dropped {
		answer["err-truncated"] = true
	}
	return answer, nil
}
