package tuning

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

const nf = "proc/sys/net/bridge/bridge-nf-call-iptables"

// host is a tree with a few settings.
func host(t *testing.T) Host {
	t.Helper()
	h := Host{t.TempDir()}
	for path, text := range map[string]string{
		nf: "1\n", "proc/sys/net/bridge/bridge-nf-call-arptables": "0\n",
		"proc/sys/net/ipv4/tcp_rmem":      "4096\t131072\t6291456\n",
		"sys/block/sda/queue/scheduler":   "[none] mq-deadline kyber\n",
		"sys/block/loop0/queue/scheduler": "none\n",
	} {
		path = filepath.Join(h.Root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func value(t *testing.T, h Host, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(h.Root, path))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func plan(t *testing.T, h Host, name, setting string) []Change {
	t.Helper()
	changes, _, err := h.Plan(name, setting)
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

func TestASettingIsChangedAndPutBack(t *testing.T) {
	h := host(t)
	changes := plan(t, h, "bridge-netfilter", "off")
	if want := []Change{{nf, "1", "0"}}; !slices.Equal(changes, want) {
		t.Fatalf("planned %v: what is off already is no change", changes)
	}
	if value(t, h, nf) != "1" {
		t.Error("planning changed it")
	}
	if err := h.Apply(changes); err != nil || value(t, h, nf) != "0" {
		t.Errorf("%v: %s", err, value(t, h, nf))
	}
	for range 2 { // a second time does no harm
		if left, err := h.Restore(changes); err != nil || len(left) > 0 || value(t, h, nf) != "1" {
			t.Errorf("%v %v: %s", err, left, value(t, h, nf))
		}
	}
}

func TestWhatSomebodyElseChangedMeanwhileIsLeft(t *testing.T) {
	h := host(t)
	changes := plan(t, h, "network", "many-guests")
	if len(changes) != 1 || changes[0].Old != "4096 131072 6291456" {
		t.Fatalf("planned %v", changes)
	}
	if err := os.WriteFile(filepath.Join(h.Root, changes[0].Path), []byte("1 2 3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	left, err := h.Restore(changes)
	if err != nil || len(left) != 1 || !strings.Contains(left[0], "1 2 3") || value(t, h, changes[0].Path) != "1 2 3" {
		t.Errorf("%v %v", err, left)
	}
}

// Promise: L53
func TestOnlyDevicesThatOfferASchedulerGetIt(t *testing.T) {
	for value, scheduler := range map[string]string{"deadline": "mq-deadline", "kyber": "kyber"} {
		// loop0 has no choices: the kernel would refuse it anything else.
		if changes, want := plan(t, host(t), "io-scheduler", value), []Change{{"sys/block/sda/queue/scheduler", "none", scheduler}}; !slices.Equal(changes, want) {
			t.Errorf("%s: planned %v", value, changes)
		}
	}
	if changes := plan(t, host(t), "io-scheduler", "none"); len(changes) > 0 {
		t.Errorf("planned %v: all have none", changes)
	}
	if _, _, err := host(t).Plan("io-scheduler", "bfq"); err == nil || !strings.Contains(err.Error(), "bfq") {
		t.Errorf("one that no device has: %v", err)
	}
}

func TestWhatAHostDoesNotHaveIsSaid(t *testing.T) {
	if _, _, err := host(t).Plan("ksm", "on"); err == nil {
		t.Error("a host without KSM merges")
	} else if _, ok := errors.AsType[*Unavailable](err); !ok {
		t.Errorf("got %v", err)
	}
	for _, c := range [][2]string{{"warp", "on"}, {"ksm", "full"}} {
		if _, _, err := host(t).Plan(c[0], c[1]); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v: %v", c, err)
		}
	}
	if changes, lacking, err := host(t).Plan("ksm", AsFound); err != nil || len(changes)+len(lacking) > 0 {
		t.Errorf("as found changes %v, lacks %v, %v", changes, lacking, err)
	}
}

// What can be changed is; what is not there, and what nobody may write, is told.
// Promise: L36
func TestWhatIsLackingOfATuningIsTold(t *testing.T) {
	h := host(t)
	changes, lacking, err := h.Plan("network", "many-guests")
	if err != nil || len(changes) != 1 || len(lacking) != len(settings["network"]["many-guests"])-1 || !slices.Contains(lacking, "proc/sys/net/core/rmem_max is not there") {
		t.Errorf("%v, lacking %q, %v", changes, lacking, err)
	}
	rmem := filepath.Join(h.Root, "proc/sys/net/ipv4/tcp_rmem")
	closed := filepath.Join(h.Root, "proc/sys/net/ipv4/tcp_sack")
	if err := errors.Join(os.Remove(rmem), os.Mkdir(closed, 0o755)); err != nil { // which not even root can write
		t.Fatal(err)
	}
	if why := h.closed("proc/sys/net/ipv4/tcp_sack"); why == nil || strings.Contains(why.Error(), h.Root) {
		t.Errorf("a directory can be written: %v", why)
	}
	if err := os.Remove(closed); err != nil {
		t.Fatal(err)
	}
	_, _, err = h.Plan("network", "many-guests")
	if _, ok := errors.AsType[*Unavailable](err); !ok || !strings.Contains(err.Error(), "proc/sys/net/ipv4/tcp_rmem is not there") {
		t.Errorf("nothing of it is there: %v", err)
	}
}

func TestNotableSettings(t *testing.T) {
	if got := host(t).Notable()[nf]; got != "1" {
		t.Errorf("%q", got)
	}
}
