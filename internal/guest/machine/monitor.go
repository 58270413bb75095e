package machine

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// monitorLimit bounds the time of a command that a user gives to QEMU directly.
const monitorLimit = 60 * time.Second

// MonitorCommand sends QEMU a command of the user and returns the answer: QMP as JSON, or with human a line
// for the human monitor. It taints the guest, because Lodge cannot know what the command changed.
func (g *Guest) MonitorCommand(ctx context.Context, sc scope.Scope, command string, human bool) (string, error) {
	if err := sc.Authorize(g.UUID()); err != nil {
		return "", err
	}
	r := g.Live.Load()
	s, err := r.Monitor()
	if err != nil {
		return "", err
	}
	g.AddMessage(ctx, r, monitorCommanded)
	ctx, stop := context.WithTimeout(ctx, monitorLimit)
	defer stop()
	if human {
		var text string
		err := s.Execute(ctx, "human-monitor-command", map[string]any{"command-line": command}, &text)
		return text, err
	}
	var c struct {
		Execute   string          `json:"execute"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := json.Unmarshal([]byte(command), &c); err != nil || c.Execute == "" {
		return "", fault.New(fault.Invalid, fault.Call, `a monitor command is JSON such as {"execute":"query-status"}, or a line with --hmp`)
	}
	var args any
	if len(c.Arguments) > 0 {
		args = c.Arguments
	}
	var answer json.RawMessage
	whole := map[string]any{}
	var refused *qmp.Error
	switch err := s.Execute(ctx, c.Execute, args, &answer); {
	case errors.As(err, &refused): // this is an answer, too, for the user to read
		whole["error"] = refused
	case err != nil:
		return "", err
	default:
		whole["return"] = answer
	}
	out, err := json.Marshal(whole)
	return string(out), err
}

// Execute runs one step of a plan: a QMP command, with a file descriptor if the step has one.
func Execute(ctx context.Context, s *qmp.Session, step qemu.Step) error {
	if step.File != nil {
		return s.ExecuteFD(ctx, step.File, step.Command, step.Args, nil)
	}
	return s.Execute(ctx, step.Command, step.Args, nil)
}
