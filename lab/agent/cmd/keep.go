package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// keep runs this program once more, with more files than the first three, reaps
// everything that ends, and returns when that child has. On a signal it calls stop with what the signal asks for.
func keep(args []string, more []uintptr, stop func(how int)) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGUSR2)
	child, err := syscall.ForkExec("/proc/self/exe", append([]string{"lodge-lab-agent"}, args...), &syscall.ProcAttr{
		Dir: "/", Files: append([]uintptr{0, 1, 2}, more...), Sys: &syscall.SysProcAttr{Setsid: true},
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"},
	})
	if err != nil {
		return fmt.Errorf("cannot start the agent: %w", err)
	}
	go func() {
		for s := range signals {
			how := unix.LINUX_REBOOT_CMD_POWER_OFF
			if s == unix.SIGINT { // Ctrl-Alt-Del
				how = unix.LINUX_REBOOT_CMD_RESTART
			}
			stop(how)
		}
	}()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case pid == child:
			return fmt.Errorf("status %d, signal %d", status.ExitStatus(), status.Signal())
		case errors.Is(err, unix.ECHILD):
			return errors.New("nothing is left")
		}
	}
}

// farewell bounds how long programs may take to leave before they are killed.
const farewell = 20 * time.Second

// end stops the machine: programs are asked to leave, disks are synced. It does
// not return.
func end(how int) {
	_ = unix.Kill(-1, unix.SIGTERM)
	for deadline := time.Now().Add(farewell); time.Now().Before(deadline) && others(); {
		<-time.After(20 * time.Millisecond) // their ends are reaped by keep, if by anybody
	}
	_ = unix.Kill(-1, unix.SIGKILL)
	unix.Sync()
	// A file system that is whole needs no replay at the next boot.
	_ = unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	if err := unix.Reboot(how); err != nil {
		say("cannot go down: %v", err)
	}
	select {}
}

// others tells whether there is another process that is not the kernel's.
func others() bool {
	all, _ := os.ReadDir("/proc")
	for _, p := range all {
		if p.Name() == "1" || p.Name()[0] < '0' || p.Name()[0] > '9' {
			continue
		}
		if line, _ := os.ReadFile("/proc/" + p.Name() + "/cmdline"); len(line) > 0 { // threads of the kernel's have none
			return true
		}
	}
	return false
}
