package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/cli"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/storm"
	"github.com/lodge-kvm/lodge/lab/stormreport"
)

// stormFlags are what is said on the command line, before it is a plan.
type stormFlags struct {
	storm.Options
	targets, daemons, scenarios, steps []string
	guests, disks                      []int
	mini                               bool
	values, html                       string
}

func labStormCommand() *cobra.Command { return new(stormFlags).command() }

func (s *stormFlags) command() *cobra.Command {
	c := &cobra.Command{
		Use:   "storm --target NAME=ADDRESS...",
		Short: "Do to daemons at once what hosts with hundreds of guests do, and compare them",
		Long: `Measure daemons that speak libvirt's protocol, in one run and in turns: in each
repetition every step is done with every target, in an order drawn anew. With
--direct QEMU is also run without a daemon, with the very arguments that each
gave it.

Scenarios:
  start     define, start, destroy and undefine guests, by many clients at once
  define    define and undefine guests
  stats     statistics of all guests, also while a tenth of their QEMUs is stopped
  wedge     calls while a tenth of the QEMUs is stopped and 25 callers hang on them
  adopt     the daemon is killed and started again (wants --daemon; without that
            it is left out of "all" and of --mini)
  save      managed save, and start from it
  connect   connections made and dropped
  same      many clients on one and the same guest
  thousand  cost of one more guest, in ten parts up to the number of guests

The guests are the command's own, are emulated (no KVM is needed), and are gone
at the end, also after an interrupt. Other guests are left alone. What a daemon
does not finish within --patience is recorded as blocked.

` + labStatuses,
		Example: `  lodge lab storm --target lodged=/run/lodge/libvirt-sock --direct --scenario start --guests 1,16,64
  lodge lab storm --mini --target lodged=/tmp/l/run/libvirt-sock --daemon lodged='lodged --data /tmp/l/data --run /tmp/l/run'
  lodge lab storm --target lodged=/run/lodge/libvirt-sock --step start:64x16,wedge:64 --repeat 5
  lodge lab storm --target a=/run/lodge/libvirt-sock --target b=qemu:///system --scenario start,stats,wedge --json storm.ndjson.gz`,
		Args: cli.Wants(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return s.run(c) },
	}
	f := c.Flags()
	f.StringArrayVar(&s.targets, "target", nil, "`NAME=ADDRESS` of a daemon: its socket's path or a URI; again for each")
	f.StringArrayVar(&s.daemons, "daemon", nil, "`NAME=COMMAND` by which the lab starts the daemon of that target, and ends it")
	f.BoolVar(&s.Direct, "direct", false, "also run QEMU without a daemon, with the same arguments")
	f.StringSliceVar(&s.scenarios, "scenario", []string{"start"}, "`names` of scenarios, or all")
	f.StringSliceVar(&s.steps, "step", nil, "`SCENARIO:GUESTSxDISKS`: one step, instead of all that --scenario, --guests and --disks make")
	f.IntSliceVar(&s.guests, "guests", []int{1, 4, 16, 64, 256}, "`numbers` of guests")
	f.IntSliceVar(&s.disks, "disks", []int{0, 16}, "`numbers` of disks of each guest, in start and define")
	f.IntVar(&s.Clients, "clients", 64, "`number` of clients at once")
	f.IntVar(&s.Repeats, "repeat", 3, "`number` of repetitions")
	f.DurationVar(&s.Patience, "patience", 45*time.Second, "`time` after which what has not ended counts as blocked")
	f.DurationVar(&s.Window, "window", 5*time.Second, "`time` for which calls are repeated, where they are")
	f.BoolVar(&s.mini, "mini", false, "every scenario with few guests, in about a minute, unless other flags say otherwise")
	f.Uint64Var(&s.Seed, "seed", 0, "`number` that every random choice comes from (default: a new one)")
	f.StringVar(&s.Directory, "directory", "/var/tmp", "`directory` for the guests' disks, on the daemons' host")
	f.StringVar(&s.Command, "made-by", calledAs(), "`command` that is named as the one that makes these values")
	f.StringVar(&s.values, "json", "", "`file` for all values, as lines of JSON; packed if its name ends in .gz")
	f.StringVar(&s.html, "html", "", "`file` for a page with pictures, which carries the values of --json")
	return c
}

