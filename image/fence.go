package image

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/fault"
)

// fenceKey is where a context keeps the folders that images may lie in.
type fenceKey struct{}

// WithFence has chains that are opened under ctx refuse every layer that lies in
// none of the folders, wherever a link or a header leads. The folders are real
// paths.
func WithFence(ctx context.Context, folders []string) context.Context {
	return context.WithValue(ctx, fenceKey{}, append([]string{}, folders...))
}

// FenceOf gives the folders; nil: there is no fence.
func FenceOf(ctx context.Context) []string {
	folders, _ := ctx.Value(fenceKey{}).([]string)
	return folders
}

// within checks that a layer that was opened lies where it may. A link to a block
// device counts as where the link is, because only root makes links in /dev.
func (l *Layer) within(folders []string) error {
	if folders == nil {
		return nil
	}
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", l.File.Fd()))
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot tell where %s lies", l.Path)
	}
	lies := func(path string) bool {
		return slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/") })
	}
	if lies(real) || l.Device && strings.HasPrefix(l.Path, "/dev/") && !strings.Contains(l.Path, "/../") && lies(l.Path) {
		return nil
	}
	return fault.New(fault.Denied, fault.Volume, "%s lies in none of the places that images may come from here (%s)", real, strings.Join(folders, ", "))
}
