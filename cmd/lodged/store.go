package main

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/cli"
	"github.com/lodge-kvm/lodge/internal/edge/importer"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
)

func storeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "store",
		Short: "Check, repair and export the store of a daemon",
		Args:  cli.Wants(cobra.NoArgs),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	var data string
	c.PersistentFlags().StringVar(&data, "data", "/var/lib/lodge", "the daemon's data `directory`")
	c.AddCommand(
		&cobra.Command{
			Use:   "check",
			Short: "Check all records, and list bad ones",
			Long: `Check all records of the store of a data directory, and list bad ones. Nothing is
changed, and a daemon may run meanwhile. The exit status is 0 when the store is
whole, 1 when something is wrong with it, and 2 when it cannot be read at all.`,
			Args: cli.Wants(cobra.NoArgs),
			RunE: func(c *cobra.Command, _ []string) error {
				r, err := store.Check(data)
				if err != nil {
					return cli.AsUnusable(err)
				}
				return showReport(c.OutOrStdout(), r)
			},
		},
		&cobra.Command{
			Use:   "repair",
			Short: "Make a new store of all readable records, and keep the old file beside it",
			Long: `Make a new store of all readable records, also those that the damaged file no longer
lists, and keep the old file beside it. A store that is whole is left alone. Stop
the daemon first; its guests run on.

A guest without a readable definition is not lost if it runs or has a managed save:
the next daemon defines it again from its run record or saved image. Until the damaged
file is removed from the data directory, no saved image is removed.`,
			Args: cli.Wants(cobra.NoArgs),
			RunE: func(c *cobra.Command, _ []string) error { return repair(c.OutOrStdout(), data) },
		},
		&cobra.Command{
			Use:   "export DIR",
			Short: "Write all definitions as plain libvirt XML",
			Long: `Write the definitions of all domains, networks and pools, and of secrets without
their values, as plain libvirt XML into a new directory, laid out as /etc/libvirt.
A daemon may run meanwhile. lodge import reads such a directory.

The exit status is 0 when all definitions were written, 1 when one was not or the
store is damaged, and 2 when the store cannot be read at all.`,
			Args: cli.Wants(cobra.ExactArgs(1)),
			RunE: func(c *cobra.Command, args []string) error { return export(c.OutOrStdout(), data, args[0]) },
		},
	)
	return c
}

func showReport(w io.Writer, r *store.Report) error {
	fmt.Fprintf(w, "%s: format %d, %d bytes\n", r.Path, r.Format, r.Size)
	for _, kind := range slices.Sorted(maps.Keys(r.Records)) {
		fmt.Fprintf(w, "  %-10s %d\n", kind, r.Records[kind])
	}
	for _, p := range r.Problems {
		fmt.Fprintln(w, "bad:", cli.Clean(p.String()))
	}
	if r.Unread != nil {
		fmt.Fprintln(w, "a part cannot be read:", r.Unread)
	}
	if !r.Whole() {
		return &cli.Ending{Status: cli.SomeFailed, Text: "the store is damaged; lodge store repair keeps what can be read"}
	}
	fmt.Fprintln(w, "nothing is wrong")
	return nil
}

func repair(w io.Writer, data string) error {
	r, aside, err := store.Repair(data, slog.New(slog.DiscardHandler))
	if err != nil {
		return cli.AsUnusable(err)
	}
	if aside == "" {
		return showReport(w, r)
	}
	_ = showReport(w, r) // a damaged store is expected here
	fmt.Fprintln(w, "repaired; the damaged file is kept as", aside)
	return nil
}

func export(w io.Writer, data, dir string) error {
	failed := 0
	r, err := importer.Export(data, dir, func(r importer.Result) {
		if r.Err != nil {
			failed++
		}
		showResult(w, r)
	})
	switch {
	case err != nil:
		return cli.AsUnusable(err)
	case !r.Whole():
		return showReport(w, r)
	case failed > 0:
		return &cli.Ending{Status: cli.SomeFailed, Text: fmt.Sprintf("%d definitions could not be written", failed)}
	}
	return nil
}

func showResult(w io.Writer, r importer.Result) {
	name, file := cli.Clean(r.Name), cli.Clean(r.File) // the tree is not trusted
	if r.Err != nil {
		fmt.Fprintf(w, "%-8s %-24s failed: %s (%s)\n", r.Sort, name, cli.Clean(r.Err.Error()), file)
		return
	}
	fmt.Fprintf(w, "%-8s %-24s %s (%s)\n", r.Sort, name, cli.Clean(r.Did), file)
}
