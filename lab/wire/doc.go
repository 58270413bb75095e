// Package wire is what the lab's host and its agent say to each other: numbered
// frames of bounded length on one connection, many calls at once, each with
// streams that hold nobody else up.
//
// The connection may be a virtio-serial port, which knows no beginning: a new
// host may come in the middle of what the one before said. So a host begins
// with Flush, which ends any frame that was left half, and a Hello with a number
// of its own, the epoch, that every frame of the session then carries. Frames
// have check sums; what is no frame is skipped and said to have been.
//
// What belongs here: frames, streams and the words of the calls, for both ends.
// What they do is in lab/session and lab/agent.
package wire

import (
	"encoding/json"
	"time"
)

// Port is the name of the virtio-serial port that the agent answers on.
const Port = "lodge.lab.0"

// Version is that of the conversation. A host refuses another one's agent.
const Version = 1

// Bounds, kept by both ends.
const (
	// MaxPayload bounds what one frame carries.
	MaxPayload = 32 << 10
	// Window bounds what a stream may have under way and unread.
	Window = 256 << 10
	// MaxCalls bounds the calls of a session that are open at once.
	MaxCalls = 256
)

// The words of a Request.
const (
	Exec   = "exec"   // args Program; streams Input, Output, Errors; answers Exit
	Put    = "put"    // args File; stream Input; answers nothing
	Get    = "get"    // args File; stream Output; answers nothing
	Clock  = "clock"  // answers Instant
	Sample = "sample" // answers Usage
	Load   = "load"   // args Work; stream Output has intervals; runs until stream Input ends
	Power  = "power"  // ends the machine; answers before it does
)

// Streams of a call.
const (
	Input  uint8 = iota // from the host
	Output              // from the guest
	Errors              // from the guest
)

// Request is the payload of a Call.
type Request struct {
	Do   string `json:"do"`
	Args any    `json:"args,omitempty"`
}

// Program is what exec runs.
type Program struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env,omitempty"` // added to the agent's own
	Dir  string   `json:"dir,omitempty"`
	// Timeout, when not 0, ends the program and its children after that long.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// Exit is how a program ended.
type Exit struct {
	Status   int  `json:"status"` // 128+N when signal N ended it
	TimedOut bool `json:"timed_out,omitempty"`
}

// File is what put writes and get reads.
type File struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode,omitempty"`
}

// Instant is what the guest's clocks say.
type Instant struct {
	Wall time.Time     `json:"wall"`
	Up   time.Duration `json:"up"` // since boot, without time asleep
	// Source is the kernel's clock source: a guest on anything but the
	// processor's own counter measures badly.
	Source string `json:"source"`
}

// Work is what load runs.
type Work struct {
	Kind   string          `json:"kind"`
	Config json.RawMessage `json:"config"`
}

// Greeting is the payload of a Hello and of a Welcome.
type Greeting struct {
	Version int `json:"version"`
	// From the guest only.
	Name   string `json:"name,omitempty"`
	Kernel string `json:"kernel,omitempty"`
	CPUs   int    `json:"cpus,omitempty"`
	Boot   string `json:"boot,omitempty"` // tells one boot from the next
}

// Answer is the payload of a Reply. With Error set, the call failed; Kind is
// then a fault.Kind by its name.
type Answer struct {
	Error  string `json:"error,omitempty"`
	Kind   string `json:"kind,omitempty"`
	Result any    `json:"result,omitempty"`
}

// Outside is what the agent is told, as its only argument after "outside", when it
// is to answer outside of a guest: from the place where a guest's disks would be,
// on the connection that it is given as its fourth file.
type Outside struct {
	Name string `json:"name"`
	Root string `json:"root"` // a file system of its own
	Usr  string `json:"usr"`  // shared, read-only
	At   string `json:"at"`   // an empty folder to mount them at
	CPUs []int  `json:"cpus,omitempty"`
	Net  string `json:"net"` // "MAC@ADDRESS/BITS", as in a guest's lab.net
}

// OutsideFile is the number of that file.
const OutsideFile = 3
