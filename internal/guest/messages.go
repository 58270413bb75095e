package guest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// The prefixes of messages, so that readers can tell their kinds apart. A guest is tainted by something
// that makes its behaviour hard to explain.
const (
	tainted    = "tainted: "
	deprecated = "deprecated configuration: "
)

// These taint a running guest. The texts are libvirt's, which scripts look for.
const (
	monitorCommanded = tainted + "custom monitor control commands issued"
	agentCommanded   = tainted + "custom guest agent control commands issued"
)

// Deprecates reports whether a message is about something that will be removed.
func Deprecates(message string) bool { return strings.HasPrefix(message, deprecated) }

// remarks returns what an administrator should know about a definition that starts.
func remarks(def *domain.Definition, c *qemucaps.Capabilities) []string {
	var texts []string
	if len(def.QEMUArgs)+len(def.QEMUEnv) > 0 {
		texts = append(texts, tainted+"custom configuration parameters specified")
	}
	if def.CPU.Mode == "host-passthrough" {
		texts = append(texts, tainted+"use of host cpu passthrough")
	}
	if m, known := c.Machine(def.OS.Machine); known && m.Deprecated {
		texts = append(texts, fmt.Sprintf("%smachine type '%s'", deprecated, m.Name))
	}
	for _, a := range c.Accelerators {
		if m, known := a.Model(def.CPU.Model); known && m.Deprecated {
			texts = append(texts, fmt.Sprintf("%sCPU model '%s'", deprecated, def.CPU.Model))
			break
		}
	}
	return append(texts, exposed(def)...)
}

// remark adds a message to a running guest, once.
func (g *Guest) remark(ctx context.Context, r *run, message string) {
	if slices.Contains(g.View().Messages, message) {
		return
	}
	err := g.change(context.WithoutCancel(ctx), scope.Daemon("a message about a guest"), "", func() error {
		if g.run != r || slices.Contains(r.Messages, message) {
			return nil
		}
		r.Messages = append(slices.Clip(r.Messages), message) // views share the old slice
		g.keepRun()
		g.publish()
		return nil
	})
	if err != nil {
		g.log.Info("guest ended before a message about it was recorded", "message", message, "error", err)
	}
}
