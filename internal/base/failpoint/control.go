package failpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The files of the directory by which a test commands the points.
const (
	armedFile   = "armed"   // what the test asks for; see Armed
	reachedFile = "reached" // the names of the points reached, one a line
)

// Armed is what a test asks of one point.
type Armed struct {
	// Point is the name of one, or what the names of several begin with, and a star.
	Point  string
	Action Action
	// Nth is when it happens: at the Nth time that the point is reached since this
	// was asked. It happens once, but for Fail and Wait from the Nth time on.
	Nth int
	// Fails is another point, which fails meanwhile; empty: none does.
	Fails string
}

// Action is what happens at a point.
type Action string

// Actions.
const (
	Kill Action = "kill" // the program ends at once, as by kill -9
	Fail Action = "fail" // the step fails
	Wait Action = "wait" // until the point is not armed any more
)

// Arm asks for this of the program that dir commands, in place of what was asked
// before; of nothing, if there is no point.
func Arm(dir string, a Armed) error {
	path := filepath.Join(dir, armedFile)
	// The time tells one request from an equal one before.
	text := fmt.Sprintf("%s %s %d %d %s\n", a.Point, a.Action, max(a.Nth, 1), time.Now().UnixNano(), a.Fails)
	if a.Point == "" {
		text = ""
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Reached gives the points that were reached since the last call, in order.
func Reached(dir string) ([]string, error) {
	path := filepath.Join(dir, reachedFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(text)), os.Remove(path)
}

// control is the program's side.
type control struct {
	dir string

	mu    sync.Mutex // held over files of the test's, which lie in memory
	asked string     // what the file held
	fails string     // the point that fails besides
	count int        // how often the point was reached since
}

// waitPoll is how often a point that waits looks whether it may go on.
const waitPoll = 5 * time.Millisecond

// reach notes that a point was reached, and does what was asked of it.
func (c *control) reach(name string) error {
	switch c.note(name) {
	case Kill:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal comes
	case Fail:
		return fmt.Errorf("the fail point %s is armed", name)
	case Wait:
		for armed, _, _ := c.armed(); isAsked(armed, name); armed, _, _ = c.armed() {
			<-time.After(waitPoll)
		}
	}
	return nil
}

// note writes down that a point was reached, and gives what is to happen.
func (c *control) note(name string) Action {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := os.OpenFile(filepath.Join(c.dir, reachedFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return "" // the test has gone
	}
	_, _ = f.WriteString(name + "\n")
	_ = f.Close()
	point, action, nth := c.armed()
	if c.fails != "" && name == c.fails {
		return Fail
	}
	if !isAsked(point, name) {
		return ""
	}
	if c.count++; c.count < nth || action == Kill && c.count > nth {
		return ""
	}
	return action
}

// isAsked reports whether the name of a point is one of those that a test asks for.
func isAsked(point, name string) bool {
	begin, some := strings.CutSuffix(point, "*")
	return point == name || some && strings.HasPrefix(name, begin)
}

// armed reads what the test asks for.
func (c *control) armed() (point string, a Action, nth int) {
	text, err := os.ReadFile(filepath.Join(c.dir, armedFile))
	if err != nil {
		return "", "", 0
	}
	words := strings.Fields(string(text))
	if c.fails = ""; len(words) == 5 {
		c.fails = words[4]
	} else if len(words) != 4 {
		return "", "", 0
	}
	if string(text) != c.asked {
		c.asked, c.count = string(text), 0
	}
	nth, err = strconv.Atoi(words[2])
	if err != nil {
		return "", "", 0
	}
	return words[0], Action(words[1]), nth
}
