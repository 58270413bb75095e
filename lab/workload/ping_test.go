package workload

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

func TestEchoesComeBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for raw sockets")
	}
	pace := Pace{Mode: open, Arrivals: even, Rate: 100, Users: 8, Duration: Duration(300 * time.Millisecond), Timeout: Duration(time.Minute)}
	if got := do(t, "ping", Ping{pace, "127.0.0.1"}).Ops[OpEcho]; got.Done != 30 || got.Errors != 0 || got.Latency.TotalCount() != 30 {
		t.Errorf("%+v", got)
	}
}

func TestEchoesOfOthersAreNotOurs(t *testing.T) {
	sent := request(7, 42)
	if mine(sent, 42) {
		t.Error("what was sent is taken for its answer")
	}
	sent[0] = echoReply
	if !mine(sent, 42) || mine(sent, 43) || mine(sent[:12], 42) || mine(nil, 0) {
		t.Error("answers are told apart wrongly")
	}
}

func TestOnlyOneMachineIsPinged(t *testing.T) {
	for _, address := range []string{"", "example.org", "255.255.255.255", "224.0.0.1", "0.0.0.0", "::1"} {
		config, err := json.Marshal(Ping{Pace{Duration: Duration(time.Second)}, address})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New("ping", config); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", address, err)
		}
	}
}