func (s *stormFlags) run(c *cobra.Command) error {
	if err := s.complete(c); err != nil {
		return err
	}
	run, err := storm.Do(c.Context(), s.Options)
	if run == nil {
		return labError(c, err)
	}
	fmt.Fprint(c.OutOrStdout(), run.Text())
	if s.values != "" {
		err = errors.Join(err, run.Save(s.values))
	}
	if s.html != "" && err == nil {
		err = stormreport.Show([]string{s.values}, io.Discard, stormreport.Output{HTML: s.html})
	}
	return stormEnding(c, run, err)
}

// complete makes options of the flags.
func (s *stormFlags) complete(c *cobra.Command) error {
	if s.mini {
		s.shrink(c)
	}
	if s.Clients < 1 || s.Repeats < 1 || s.Patience <= 0 || s.Window <= 0 {
		return errors.New("--clients, --repeat, --patience and --window want at least 1")
	}
	if s.html != "" && s.values == "" {
		return errors.New("--html wants --json too, because the page carries the values")
	}
	var err error
	if s.Targets, err = namedTargets(s.targets, s.daemons); err != nil {
		return err
	}
	s.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
	if s.Plan, err = s.plan(); err != nil {
		return err
	}
	if !c.Flags().Changed("seed") {
		s.Seed = rand.Uint64()
	}
	s.Version = version
	return nil
}

func (s *stormFlags) plan() (plan []storm.Step, err error) {
	kills := len(s.daemons) > 0
	if len(s.steps) == 0 {
		if slices.Contains(s.scenarios, "all") {
			if s.scenarios = storm.Names(kills); !kills {
				s.Log.Info("adopt is left out: it kills a daemon and starts it again, and --daemon names none")
			}
		}
		plan, err = storm.Plan(s.scenarios, s.guests, s.disks)
	}
	for _, text := range s.steps {
		step, err := storm.ParseStep(text)
		if err != nil {
			return nil, err
		}
		plan = append(plan, step)
	}
	if !kills && slices.ContainsFunc(plan, func(step storm.Step) bool { return step.Scenario == storm.Adopt }) {
		return nil, cli.AsUnusable(errors.New("adopt kills the daemon and starts it again: name its command with --daemon NAME=COMMAND, or leave adopt out"))
	}
	return plan, err
}

// shrink makes the defaults of flags small.
func (s *stormFlags) shrink(c *cobra.Command) {
	given := c.Flags().Changed
	if !given("scenario") {
		s.scenarios = []string{"all"}
	}
	if !given("guests") {
		s.guests = []int{10}
	}
	if !given("disks") {
		s.disks = []int{0, 4}
	}
	if !given("clients") {
		s.Clients = 8
	}
	if !given("repeat") {
		s.Repeats = 1
	}
	if !given("patience") {
		s.Patience = 15 * time.Second
	}
	if !given("window") {
		s.Window = time.Second
	}
}

// namedTargets joins addresses and commands by their names.
func namedTargets(addresses, commands []string) ([]storm.Target, error) {
	if len(addresses) == 0 {
		return nil, errors.New("name a daemon to measure: --target NAME=" + remote.System)
	}
	var all []storm.Target
	for _, text := range addresses {
		name, address, ok := strings.Cut(text, "=")
		if !ok || name == "" || strings.ContainsAny(name, "/: ") {
			return nil, fmt.Errorf("--target %q wants the form NAME=ADDRESS", text)
		}
		if slices.ContainsFunc(all, func(t storm.Target) bool { return t.Name == name }) {
			return nil, fmt.Errorf("two targets have the name %s", name)
		}
		all = append(all, storm.Target{Name: name, Address: address})
	}
	for _, text := range commands {
		name, command, ok := strings.Cut(text, "=")
		i := slices.IndexFunc(all, func(t storm.Target) bool { return t.Name == name })
		if !ok || command == "" || i < 0 {
			return nil, fmt.Errorf("--daemon %q wants the form NAME=COMMAND with the name of a --target", text)
		}
		all[i].Start = command
	}
	return all, nil
}
