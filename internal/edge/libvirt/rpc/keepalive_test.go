package rpc

import (
	"testing"
	"testing/synctest"
	"time"
)

// A client that answers each ping at once stays connected, even if the ticks of a busy host
// are late. A client that does not answer is disconnected.
func TestKeepalive_AnsweredLate(t *testing.T) {
	for _, answers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			k, ended := newKeepalive(), false
			k.startPinging(func(error) { ended = true })
			defer k.stop()
			for range 4 * pingCount {
				<-time.After(pingInterval + time.Millisecond) // each tick is late by as much
				synctest.Wait()
				if ended {
					break
				}
				<-k.pingDue
				if answers {
					k.packetReceived()
				}
				k.mu.Lock()
				k.timer.Reset(pingInterval + time.Microsecond)
				k.mu.Unlock()
			}
			if ended == answers {
				t.Errorf("the client answers: %v; it was disconnected: %v", answers, ended)
			}
		})
	}
}
