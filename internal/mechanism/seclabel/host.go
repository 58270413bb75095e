package seclabel

import (
	"cmp"
	"os/exec"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// The models, by libvirt's names.
const (
	SELinux  = "selinux"
	AppArmor = "apparmor"
)

// Host is the mandatory access control of this host. It does not change while the daemon runs.
type Host struct {
	Model string
	// Enforcing: violations are refused, not only logged.
	Enforcing bool
	// Root is where the kernel's files are.
	Root kernel.Root
	// Exec is the thread's attribute file for the label of the next program.
	Exec string
	// Own is the daemon's own label.
	Own string

	// SELinux: the contexts for guests under KVM and under emulation, of images that a
	// guest writes and of content that guests read, and the pairs in use.
	native, emulated, image, content Context
	mcs                              bool
	Pairs                            *Pairs

	// AppArmor: the parser of profiles, and the prefix of the names of this instance's profiles.
	parser, prefix string
}

// Find reads the access control that the host enforces. An error of kind Unsupported says why guests cannot have labels.
func Find(root kernel.Root, instance string) (*Host, error) {
	if s, on := root.SELinux(); on {
		return findSELinux(root, s)
	}
	if a, on := root.AppArmor(); on {
		return findAppArmor(root, a, instance)
	}
	return nil, fault.New(fault.Unsupported, fault.Host, "the kernel enforces neither SELinux nor AppArmor")
}

func findSELinux(root kernel.Root, s kernel.SELinux) (*Host, error) {
	if len(s.Processes) == 0 || len(s.Images) == 0 {
		return nil, fault.New(fault.Unsupported, fault.Host,
			"the SELinux policy has no virtual_domain_context and virtual_image_context below /etc/selinux; install one that supports guests, such as selinux-policy-targeted")
	}
	h := &Host{Model: SELinux, Enforcing: s.Enforcing, Root: root, Exec: s.ExecLabel(root), Own: s.Own, mcs: s.MCS}
	for _, c := range []struct {
		from []string
		line int
		to   *Context
	}{{s.Processes, 0, &h.native}, {s.Processes, 1, &h.emulated}, {s.Images, 0, &h.image}, {s.Images, 1, &h.content}} {
		parsed, err := ParseContext(c.from[min(c.line, len(c.from)-1)])
		if err != nil {
			return nil, fault.Wrap(err, fault.Unsupported, fault.Host, "the SELinux policy has no label for guests")
		}
		*c.to = parsed
	}
	for _, target := range []Context{h.native, h.emulated} {
		if err := h.checkPolicy(target); err != nil {
			return nil, err
		}
	}
	h.Pairs = NewPairs(root.ProcessLabels())
	return h, nil
}

// requiredPermissions are needed to start and end a guest with a label. Sandboxed programs have
// no_new_privs and lie on nosuid mounts, where a change of context needs extra permissions (process2).
var requiredPermissions = []struct {
	class string
	names []string
}{
	{"process", []string{"transition", "signal", "sigkill", "setsched", "setrlimit"}},
	{"process2", []string{"nnp_transition", "nosuid_transition"}},
}

// checkPolicy checks that the policy lets the daemon run guests with a context. In permissive mode it does
// not matter.
func (h *Host) checkPolicy(target Context) error {
	if !h.Enforcing {
		return nil
	}
	for _, a := range requiredPermissions {
		missing, err := h.Root.Forbidden(h.Own, target.String(), a.class, a.names...)
		if err != nil {
			return fault.Wrap(err, fault.Unsupported, fault.Host, "cannot check whether guests can have labels")
		}
		if len(missing) > 0 {
			own, err := ParseContext(h.Own)
			if err != nil {
				own.Type = h.Own
			}
			return fault.New(fault.Unsupported, fault.Host,
				"the SELinux policy does not let %s run guests as %s (%s: %s); run lodged as virtd_t, and load a module with (allow %s %s (%s (%s)))",
				own.Type, target.Type, a.class, strings.Join(missing, ", "), own.Type, target.Type, a.class, strings.Join(missing, " "))
		}
	}
	return nil
}

func findAppArmor(root kernel.Root, a kernel.AppArmor, instance string) (*Host, error) {
	parser, err := exec.LookPath("apparmor_parser")
	if err != nil {
		return nil, fault.Wrap(err, fault.Unsupported, fault.Host, "AppArmor is on, and profiles for guests need apparmor_parser; install the package apparmor")
	}
	return &Host{
		Model: AppArmor, Enforcing: true, Root: root, Exec: a.ExecLabel(root), Own: cmp.Or(a.Own, "unconfined"),
		parser: parser, prefix: "lodge-" + strings.TrimPrefix(instance+"-", "-"),
	}, nil
}

// DOI is libvirt's domain of interpretation.
func (h *Host) DOI() string { return "0" }

// Content returns the context of files that guests may read; empty: there is none.
func (h *Host) Content() string {
	if h == nil || h.Model != SELinux {
		return ""
	}
	return h.content.String()
}

// Base returns the labels from which guests' labels are made, by libvirt's type of domain;
// none under AppArmor.
func (h *Host) Base() map[string]string {
	if h.Model != SELinux {
		return nil
	}
	return map[string]string{"kvm": h.native.String(), "qemu": h.emulated.String()}
}
