package kernel

import (
	"path"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/format/mountinfo"
)

// OwnGroups returns the control groups that hold this process for a controller,
// innermost first, up to the mount point of their tree. Their bounds, such as
// systemd's TasksMax, also bound the processes that this one starts.
func (r Root) OwnGroups(controller string) []string {
	text, err := r.read("proc/self/cgroup") // lines "id:controllers:path"
	if err != nil {
		return nil
	}
	var unified, own string
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(parts) < 3:
		case parts[1] == "":
			unified = parts[2]
		case slices.Contains(strings.Split(parts[1], ","), controller):
			own = parts[2]
		}
	}
	if own == "" {
		controller, own = "", unified
	}
	mount, top := r.groupMount(controller)
	if mount == "" || own == "" {
		return nil
	}
	// A container may be shown a part of the tree only, which begins at top.
	if rest, within := strings.CutPrefix(own, strings.TrimSuffix(top, "/")); within {
		own = rest
	}
	return upwards(mount, path.Clean("/"+own))
}

// upwards returns a group below a mount and all groups above it, the mount last.
func upwards(mount, group string) (dirs []string) {
	for ; group != "/"; group = path.Dir(group) {
		dirs = append(dirs, mount+group)
	}
	return append(dirs, mount)
}

// groupMount finds the first mount of a version 1 controller's tree, or for "" of
// the version 2 tree, and the group that is the top of that mount.
func (r Root) groupMount(controller string) (point, top string) {
	text, err := r.read("proc/self/mountinfo")
	if err != nil {
		return "", ""
	}
	for mount := range mountinfo.Parse(text) {
		unified := controller == "" && mount.Type == "cgroup2"
		if unified || controller != "" && mount.Type == "cgroup" && slices.Contains(strings.Split(mount.Options, ","), controller) {
			return mount.Point, mount.Root
		}
	}
	return "", ""
}

// Groups returns the parent of all guests' groups and the groups above it, for a
// controller, innermost first; none if guests have no groups of it.
func (c *Cgroups) Groups(controller Controller) []string {
	tree := c.trees[controller]
	if tree == "" {
		return nil
	}
	return upwards(tree, "/"+c.parent)
}

// GroupCeilings reads the bounds that these groups have in the file limit, and how much
// of each is used. Groups without a bound are left out. The name of a ceiling is the
// path of its file.
func (r Root) GroupCeilings(dirs []string, limit, used string) (all []Ceiling) {
	for _, dir := range dirs {
		most, ok := parseCount(r.attr(dir, limit))
		if !ok || most == Unlimited {
			continue
		}
		all = append(all, Ceiling{Name: path.Join(dir, limit), Max: most, Used: r.size(dir, used)})
	}
	return all
}
