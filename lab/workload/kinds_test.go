package workload

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/mariadb"
	"github.com/lodge-kvm/lodge/lab/oltp"
)

func TestEveryKindRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, kind := range Kinds() {
		for _, config := range []string{`{"bogus":1}`, `{}`, `[]`, ``, `{"duration":5}`} {
			if load, err := New(kind, json.RawMessage(config)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), kind) {
				t.Errorf("%s %s: %v, %v", kind, config, load, err)
			}
		}
	}
}

// A database that is not there is errors, told as they come, and an end in time.
func TestLoadsOnDeadServersGoOnAndEnd(t *testing.T) {
	nowhere := mariadb.Server{Address: "unix:" + filepath.Join(t.TempDir(), "none"), User: "lab", Database: "lab"}
	got := do(t, "oltp", OLTP{Pace: Pace{Mode: open, Arrivals: even, Rate: 40, Users: 2, Duration: Duration(250 * time.Millisecond)}, Database: nowhere, Size: oltp.Size{Warehouses: 1}})
	if all := got.All(); all.Done != 0 || all.Errors != 10 || !strings.Contains(all.Example, "none") {
		t.Errorf("%+v", all)
	}
}

func TestErrandsThatAreStoppedHaveFailed(t *testing.T) {
	why := errors.New("enough")
	synctest.Test(t, func(t *testing.T) {
		errand, err := newErrand(0, func(ctx context.Context, m *meter) error {
			m.untimed(OpRows, 5)
			<-ctx.Done()
			return ctx.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3500*time.Millisecond, func() { cancel(why) })
		var total Total
		err = errand.Run(ctx, func(i Interval) {
			if err := total.Add(i); err != nil {
				t.Error(err)
			}
		})
		if !errors.Is(err, why) || total.Ops[OpRows].Done != 5 || total.Length != 3500*time.Millisecond {
			t.Errorf("%v: %+v", err, total)
		}
		late, err := newErrand(Duration(time.Minute), func(ctx context.Context, _ *meter) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := late.Run(t.Context(), func(Interval) {}); !errors.Is(err, errLate) {
			t.Errorf("an errand that takes too long: %v", err)
		}
	})
}
