package workload

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/lab/mariadb"
)

func sysbenchSaid(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("testdata/sysbench-1.0.20.txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestSysbenchIsReadToTheLastTransaction(t *testing.T) {
	ops, length, err := readSysbench(sysbenchSaid(t))
	if err != nil {
		t.Fatal(err)
	}
	got := ops[OpTransaction]
	if got.Done != 425 || got.Errors != 0 || got.Latency.TotalCount() != 425 || ops[OpUndone].Done != 17 || length < time.Second || length > 2*time.Second {
		t.Errorf("%+v in %v", ops, length)
	}
	if p := got.Latency.Min(); p < 1200 || p > 1300 {
		t.Errorf("the shortest took %d µs instead of about 1270", p)
	}
}

func TestHostileSysbenchIsRefused(t *testing.T) {
	good := sysbenchSaid(t)
	for name, text := range map[string]string{
		"nothing": "", "cut off": good[:len(good)/2], "no time": strings.Replace(good, "total time:", "time:", 1),
		"more transactions":  strings.Replace(good, "transactions:                        4", "transactions:                        9", 1),
		"fewer transactions": strings.Replace(good, "transactions:                        4", "transactions:                        1", 1),
		"huge":               strings.Replace(good, "transactions:                        4", "transactions:                        99999999999999999999", 1),
	} {
		if text == good {
			t.Fatalf("%s: nothing was changed", name)
		}
		if ops, _, err := readSysbench(text); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, %v", name, err, ops)
		}
	}
}

func FuzzSysbench(f *testing.F) {
	f.Add(sysbenchSaid(f))
	f.Fuzz(func(t *testing.T, text string) {
		ops, length, err := readSysbench(text)
		if err == nil && (ops[OpTransaction].Latency.TotalCount() != ops[OpTransaction].Done || length < 0) {
			t.Fatalf("%+v in %v", ops, length)
		}
	})
}

func TestSysbenchIsToldWhereAndHowLong(t *testing.T) {
	config, err := json.Marshal(Sysbench{Duration: Duration(30 * time.Second), Database: mariadb.Server{Address: "10.0.0.2:3306", User: "lab", Database: "sb"}, Threads: 4, Rate: 2})
	if err != nil {
		t.Fatal(err)
	}
	s, err := parseSysbench(config)
	if err != nil {
		t.Fatal(err)
	}
	args := s.arguments("run")
	for _, want := range []string{"oltp_read_write", "--mysql-host=10.0.0.2", "--mysql-port=3306", "--time=30", "--threads=4", "--rate=2", "--table-size=10000"} {
		if !slices.Contains(args, want) {
			t.Errorf("%s is not in %v", want, args)
		}
	}
	for want, bad := range map[string]Sysbench{
		"duration": {Database: s.Database}, "test": {Duration: s.Duration, Database: s.Database, Test: "--help"}, "threads": {Duration: s.Duration, Database: s.Database, Threads: -1}, "address": {Duration: s.Duration},
	} {
		if err := bad.settle(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
