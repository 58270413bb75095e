package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
)

// The programs that served three interfaces have ended: one of the guest's, one that is being
// plugged in, and one that was unplugged. No other guest gets their users while the records
// name them: this guest's end frees them.
func TestUserNetwork_UsersInRecordsAreNotGivenToAnotherGuest(t *testing.T) {
	const first = 0x7fff0060
	r := bareRegistry(t)
	users, err := sandbox.NewUsers(first, first+6)
	if err != nil {
		t.Fatal(err)
	}
	r.Isolation = &sandbox.Isolation{Users: users}
	served := func(n uint32) *machine.HeldNIC {
		return &machine.HeldNIC{Alias: "net0", User: &sandbox.User{UID: first + n, GID: first + n}}
	}
	dir := filepath.Join(r.RunDir, "one")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	rec := &machine.RunRecord{Name: "one", UUID: claimedUUID, NICs: []machine.HeldNIC{*served(0)}}
	if err := machine.WriteRecord(dir, rec); err != nil {
		t.Fatal(err)
	}
	for kind, payload := range map[string]any{hotplug.AttachKind.Name: &hotplug.AttachOp{NIC: served(1)}, hotplug.CleanupKind.Name: &hotplug.CleanupOp{NIC: served(2)}} {
		text, err := json.Marshal(payload)
		if err != nil {
			t.Fatal(err)
		}
		if err := (operation.FileJournal{Dir: dir}).Write(operation.Record{ID: kind, Kind: kind, Version: 1, Payload: text}); err != nil {
			t.Fatal(err)
		}
	}
	if err := provision.FindUsedUsers(r); err != nil {
		t.Fatal(err)
	}
	u, err := users.Take("another")
	if err != nil || u.UID != first+3 {
		t.Errorf("another guest runs as %v, %v", u, err)
	}
}

// A record of an earlier daemon may name a user that another guest runs as by now.
func TestUserNetwork_AnotherGuestsUserIsNotFreed(t *testing.T) {
	const first = 0x7fff0070
	r := bareRegistry(t)
	users, err := sandbox.NewUsers(first, first+2)
	if err != nil {
		t.Fatal(err)
	}
	r.Isolation = &sandbox.Isolation{Users: users}
	user, err := users.Take("another")
	if err != nil {
		t.Fatal(err)
	}
	run := machine.NewInstance(machine.RunRecord{Name: "one", UUID: claimedUUID}, t.TempDir(), kernel.Root{}, r.Log)
	release, err := provision.ReadoptNIC(r, run, nil, &machine.HeldNIC{Alias: "net0", User: &user})
	if err != nil {
		t.Fatal(err)
	}
	if err := release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if users.Reserve(user, "a third") {
		t.Error("the other guest's user was freed")
	}
}

func TestUserNetwork_TheEndOfItsProgramIsLogged(t *testing.T) {
	for name, needed := range map[string]bool{"while it is needed": true, "when it is unplugged": false} {
		t.Run(name, func(t *testing.T) {
			program := exec.CommandContext(t.Context(), "sleep", "600")
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = program.Wait() }()
			at, err := kernel.Root{}.Process(program.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			process, err := qemuprocess.Adopt(program.Process.Pid, at.Start)
			if err != nil {
				t.Fatal(err)
			}
			serving, end := context.WithCancelCause(t.Context())
			defer end(nil)
			if !needed {
				end(nil)
			}
			if err := program.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			var said bytes.Buffer
			provision.WatchUserNetwork(serving, bareRegistry(t), process, slog.New(slog.NewTextHandler(&said, nil)))
			if logged := strings.Contains(said.String(), "has ended"); logged != needed {
				t.Errorf("the log says %q", said.String())
			}
		})
	}
}
