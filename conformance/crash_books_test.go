package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
)

var crashSecret = libvirt.Secret{UUID: libvirt.UUID{0xc8, 15: 1}}

func defineSecret(description string) func(c *crash) error {
	return func(c *crash) error {
		_, err := c.l.SecretDefineXML(fmt.Sprintf(`<secret ephemeral='no' private='no'><uuid>%s</uuid><description>%s</description></secret>`,
			uuidText(crashSecret.UUID), description), 0)
		return err
	}
}

func setSecret(value string) func(c *crash) error {
	return func(c *crash) error { return c.l.SecretSetValue(crashSecret, []byte(value), 0) }
}

func secretActions() []action {
	undefine := func(c *crash) error { return c.l.SecretUndefine(crashSecret) }
	return []action{
		{"define a secret", defineSecret("first"), undefine},
		{"redefine a secret", defineSecret("second"), defineSecret("first")},
		{"undefine a secret", undefine, defineSecret("second")},
		{"define it again", defineSecret("second"), undefine},
	}
}

// saySecrets lists secrets with their values.
func (c *crash) saySecrets(say func(string, ...any)) error {
	all, _, err := c.l.ConnectListAllSecrets(1, 0)
	if err != nil {
		return err
	}
	for _, s := range all {
		xml, err := c.l.SecretGetXMLDesc(s, 0)
		if err != nil {
			return err
		}
		value, err := c.l.SecretGetValue(s, 0)
		say("secret %s\nvalue %q (%v)", xml, value, err != nil)
	}
	return nil
}

// killWhileWritingFiles kills the daemon while it creates or replaces the files that everything else depends on: the
// key of secrets, the access rules, and the store.
func (c *crash) killWhileWritingFiles() {
	key := filepath.Join(c.data, "secret.key")
	for i, point := range []string{"secret.key-made", "secret.key-named"} {
		if !c.drawn("key", failpoint.Armed{Point: point}) {
			continue
		}
		c.signal(c.t, "KILL")
		c.must(os.RemoveAll(key))
		c.begin()
		c.must(c.l.SecretUndefine(crashSecret)) // no other key is made while it has a value
		c.must(defineSecret("first")(c))
		c.killAt(point, setSecret(fmt.Sprintf("value %d", i)))
		c.begin()
		// The call had no answer, and no partial key is left: a secret's value can be set and read.
		c.must(setSecret("given")(c))
		c.signal(c.t, "KILL")
		c.begin()
		if value, err := c.l.SecretGetValue(crashSecret, 0); err != nil || string(value) != "given" {
			c.t.Fatalf("%s: the secret's value is %q (%v)", point, value, err)
		}
	}
	c.killWhileRewritingStore()
	c.killWhileLoadingRules()
}

// killAt makes a request. The daemon dies at the given fail point while it serves it.
func (c *crash) killAt(point string, do func(c *crash) error) {
	c.ask(failpoint.Armed{Point: point, Action: failpoint.Kill})
	_ = c.attempt(action{do: do})
	c.checkDied(point)
}

func (c *crash) checkDied(point string) {
	select {
	case <-c.ended:
	case <-time.After(patience):
		c.t.Fatalf("it lives past %s", point)
	}
	c.tally.note(point)
	c.ask(failpoint.Armed{})
}

// killWhileRewritingStore damages the store's file and kills the daemon while it writes a new one. No record may be
// lost.
func (c *crash) killWhileRewritingStore() {
	c.must(define(c))
	records := c.waitForStableState()
	for _, point := range []string{"store.filled", "store.aside", "store.rewritten"} {
		if !c.drawn("rewrite", failpoint.Armed{Point: point}) {
			continue
		}
		c.signal(c.t, "KILL")
		file, err := os.OpenFile(filepath.Join(c.data, "lodge.db"), os.O_WRONLY, 0)
		c.must(err)
		_, err = file.WriteAt(make([]byte, 2*os.Getpagesize()), 0) // both heads
		c.must(err)
		c.must(file.Close())
		c.ask(failpoint.Armed{Point: point, Action: failpoint.Kill})
		ctx, cancel := context.WithTimeout(c.t.Context(), patience)
		dies := c.command(ctx, failpointDaemon(c.t, false), "--data", c.data, "--run", c.run, "--prepared", "0")
		dies.Env = append(os.Environ(), failpoint.Variable+"="+c.commands)
		_ = dies.Run() // it is killed
		cancel()
		if !slices.Contains(c.reached(), point) {
			c.t.Fatalf("a daemon with a damaged store does not come to %s", point)
		}
		c.tally.note(point)
		c.ask(failpoint.Armed{})
		c.begin()
		if wrong := c.waitForState(records); wrong != "" {
			c.t.Fatalf("the store, killed at %s: %s", point, wrong)
		}
	}
	c.must(undefine(c))
}

// killWhileLoadingRules kills the daemon while it loads new access rules. The next daemon must apply them.
func (c *crash) killWhileLoadingRules() {
	rules := filepath.Join(c.dir, "commands", "access.yaml")
	write := func(guests string) {
		c.must(os.WriteFile(rules, []byte("version: 1\nrules:\n  - {name: all, who: user:4242, may: [read], guests: "+guests+"}\n"), 0o600))
	}
	c.must(define(c))
	c.must(os.Chmod(c.dir, 0o711)) //nolint:gosec // others may pass to the sockets
	write("none")
	c.signal(c.t, "KILL")
	c.launch(c.t, "--prepared", "0", "--access", rules)
	c.mustBeDeniedAs(c.t, 4242, "dominfo", "victim")
	write("victim")
	c.ask(failpoint.Armed{Point: "access.read", Action: failpoint.Kill})
	c.output(c.t, "kill", "-HUP", c.pid)
	c.checkDied("access.read")
	c.launch(c.t, "--prepared", "0", "--access", rules)
	if said := c.mustSucceedAs(c.t, 4242, "domstate", "victim"); !strings.Contains(said, "shut off") {
		c.t.Errorf("the new rules are not in force: %s", said)
	}
	c.signal(c.t, "KILL")
	c.begin()
	c.must(undefine(c))
	c.must(c.l.SecretUndefine(crashSecret))
}
