// Command build makes the lab's guest image and prints where it is.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/lab/image"
)

func main() {
	cache := flag.String("cache", "", "folder to keep images in")
	agent := flag.String("agent", image.DefaultAgent(), "the agent, a static program built from lab/agent/cmd")
	flag.Parse()
	if *cache == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	made, err := image.Build(ctx, image.How{Cache: *cache, Agent: *agent, Say: func(text string) { fmt.Fprintln(os.Stderr, text) }})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, filepath.Dir(made.Initrd))
}
