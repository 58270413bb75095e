// Command build makes the test guest's image and prints where it is.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/guestimage"
)

func main() {
	cache := flag.String("cache", "", "directory to keep packages and images in")
	agent := flag.String("agent", "", "the agent, a static program built from guestimage/agent")
	flag.Parse()
	if *cache == "" || *agent == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	image, err := guestimage.Build(ctx, *cache, *agent, func(text string) { fmt.Fprintln(os.Stderr, text) })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintf(os.Stdout, "kernel=%s\ninitrd=%s\n", image.Kernel, image.Initrd)
}
