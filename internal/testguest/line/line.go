// Package line is the conversation between a host and the agent in Lodge's own
// small guest: one JSON object a line over the virtio-serial port Port. The
// guest answers requests in order; the host keeps one connection for as long as
// it talks, because a port takes one peer at a time.
//
// This package holds the definitions that both ends share, and the host's end.
// Tests, the tile of `make up` and the lab use it; the daemon never depends on it.
package line

import "time"

// Port is the name of the virtio-serial port that the agent answers on.
const Port = "lodge.guest.0"

// Bounds of the conversation, kept by both ends.
const (
	// MaxLine bounds one request or reply, newline included.
	MaxLine = 4 << 20
	// MaxOutput bounds each stream that exec returns; the rest is dropped, and the
	// reply says so.
	MaxOutput = 1 << 20
	// MaxTimeout bounds how long a program may run under exec.
	MaxTimeout = 10 * time.Minute
)

// Words that a Request may ask for.
const (
	Ping      = "ping"      // answers Facts
	Addresses = "addresses" // answers []Interface
	Exec      = "exec"      // answers Exit
	Power     = "power"     // answers nothing of worth: the guest ends
)

// Request is one line from the host.
type Request struct {
	ID int64  `json:"id"`
	Do string `json:"do"`

	// For exec: the program with its arguments, its standard input, and its time limit.
	Argv      []string `json:"argv,omitempty"`
	Stdin     []byte   `json:"stdin,omitempty"`
	TimeoutMS int64    `json:"timeout_ms,omitempty"`

	// For power: "off" or "reboot".
	How string `json:"how,omitempty"`
}

// Reply is one line from the guest. The one with ID 0 is not an answer: the
// guest sends it once, unasked, when its user space is up.
type Reply struct {
	ID    int64  `json:"id"`
	Error string `json:"error,omitempty"`

	Facts      *Facts      `json:"facts,omitempty"`
	Interfaces []Interface `json:"interfaces,omitempty"`
	Exit       *Exit       `json:"exit,omitempty"`
}

// Facts is a guest's report about itself.
type Facts struct {
	Hostname string `json:"hostname"`
	Kernel   string `json:"kernel"`
	// UpAfter is the guest's age when its user space was up, in seconds of the
	// guest's own clock.
	UpAfter float64 `json:"up_after"`
	// Age is the guest's age now, in seconds of the guest's own clock; it does
	// not run while the guest is paused.
	Age float64 `json:"age"`
	// BootID tells one boot of a guest from the next.
	BootID string `json:"boot_id"`
	CPUs   int    `json:"cpus"`
	// MemoryKiB is the memory that the guest's kernel manages now.
	MemoryKiB uint64 `json:"memory_kib"`
	// Disks names the block devices that the guest sees.
	Disks []string `json:"disks,omitempty"`
}

// Interface is one network interface of a guest.
type Interface struct {
	Name      string   `json:"name"`
	MAC       string   `json:"mac"`
	Addresses []string `json:"addresses,omitempty"` // CIDR
}

// Exit is how a program under exec ended.
type Exit struct {
	Code     int    `json:"code"` // 128+N when signal N ended it
	Stdout   []byte `json:"stdout,omitempty"`
	Stderr   []byte `json:"stderr,omitempty"`
	Dropped  bool   `json:"dropped,omitempty"`   // output beyond MaxOutput is missing
	TimedOut bool   `json:"timed_out,omitempty"` // killed at its deadline
}
