package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/cli"
	"github.com/lodge-kvm/lodge/lab/campaign"
	"github.com/lodge-kvm/lodge/lab/experiment"
	"github.com/lodge-kvm/lodge/lab/image"
	"github.com/lodge-kvm/lodge/lab/pages"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
)

// Where the lab keeps things, unless flags say otherwise.
const (
	labRuns   = "/var/lib/lodge-lab/runs"
	labImages = "/var/lib/lodge-lab/images"
	labFiles  = "/var/lib/lodge-lab/guests"
)

type runFlags struct {
	campaign.Options
	targets []string
	only    []string
	runs    string
}

func (r *runFlags) places(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&r.Images, "images", labImages, "`directory` where guest images are kept")
	f.StringVar(&r.Files, "files", labFiles, "`directory` for the guests' files, on the daemons' host")
}

func labRunCommand() *cobra.Command {
	var r runFlags
	c := &cobra.Command{
		Use:   "run SCENARIO",
		Short: "Run a scenario: guests, loads and what is done to them, measured step by step",
		Long: `Run a scenario that ships (see lodge lab list) or a file (./own.yaml) on guests
of the lab's own image at one or more daemons, and keep every value in a
directory. More daemons are measured in turns, side by side; one that is named
twice tells how much it differs from itself (lodge lab compare).

An arm that is native runs the same services outside of a guest, on this host and
as root; elsewhere it is skipped, and the reason is told.

A daemon may be on another host (qemu+ssh://, qemu+tls://): --files is a directory
there then, the guests' image is sent once and kept in it, and what only the host
itself could tell or change is skipped with its reason.

All that is made is taken away at the end, and settings of the host that a
scenario changes are put back. A run that was killed goes on with lodge lab
resume, or is cleaned up after with lodge lab clean.

` + labStatuses,
		Example: `  lodge lab run tile --profile mini --target lodged=/run/lodge/libvirt-sock
  lodge lab run oltp-migrate --profile mini --target from=/run/a/libvirt-sock --to /run/b/libvirt-sock
  lodge lab run block-io --profile mini --only bus=virtio --target a=/run/lodge/libvirt-sock --target b=qemu:///system
  lodge lab run tile --profile mini --target far=qemu+ssh://root@far/system --files /srv/lab`,
		Args:              cli.Wants(cobra.ExactArgs(1)),
		ValidArgsFunction: cobra.FixedCompletions(scenario.Names(), cobra.ShellCompDirectiveDefault), // or a file
		RunE:              func(c *cobra.Command, args []string) error { return r.run(c, args[0]) },
	}
	f := c.Flags()
	r.places(c)
	f.StringVar(&r.Profile, "profile", "paper", "`name` of the scenario's profile")
	f.StringArrayVar(&r.targets, "target", nil, "`NAME=ADDRESS` of a daemon: its socket's path or a URI; again for each")
	f.StringVar(&r.To, "to", "", "`ADDRESS` of the daemon that guests are migrated to, where the scenario does that")
	f.StringArrayVar(&r.only, "only", nil, "`AXIS=VALUE,...`: only the steps with these values; again for each axis")
	f.IntVar(&r.Repetitions, "repetitions", 0, "`number` of repetitions, instead of the scenario's")
	f.BoolVar(&r.Fit, "fit", false, "leave out the steps that do not fit on the host")
	f.Uint64Var(&r.Seed, "seed", 0, "`number` that the order of arms comes from (default: a new one)")
	f.StringVar(&r.Dir, "directory", "", "`directory` of the run (default: a new one in "+labRuns+")")
	return c
}

func (r *runFlags) run(c *cobra.Command, name string) (err error) {
	if r.Targets, err = namedTargets(r.targets, nil); err != nil {
		return err
	}
	if r.Only, err = axes(r.only); err != nil {
		return err
	}
	if !c.Flags().Changed("seed") {
		r.Seed = rand.Uint64()
	}
	r.Scenario, r.Version, r.Command = name, version, calledAs()
	if r.Dir == "" {
		r.Dir = filepath.Join(labRuns, time.Now().UTC().Format("2006-01-02-150405-")+strings.TrimSuffix(filepath.Base(name), ".yaml"))
	}
	r.Say = tell(c.ErrOrStderr())
	err = campaign.Run(c.Context(), r.Options)
	fmt.Fprintln(c.OutOrStdout(), r.Dir)
	return labEnding(c, r.Dir, err)
}

// axes reads AXIS=VALUE,VALUE.
func axes(texts []string) (map[string][]string, error) {
	all := map[string][]string{}
	for _, text := range texts {
		axis, values, ok := strings.Cut(text, "=")
		if !ok || axis == "" || values == "" {
			return nil, fmt.Errorf("--only %q wants the form AXIS=VALUE,VALUE", text)
		}
		all[axis] = append(all[axis], strings.Split(values, ",")...)
	}
	return all, nil
}

// tell shows how far a run is, a line for each turn.
func tell(w io.Writer) func(experiment.Progress) {
	return func(p experiment.Progress) {
		left := ""
		if p.Left > 0 {
			left = ", about " + p.Left.Round(time.Second).String() + " left"
		}
		fmt.Fprintf(w, "turn %d of %d: %s, %s, repetition %d%s\n", p.Done+1, p.Turns, p.Turn.Step, p.Turn.Arm, p.Turn.Repetition, left)
	}
}

func labResumeCommand() *cobra.Command {
	var r runFlags
	c := &cobra.Command{
		Use:   "resume DIRECTORY",
		Short: "Go on with a run that was stopped or killed",
		Long: `Go on with a run that was stopped or killed, with the first turn that has not
ended. What it left is taken away first, as lodge lab clean does.

` + labStatuses,
		Args: cli.Wants(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			r.Dir, r.Say = args[0], tell(c.ErrOrStderr())
			return labEnding(c, r.Dir, campaign.Resume(c.Context(), r.Options))
		},
	}
	r.places(c)
	return c
}

