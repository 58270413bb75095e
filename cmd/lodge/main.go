// Command lodge is the command line: it reads flags, hands them to the rooms
// that do the work, and shows what they say.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"
)

// version is stamped by the build.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "lodge:", err)
		stop()
		os.Exit(1)
	}
}

func command() *cobra.Command {
	c := &cobra.Command{
		Use:           "lodge",
		Short:         "Look at KVM hosts, and measure them",
		Args:          cobra.NoArgs, // of a name that is no command, too
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.AddCommand(probeCommand(), labCommand(), &cobra.Command{
		Use:   "version",
		Short: "Say which Lodge this is",
		Args:  cobra.NoArgs,
		Run: func(c *cobra.Command, _ []string) {
			fmt.Fprintln(c.OutOrStdout(), "lodge", version, runtime.Version())
		},
	})
	return c
}
