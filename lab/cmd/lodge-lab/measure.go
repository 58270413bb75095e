package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/cli"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/memoryreport"
	"github.com/lodge-kvm/lodge/lab/pages"
	"github.com/lodge-kvm/lodge/lab/stormreport"
)

func labStartCommand() *cobra.Command {
	var o lab.Options
	var values, page string
	c := &cobra.Command{
		Use:   "start",
		Short: "Measure starts, definitions and the daemon's own memory",
		Long: `Measure one daemon on this host: the start and the destroy of a small paused
guest, the define and undefine of one with 16 disks, and the memory and threads
of the daemon while more and more guests are there. With --bare QEMU is also run
without the daemon, with the very arguments that the daemon gave it, in turns.

The guests are the command's own, are emulated (no KVM is needed), and are gone
at the end. Other guests are left alone. Measure on a quiet host.`,
		Example: `  lodge lab start --bare
  lodge lab start --bare --socket /run/lodge/libvirt-sock --samples 30 --json lodged.ndjson
  lodge lab start --socket 'qemu:///system?socket=/run/libvirt/libvirt-sock'`,
		Args: cli.Wants(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.Samples < 1 {
				return errors.New("--samples wants at least 1")
			}
			o.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
			run, err := lab.Measure(c.Context(), o)
			if err != nil {
				return err
			}
			if values != "" {
				err = run.Save(values)
			}
			return errors.Join(err, show(c, []*lab.Run{run}, page))
		},
	}
	f := c.Flags()
	f.StringVar(&o.Address, "socket", remote.System, "`path` of the daemon's socket, or a URI")
	f.StringVar(&o.Name, "name", "", "`name` of the daemon in tables (default: its program's)")
	f.DurationVar(&o.Pause, "pause", 0, "`time` without a call before each start, for a daemon that makes something ready meanwhile")
	f.BoolVar(&o.Bare, "bare", false, "also run QEMU without the daemon, with the same arguments")
	f.IntVar(&o.Samples, "samples", 20, "`number` of times that each thing is done")
	f.IntSliceVar(&o.Guests, "guests", []int{8, 64}, "`numbers` of guests at which the daemon's memory is looked at, rising")
	f.StringVar(&o.Command, "made-by", calledAs(), "`command` that is named as the one that makes these figures")
	f.StringVar(&values, "json", "", "`file` for every single value, as lines of JSON")
	f.StringVar(&page, "markdown", "", "`file` of a page into which the tables are put, between its marks")
	return c
}

func labReportCommand() *cobra.Command {
	var o stormreport.Output
	c := &cobra.Command{
		Use:   "report DIRECTORY | VALUES...",
		Short: "Show what a run came to, or values of starts or storms that were kept with --json",
		Long: `Show what the run of a scenario came to, from its directory alone; or values that
were kept with --json. Of starts, others are compared with the first. Storms are
shown as one: they must have been measured on the same host. Rows of lodge-sim
that make bench-memory kept are shown as well.

The page of --html is one file that asks nothing of other hosts; each of its
pictures can be kept as SVG or PNG from there. --svg puts them all into files.`,
		Args: cli.Wants(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, files []string) error {
			if slices.ContainsFunc(files, pages.Holds) {
				return reportRun(c, files, o)
			}
			if slices.ContainsFunc(files, stormreport.Holds) {
				return stormreport.Show(files, c.OutOrStdout(), o)
			}
			if slices.ContainsFunc(files, memoryreport.Holds) {
				return reportMemory(c, files, o)
			}
			if o.HTML != "" || o.SVG != "" {
				return errors.New("--html and --svg show runs and storms, and these are other values")
			}
			var runs []*lab.Run
			for _, file := range files {
				run, err := lab.Load(file)
				if err != nil {
					return err
				}
				runs = append(runs, run)
			}
			return show(c, runs, o.Markdown)
		},
	}
	c.Flags().StringVar(&o.Markdown, "markdown", "", "`file` of a page into which the tables are put, between its marks")
	c.Flags().StringVar(&o.HTML, "html", "", "`file` for a page with pictures, of a run or of storms")
	c.Flags().StringVar(&o.SVG, "svg", "", "`directory` for the pictures, each as a file")
	return c
}

// reportRun shows one run of a scenario.
func reportRun(c *cobra.Command, dirs []string, o stormreport.Output) error {
	if len(dirs) > 1 {
		return errors.New("a report is of one run: name one directory")
	}
	return pages.Report(dirs[0], c.OutOrStdout(), pages.Output(o))
}

// reportMemory shows one simulation of memory policies.
func reportMemory(c *cobra.Command, files []string, o stormreport.Output) error {
	if len(files) > 1 {
		return errors.New("a report is of one simulation: name one file")
	}
	if o.HTML != "" {
		return errors.New("--html shows runs and storms, and this is a simulation")
	}
	return memoryreport.Show(files[0], c.OutOrStdout(), memoryreport.Output{Markdown: o.Markdown, SVG: o.SVG})
}

// show prints what runs say, and puts it into a page if one is named.
func show(c *cobra.Command, runs []*lab.Run, page string) error {
	report := lab.NewReport(runs)
	fmt.Fprint(c.OutOrStdout(), report.Text())
	if page == "" {
		return nil
	}
	return report.IntoPage(page)
}
