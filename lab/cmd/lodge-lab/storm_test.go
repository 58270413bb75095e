package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/lab/storm"
)

func TestAStormThatMakesNoSenseIsRefused(t *testing.T) {
	for args, want := range map[string]string{
		"":                                            "--target NAME=qemu:///system",
		"--target sock":                               "NAME=ADDRESS",
		"--target a=/s --target a=/t":                 "two targets",
		"--target a=/s --daemon b=true":               "--daemon",
		"--target a=/s --scenario nonsense":           "they are start",
		"--target a=/s --guests 0":                    "from 1 to",
		"--target a=/s --step start:x":                "SCENARIO:GUESTS",
		"--target a=/s --clients 0":                   "at least 1",
		"--target a=/s --html page.html":              "--json",
		"--target a=/nowhere --step start:1":          "/nowhere",
		"--target a=/nowhere --daemon a=false --mini": "/nowhere",
		"--target a=/s --scenario adopt":              "--daemon NAME=COMMAND",
		"--target a=/s --step adopt:4":                "--daemon NAME=COMMAND",
	} {
		if out, err := lodgeLab(t, append([]string{"storm"}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("lodge lab storm %s: %v\n%s", args, err, out)
		}
	}
}

// What is skipped counts against a storm only if it was asked for: adopt is none of "all"
// where no daemon may be killed.
// Promise: L58
func TestStorm_MiniAsksForNothingThatCannotBeDone(t *testing.T) {
	for args, adopts := range map[string]bool{
		"--mini --target a=/s":                              false,
		"--scenario all --target a=/s":                      false,
		"--mini --target a=/s --daemon a=lodged":            true,
		"--scenario start,adopt --target a=/s --daemon a=x": true,
		"--scenario start --target a=/s":                    false,
	} {
		var s stormFlags
		c := s.command()
		c.SetErr(io.Discard)
		if err := errors.Join(c.ParseFlags(strings.Fields(args)), s.complete(c)); err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		has := slices.ContainsFunc(s.Plan, func(step storm.Step) bool { return step.Scenario == storm.Adopt })
		if has != adopts || len(s.Plan) == 0 {
			t.Errorf("%s: the plan is %v", args, s.Plan)
		}
	}
}
