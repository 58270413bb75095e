// Command cmd is the lab's agent as a program. Without arguments it is the first
// process of a guest: it mounts the guest's disks, gives it its addresses, starts
// itself once more to answer the host, and reaps what others leave behind.
//
//	agent               the first process of a guest
//	agent outside HOW   the first process of a PID name space, outside of a guest
//
// Answering is a process of its own, because only that may wait for children that
// it knows: the first process waits for all.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/lab/agent"
	"github.com/lodge-kvm/lodge/lab/wire"
)

func main() {
	switch args := os.Args[1:]; {
	case len(args) == 0 && os.Getpid() == 1:
		guest()
	case len(args) == 2 && args[0] == "outside" && os.Getpid() == 1:
		outside(args[1])
	case len(args) == 1 && args[0] == "answer":
		answer()
	case len(args) == 1 && args[0] == "answer-outside":
		conn := os.NewFile(wire.OutsideFile, "host")
		if err := (&agent.Agent{}).Serve(context.Background(), conn); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "this is the first process of a guest of Lodge's lab; it does not run elsewhere")
		os.Exit(2)
	}
}

// guest does not return.
func guest() {
	if err := boot(); err != nil {
		say("cannot boot: %v", err)
		end(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	why := keep([]string{"answer"}, nil, end)
	say("the agent has ended: %v", why)
	end(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// say writes one line to the kernel's console.
func say(format string, args ...any) {
	console, err := os.OpenFile("/dev/console", os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return
	}
	defer console.Close()
	_, _ = console.WriteString("lodge-lab: " + strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ") + "\r\n")
}
