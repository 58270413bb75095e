package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/cli"
	"github.com/lodge-kvm/lodge/lab/campaign"
	"github.com/lodge-kvm/lodge/lab/pages"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/storm"
)

// How runs of the lab end, besides what other commands say: they went on to their end,
// and not all of it was well.
const (
	labSkipped cli.Status = record.StatusSkipped
	labFailed  cli.Status = record.StatusFailed
)

const labStatuses = `The exit status is 0 when all was done, 1 when the run could not go on, 2 when it
was called wrongly, 3 when it was interrupted, 4 when it came to its end and
something that was asked for was skipped because it cannot be done here, 5 when something in it failed: a
guest did not boot, a service died, a client met errors, or the books of a load and
of its server, or the clocks, do not agree. Bounds that were broken, loads that did
not become steady, steps left out by --fit, and daemons that block in a storm are
results, and told in the report.`

// labEnding says how the run in a directory ended, which gave an error or none.
func labEnding(c *cobra.Command, dir string, err error) error {
	if err != nil {
		return labError(c, err)
	}
	if !pages.Holds(dir) {
		run, err := storm.Load(filepath.Join(dir, campaign.StormValues))
		if err != nil {
			return err
		}
		return stormEnding(c, run, nil)
	}
	told, err := record.Tell(dir)
	if err != nil {
		return err
	}
	return labTroubles(len(told.Skipped), len(told.Failed), append(told.Failed, told.Skipped...))
}

// labError is that of a run that did not come to its end.
func labError(c *cobra.Command, err error) error {
	if err != nil && c.Context().Err() != nil {
		return &cli.Ending{Status: cli.WasCancelled, Text: err.Error()}
	}
	return err
}

// stormEnding says how a storm ended.
func stormEnding(c *cobra.Command, run *storm.Run, err error) error {
	if err != nil {
		return labError(c, err)
	}
	reasons := run.Shortcomings()
	return labTroubles(len(reasons), 0, reasons)
}

// mostReasons are told at the end of a run; its report has all.
const mostReasons = 3

func labTroubles(skipped, failed int, reasons []string) error {
	if skipped+failed == 0 {
		return nil
	}
	status, words := labSkipped, []string{}
	if failed > 0 {
		status, words = labFailed, append(words, fmt.Sprintf("%d failed", failed))
	}
	if skipped > 0 {
		words = append(words, fmt.Sprintf("%d skipped", skipped))
	}
	text := strings.Join(words, ", ") + ": " + strings.Join(reasons[:min(len(reasons), mostReasons)], "; ")
	if len(reasons) > mostReasons {
		text += "; and more, see lodge lab report"
	}
	return &cli.Ending{Status: status, Text: text}
}
