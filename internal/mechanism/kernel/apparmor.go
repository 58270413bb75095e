package kernel

import (
	"os"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// AppArmor is the kernel's state of AppArmor, as far as guests' profiles need it.
type AppArmor struct {
	// Own is the profile of this process, without its mode.
	Own string
}

// AppArmor reads the state; false unless AppArmor is on and profiles can be loaded.
func (r Root) AppArmor() (AppArmor, bool) {
	if r.attr("sys/module/apparmor/parameters/enabled") != "Y" || !r.exists("sys/kernel/security/apparmor/.replace") {
		return AppArmor{}, false
	}
	own, _ := cutMode(r.appArmorLabel("self"))
	return AppArmor{Own: own}, true
}

// appArmorLabel reads the profile of a process. Kernels from 5.8 on have a file for it
// that no other security module writes.
func (r Root) appArmorLabel(pid string) string {
	for _, file := range []string{"attr/apparmor/current", "attr/current"} {
		if text := r.attr("proc", pid, file); text != "" {
			return strings.TrimRight(text, "\x00\n")
		}
	}
	return ""
}

// cutMode splits a label "NAME (MODE)".
func cutMode(label string) (name, mode string) {
	if i := strings.LastIndex(label, " ("); i > 0 && strings.HasSuffix(label, ")") {
		return label[:i], label[i+2 : len(label)-1]
	}
	return label, ""
}

// ExecLabel is the file where a thread sets the profile of the program that it, or
// a process that it forks, executes next.
func (a AppArmor) ExecLabel(r Root) string {
	if r.exists("proc/self/attr/apparmor") {
		return r.path("proc/thread-self/attr/apparmor", execLabel)
	}
	return r.path("proc/thread-self/attr", execLabel)
}

// Profiles are the names of all profiles that are loaded, with their modes.
func (r Root) Profiles() (map[string]string, error) {
	text, err := r.read("sys/kernel/security/apparmor/profiles")
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for line := range strings.Lines(text) {
		if name, mode := cutMode(strings.TrimSpace(line)); mode != "" {
			all[name] = mode
		}
	}
	return all, nil
}

// RemoveProfile removes a profile from the kernel. A profile that is not loaded is no
// error.
func (r Root) RemoveProfile(name string) error {
	if loaded, err := r.Profiles(); err == nil && loaded[name] == "" {
		return nil
	}
	f, err := os.OpenFile(r.path("sys/kernel/security/apparmor/.remove"), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(name)
		if e := f.Close(); err == nil {
			err = e
		}
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot remove the AppArmor profile %s", name)
}
