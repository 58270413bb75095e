package machine

import (
	"context"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// The prefixes of messages, so that readers can tell their kinds apart. A guest is tainted by something
// that makes its behaviour hard to explain.
const (
	Tainted    = "tainted: "
	Deprecated = "deprecated configuration: "
)

// These taint a running guest. The texts are libvirt's, which scripts look for.
const (
	monitorCommanded = Tainted + "custom monitor control commands issued"
	AgentCommanded   = Tainted + "custom guest agent control commands issued"
)

// Deprecates reports whether a message is about something that will be removed.
func Deprecates(message string) bool { return strings.HasPrefix(message, Deprecated) }

// AddMessage adds a message to a running guest, once.
func (g *Guest) AddMessage(ctx context.Context, r *Instance, message string) {
	if slices.Contains(g.View().Messages, message) {
		return
	}
	err := g.Change(context.WithoutCancel(ctx), scope.Daemon("a message about a guest"), "", func() error {
		if g.Instance != r || slices.Contains(r.Messages, message) {
			return nil
		}
		r.Messages = append(slices.Clip(r.Messages), message) // views share the old slice
		g.WriteInstance()
		g.Publish()
		return nil
	})
	if err != nil {
		g.Log.Info("guest ended before a message about it was recorded", "message", message, "error", err)
	}
}
