// Package operation runs what changes the world in several steps and can be cut
// off between any two of them: by a refusal, by a QEMU that does not answer, by
// the end of QEMU, of the daemon or of the host.
//
// An operation is data: a kind, a version, who asked, the objects it works on,
// and a payload. Its steps follow from these alone, so that the next daemon has
// the same list. The record is written before the first step and removed after
// the last one; that no step is noted in between costs nothing, because every Do
// and every Undo may be repeated.
//
// One step is decisive. Before it an operation goes back: Undo of each step, last
// first. From it on it goes forward: Do of each step, until all are done. Only
// the decisive step is probed: after a cut its Probe asks QEMU, the disk or the
// link which side is true.
//
//	begin ──▶ running ──────────────────────────▶ ended
//	            │ │ ▲                               ▲
//	    a wait  │ │ │ wake                          │
//	            ▼ │ │                               │
//	        waiting │     cannot be done now        │
//	              │ └──────────▶ owed ── again ─────┤
//	  no answer   ▼                                 │
//	         unanswered ──▶ Recover: probe ─────────┘
//
// A step ends in one of three ways. Done: the next one follows. Refused: what was
// made is undone at once. Unanswered: it may still be carried out, so nothing is
// undone until Probe has an answer (docs/decisions/0031).
//
// A decisive step without a Probe decides by the record. The first step decides
// when the record is written, the last one when it is removed, and one in between
// when the runner notes it there. Where a record that decides by its removal cannot be
// removed, the operation goes back. Any other is owed until its record is gone.
//
// A step says how long its effect lasts: as long as the process, as the boot, or
// for good. When the process or the boot has ended, only what is left is undone
// or done. A record with a lasting step lies in the store, any other in the run
// directory.
//
// What belongs here: records, steps, recovery, and which operations may be open
// together. What does not: what any kind does (guest, fleet, network), and when
// an owner has time for it (its loop).
package operation
