package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/sim/memsim"
)

// memoryCommand simulates policies that move memory between guests.
func memoryCommand() *cobra.Command {
	var (
		traces   []string
		policy   string
		factors  []float64
		asJSON   bool
		generate string
		seed     string
	)
	c := &cobra.Command{
		Use:   "memory --trace FILE... --policy POLICY[:KEY=JSON;...][@KEY=NUMBER,...]",
		Short: "Find the load that a memory policy carries on a trace",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if generate != "" {
				return fmt.Errorf("not yet")
			}
			setup, err := memsim.ParseSetup(policy)
			if err != nil {
				return err
			}
			reports, err := memsim.Evaluate(c.Context(), traces, setup, factors)
			if err != nil {
				return err
			}
			for _, r := range reports {
				if asJSON {
					err = json.NewEncoder(c.OutOrStdout()).Encode(r)
				} else {
					_, err = fmt.Fprintf(c.OutOrStdout(), "%s %s: bound %.2f carried %.2f (%.2f of bound) in %.2f s\n",
						r.Trace, r.Policy, r.Bound, r.Carried, r.Carried/r.Bound, r.Wall)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	flags := c.Flags()
	flags.StringArrayVar(&traces, "trace", nil, "a trace; may be given several times")
	flags.StringVar(&policy, "policy", "", "the policy")
	flags.Float64SliceVar(&factors, "factor", nil, "absolute load factors (default: 36 shares of the bound)")
	flags.BoolVar(&asJSON, "json", false, "one JSON object a line for each trace")
	flags.StringVar(&generate, "generate", "", "write twelve traces to this folder instead")
	flags.StringVar(&seed, "seed", "d", "prefix of their names, which seeds them")
	return c
}
