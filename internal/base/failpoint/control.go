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

// Files in the directory through which a test commands the points.
const (
	armedFile   = "armed"   // the test's request; see Armed
	reachedFile = "reached" // names of the points that were reached, one a line
)

// Armed is a test's request for one point.
type Armed struct {
	// Point is a name, or the common prefix of several names followed by a star.
	Point  string
	Action Action
	// Nth is when the action happens: when the point is reached the Nth time after
	// the request. It happens once, but Fail and Wait also happen each time after that.
	Nth int
	// Fails is another point, which fails in the meantime; empty: none does.
	Fails string
}

// Action is the effect at a point.
type Action string

// Actions.
const (
	Kill Action = "kill" // the program ends at once, as after kill -9
	Fail Action = "fail" // the step fails
	Wait Action = "wait" // until the point is disarmed
)

// Arm makes this the only request for the program that dir commands. An empty Point
// removes the request.
func Arm(dir string, a Armed) error {
	path := filepath.Join(dir, armedFile)
	// The time makes a request differ from an equal earlier one.
	text := fmt.Sprintf("%s %s %d %d %s\n", a.Point, a.Action, max(a.Nth, 1), time.Now().UnixNano(), a.Fails)
	if a.Point == "" {
		text = ""
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Reached returns the points that were reached since the last call, in order.
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

	mu    sync.Mutex // held over the test's files, which lie in memory
	asked string     // the file's last content
	fails string     // the additional point that fails
	count int        // how often the point was reached since then
}

// waitPoll is how often a waiting point checks whether it may continue.
const waitPoll = 5 * time.Millisecond

// reach records that a point was reached, and carries out the request for it.
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

// note records that a point was reached, and returns the action.
func (c *control) note(name string) Action {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := os.OpenFile(filepath.Join(c.dir, reachedFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return "" // the test has ended
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

// isAsked reports whether a request is for the point of this name.
func isAsked(point, name string) bool {
	begin, some := strings.CutSuffix(point, "*")
	return point == name || some && strings.HasPrefix(name, begin)
}

// armed reads the test's request.
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
