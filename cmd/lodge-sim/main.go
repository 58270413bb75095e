// Command lodge-sim simulates hosts, to compare policies without guests. It reads flags, hands them to the simulators,
// and shows the results.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/cli"
)

// version is stamped by the build.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lodge-sim:", err)
		os.Exit(int(cli.StatusOf(err)))
	}
}

func command() *cobra.Command {
	c := &cobra.Command{
		Use:           "lodge-sim",
		Short:         "Simulate a host of guests, to compare policies",
		Version:       version + " " + runtime.Version(),
		Args:          cli.Wants(cobra.NoArgs), // also refuses a name that is no command
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.AsUnusable(err) })
	c.AddCommand(memoryCommand())
	return c
}
