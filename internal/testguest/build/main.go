// Command build makes the test guest's image and prints where it is.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/testguest"
)

func main() {
	cache := flag.String("cache", "", "directory to keep packages and images in")
	agent := flag.String("agent", "", "the agent, a static program built from testguest/agent")
	disk := flag.Bool("disk", false, "make a disk that boots from a BIOS too")
	flag.Parse()
	if *cache == "" || *agent == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	dir, err := build(ctx, *cache, *agent, *disk)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, dir)
}

// build makes the image and lets the name "current" in the cache lead to it.
func build(ctx context.Context, cache, agent string, disk bool) (string, error) {
	image, err := testguest.Build(ctx, cache, agent, func(text string) { fmt.Fprintln(os.Stderr, text) })
	if err != nil {
		return "", err
	}
	if disk {
		if _, err := image.Disk(ctx); err != nil {
			return "", err
		}
	}
	current := filepath.Join(cache, "current")
	target := filepath.Base(filepath.Dir(image.Kernel))
	if now, err := os.Readlink(current); err == nil && now == target {
		return current, nil
	}
	if err := os.Remove(current); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	return current, os.Symlink(target, current)
}
