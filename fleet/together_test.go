package fleet

import (
	"testing"

	"github.com/lodge-kvm/lodge/fault"
)

const oneGuest = `<tile>
  <volume pool='default'><name>{name}-{tile}.raw</name><capacity unit='MiB'>1</capacity></volume>
  <domain type='qemu'><name>{name}-{tile}</name><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>
</tile>`

func TestATileIsMadeOrRemovedByOneAtATime(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	leave, err := h.beginTile("lab/1")
	ok(t, err)
	got, err := h.create(template(t, oneGuest), 1, 1)
	refused(t, err, fault.Busy, "by another call")
	h.wants("create", got, "lab/1 failed")
	h.wants("files", files(t, dir))
	leave()
	got, err = h.create(template(t, oneGuest), 1, 1)
	ok(t, err)
	h.wants("create", got, "lab/1 done")
}

// A tile that was removed and made anew before its turn comes in a call that removes many goes whole: its
// guests do not stay without their volumes.
func TestATileIsRemovedAsItIsWhenItsTurnComes(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	tt := template(t, oneGuest)
	const last = "lab/9"
	_, err := h.create(tt, 1, tilesAtOnce+1)
	ok(t, err)
	anew := false
	_, err = h.RemoveTiles(t.Context(), "lab", false, func(r Result) {
		ok(t, r.Error)
		if anew {
			return
		}
		anew = true
		_, err := h.remove(last)
		ok(t, err)
		_, err = h.create(tt, tilesAtOnce+1, 1)
		ok(t, err)
	})
	ok(t, err)
	h.wants("files", files(t, dir))
	h.wants("guests", h.chosen("all"))
}
