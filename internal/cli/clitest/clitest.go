// Package clitest runs the command lines of Lodge's programs in tests.
package clitest

import (
	"bytes"
	"testing"

	"github.com/spf13/cobra"
)

// Run runs a command line until it ends or the test does. It returns standard output and standard error together.
func Run(t *testing.T, c *cobra.Command, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&out)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}
