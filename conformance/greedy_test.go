package conformance

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const greedyRules = `
version: 1
rules:
  - name: all
    who: [user:4242, user:4243]
    may: [read, volumes]
    pools: shared
    images: "pool:shared"
`

// A client starts downloads of all volumes of a pool, over several connections, and reads nothing. Other clients
// must be able to work on the pool as before.
// Promise: A15
func TestDownload_StalledClientsBlockNoOther(t *testing.T) {
	needs(t)
	d, _ := startWithRules(t, greedyRules)
	const volumes = 40
	dir := filepath.Join(d.dir, "shared")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range volumes {
		name := fmt.Sprintf("%s/%d", dir, i)
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(name, 64<<20); err != nil { // more than any socket takes
			t.Fatal(err)
		}
	}
	d.virsh(t, "pool-define-as", "shared", "dir", "--target", dir)
	d.virsh(t, "pool-start", "shared")
	defer d.virsh(t, "pool-undefine", "shared")
	defer d.virsh(t, "pool-destroy", "shared")

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := d.as(ctx, operator, "/usr/bin/python3", script(t, "greedy.py"), d.uri(), "shared", fmt.Sprint(volumes))
	hold, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = os.Stderr
	out := begin(t, c)
	defer func() { _ = c.Wait() }()
	defer func() { _ = hold.Close() }()
	said, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(said, "8 ") || !strings.Contains(said, "already run for this client") {
		t.Errorf("the greedy client has %q, %v", said, err)
	}
	d.mustSucceedAs(t, builder, "vol-create-as", "shared", "mine", "1M")
	d.mustSucceedAs(t, builder, "vol-download", "--pool", "shared", "mine", "/dev/null")
	d.mustSucceedAs(t, builder, "vol-resize", "--pool", "shared", "mine", "2M")
	d.mustSucceedAs(t, builder, "vol-delete", "--pool", "shared", "mine")
	d.mustBeDeniedAs(t, operator, "vol-resize", "--pool", "shared", "39", "128M")
}
