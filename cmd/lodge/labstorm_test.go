package main

import (
	"strings"
	"testing"
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
	} {
		if out, err := lodge(t, append([]string{"lab", "storm"}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("lodge lab storm %s: %v\n%s", args, err, out)
		}
	}
}
