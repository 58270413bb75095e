package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/cli"
	"github.com/lodge-kvm/lodge/internal/sim/memsim"
)

// memoryFlags are the flags of `lodge-sim memory`.
type memoryFlags struct {
	traces, policies []string
	factors          []float64
	asJSON           bool
	folder, seed     string
}

// memoryCommand simulates policies that move memory between guests.
func memoryCommand() *cobra.Command {
	var flags memoryFlags
	c := &cobra.Command{
		Use:   "memory {--trace FILE... --policy POLICY... | --generate FOLDER}",
		Short: "Find the load that a memory policy carries on a trace",
		Long: `Find the load that a memory policy carries on a trace: the largest load factor that keeps the 99th percentile of
slowdown at 5 % without OOM kill. Factor f stands for f times as many guests as the trace has. Without --factor a
policy runs at 36 factors, from 0.30 to 1.00 of a bound that no policy can exceed.

A policy may be followed by parameters and by changes of all guests: next:dead=0.04;lazy=false@per=1,dly=0.
Policies: ` + strings.Join(memsim.Policies(), ", ") + ".",
		Example: `  lodge-sim memory --generate traces --seed x
  lodge-sim memory --trace traces/x02-ci.jsonl.gz --policy next --policy mom
  lodge-sim memory --trace traces/x02-ci.jsonl.gz --policy next --factor 1.4 --json`,
		Args: cli.Wants(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return flags.run(c) },
	}
	f := c.Flags()
	f.StringArrayVar(&flags.traces, "trace", nil, "a trace, compressed by gzip or not; may be given several times")
	f.StringArrayVar(&flags.policies, "policy", nil, "a policy; may be given several times")
	f.Float64SliceVar(&flags.factors, "factor", nil, "absolute load factors instead of the 36")
	f.BoolVar(&flags.asJSON, "json", false, "print one JSON object a line for each policy and trace")
	f.StringVar(&flags.folder, "generate", "", "write twelve traces to this folder")
	f.StringVar(&flags.seed, "seed", "d", "prefix of the generated traces' names; each prefix gives other traces")
	c.MarkFlagsOneRequired("trace", "generate")
	c.MarkFlagsMutuallyExclusive("trace", "generate")
	c.MarkFlagsRequiredTogether("trace", "policy")
	return c
}

func (f *memoryFlags) run(c *cobra.Command) error {
	if f.folder != "" {
		files, err := memsim.Generate(f.folder, f.seed)
		for _, file := range files {
			fmt.Fprintln(c.OutOrStdout(), file)
		}
		return err
	}
	setups := make([]*memsim.Setup, len(f.policies))
	for i, policy := range f.policies {
		var err error
		if setups[i], err = memsim.ParseSetup(policy); err != nil {
			return cli.AsUnusable(err)
		}
	}
	for _, setup := range setups {
		reports, err := memsim.Evaluate(c.Context(), f.traces, setup, f.factors)
		if err != nil {
			return err
		}
		for _, r := range reports {
			if err := f.print(c, r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *memoryFlags) print(c *cobra.Command, r *memsim.Report) error {
	if f.asJSON {
		return json.NewEncoder(c.OutOrStdout()).Encode(r)
	}
	_, err := fmt.Fprintf(c.OutOrStdout(), "%s %s: bound %.2f carried %.2f (%.2f of bound) in %.2f s\n",
		r.Trace, r.Policy, r.Bound, r.Carried, r.Carried/r.Bound, r.Wall)
	return err
}
