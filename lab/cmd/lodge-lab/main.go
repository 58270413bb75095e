// Command lodge-lab measures daemons that speak libvirt's protocol. It is a plug-in:
// `lodge lab ARGUMENTS` runs `lodge-lab ARGUMENTS`. Texts and records call it `lodge lab`.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/cli"
)

// version is stamped by the build.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := command().ExecuteContext(ctx)
	if err == nil {
		return
	}
	if err.Error() != "" {
		fmt.Fprintln(os.Stderr, "lodge lab:", err)
	}
	stop()
	os.Exit(int(cli.StatusOf(err)))
}

// calledAs is the command line as its user typed it, for records.
func calledAs() string {
	return strings.Join(append([]string{"lodge", "lab"}, os.Args[1:]...), " ")
}

func command() *cobra.Command {
	c := &cobra.Command{
		Use:           "lodge-lab",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "lodge lab"},
		Short:         "Measure a daemon that speaks libvirt's protocol: Lodge's, libvirt's or another",
		Args:          cli.Wants(cobra.NoArgs),
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.AsUnusable(err) })
	cli.TakeGlobalFlags(c)
	c.AddCommand(labStartCommand(), labReportCommand(), labStormCommand(), labRunCommand(), labResumeCommand())
	c.AddCommand(labCompareCommand(), labPackCommand(), labCleanCommand(), labListCommand(), labImageCommand())
	c.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Say which lab this is",
		Args:  cli.Wants(cobra.NoArgs),
		Run: func(c *cobra.Command, _ []string) {
			fmt.Fprintln(c.OutOrStdout(), "lodge-lab", version, runtime.Version())
		},
	})
	return c
}
