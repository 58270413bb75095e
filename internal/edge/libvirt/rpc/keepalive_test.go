package rpc

import (
	"testing"
	"testing/synctest"
	"time"
)

// A client that answers each ping at once stays, however late a busy host looks for the
// answer; one that answers none does not.
func TestWhoAnswersPingsStays(t *testing.T) {
	for _, answers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			k, ended := newKeepalive(), false
			k.watchOver(func(error) { ended = true })
			defer k.stop()
			for range 4 * pingCount {
				<-time.After(pingInterval + time.Millisecond) // the looks are behind by as much
				synctest.Wait()
				if ended {
					break
				}
				<-k.due
				if answers {
					k.heard()
				}
				k.mu.Lock()
				k.watch.Reset(pingInterval + time.Microsecond)
				k.mu.Unlock()
			}
			if ended == answers {
				t.Errorf("one who answers, %v, was ended: %v", answers, ended)
			}
		})
	}
}