func labCompareCommand() *cobra.Command {
	var how pages.Comparing
	c := &cobra.Command{
		Use:   "compare RUN | A B",
		Short: "Compare the targets of a run, or two runs of one scenario on one host",
		Long: `Set every figure that was measured beside its other half, step by step: throughput
and times of each load and operation, boots, events, what the host gave. Of one
run, its other targets stand beside the first, repetition by repetition; a target
with the first one's address is that one measured twice, and tells the noise. Of
two runs, B stands beside A.

What measured other work, or on another host, is refused. A difference is a
finding only if chance hardly makes it, and if it is larger than a tenth and than
the noise; few repetitions give no verdict. Across hosts there are ratios only.
Figures without a verdict are shown if they are main ones, of whole loads; --all
shows every one. Where there is a verdict on none the reason is said once.
What ran outside of a guest is no daemon's, and on no side: of two runs it tells how
the host itself has changed.`,
		Example: `  lodge lab run block-io --profile mini --repetitions 10 --directory r \
    --target lodged=/run/lodge/libvirt-sock --target again=/run/lodge/libvirt-sock --target libvirtd=qemu:///system
  lodge lab compare r`,
		Args: cli.Wants(cobra.RangeArgs(1, 2)),
		RunE: func(c *cobra.Command, dirs []string) error { return pages.Compare(dirs, how, c.OutOrStdout()) },
	}
	c.Flags().BoolVar(&how.AcrossHosts, "across-hosts", false, "compare runs of different hosts, too: ratios, and no verdict")
	c.Flags().BoolVar(&how.All, "all", false, "show every figure, also those without a verdict")
	c.Flags().StringVar(&how.Page, "markdown", "", "`file` of a page into which it is put, between the marks of the scenario's name")
	return c
}

func labPackCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pack DIRECTORY...",
		Short: "Make complete runs small, for keeping",
		Args:  cli.Wants(cobra.MinimumNArgs(1)),
		RunE: func(_ *cobra.Command, dirs []string) error {
			var all error
			for _, dir := range dirs {
				all = errors.Join(all, record.Pack(dir))
			}
			return all
		},
	}
}

func labCleanCommand() *cobra.Command {
	var r runFlags
	var stored []string
	c := &cobra.Command{
		Use:   "clean DIRECTORY...",
		Short: "Take away what runs that were killed have left: guests, networks, files, settings",
		Long: `Take away what runs that were killed have left: guests, networks, files, settings.

Runs at a daemon of another host keep the guests' image there, below --files, for
the next one; --images-at takes these away.`,
		Example: `  lodge lab clean r
  lodge lab clean --images-at qemu+ssh://root@far/system --files /srv/lab`,
		Args: func(c *cobra.Command, args []string) error {
			if len(stored) > 0 {
				return nil
			}
			return cli.Wants(cobra.MinimumNArgs(1))(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			var all error
			for _, address := range stored {
				all = errors.Join(all, campaign.CleanImages(c.Context(), address, r.Files))
			}
			for _, dir := range args {
				say := func(text string) { fmt.Fprintln(c.ErrOrStderr(), text) }
				all = errors.Join(all, campaign.Clean(c.Context(), dir, r.Files, say))
			}
			return all
		},
	}
	r.places(c)
	c.Flags().StringArrayVar(&stored, "images-at", nil, "`ADDRESS` of a daemon of another host whose images are taken away; again for each")
	return c
}

func labListCommand() *cobra.Command {
	var r runFlags
	c := &cobra.Command{
		Use:   "list",
		Short: "List the scenarios that ship, and the runs there are",
		Args:  cli.Wants(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return list(c.OutOrStdout(), r.runs)
		},
	}
	c.Flags().StringVar(&r.runs, "runs", labRuns, "`directory` of the runs")
	return c
}

func list(out io.Writer, root string) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SCENARIO\tPROFILES\tWHAT")
	for _, name := range scenario.Names() {
		s, err := scenario.Shipped(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", name, strings.Join(s.Profiles(), " "), s.Title)
	}
	runs, err := campaign.List(root)
	if err != nil {
		return err
	}
	if len(runs) > 0 {
		fmt.Fprintln(t, "\nRUN\tSCENARIO\tBEGAN\tHOW IT IS")
	}
	for _, run := range runs {
		state := string(run.Outcome)
		if state == "" {
			state = "runs, or was killed"
		}
		if run.Left {
			state += "; lodge lab clean takes away what it left"
		}
		fmt.Fprintf(t, "%s\t%s %s\t%s\t%s\n", run.Dir, run.Scenario.Name, run.Scenario.Profile, run.Started.Format(time.DateTime), state)
	}
	return t.Flush()
}

func labImageCommand() *cobra.Command {
	how := image.How{Agent: image.DefaultAgent()}
	c := &cobra.Command{
		Use:   "image",
		Short: "Make the guest that scenarios run in, or find it made",
		Args:  cli.Wants(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			how.Say = func(text string) { fmt.Fprintln(c.ErrOrStderr(), text) }
			made, err := image.Build(c.Context(), how)
			if err == nil {
				fmt.Fprintln(c.OutOrStdout(), made.Digest)
			}
			return err
		},
	}
	c.Flags().StringVar(&how.Cache, "images", labImages, "`directory` where guest images are kept")
	c.Flags().StringVar(&how.Agent, "agent", how.Agent, "`file` of the agent's static program")
	return c
}
