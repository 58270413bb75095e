// Package operation runs changes that have several steps and can be cut
// off between any two of them: by a refusal, by a QEMU that does not answer, by
// the end of QEMU, of the daemon or of the host.
//
// An operation is data: a kind, a version, the client, the objects it works on,
// and a payload. Its steps follow from these alone, so the next daemon has
// the same list. The record is written before the first step and removed after
// the last one. Steps in between are not recorded; that costs nothing, because every Do
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
// A step ends in one of three ways. Done: the next one follows. Refused: the effects so
// far are undone at once. Unanswered: it may still be carried out, so nothing is
// undone until Probe has an answer (docs/decisions/0031). When a client gives up during a
// step, the runner waits a second at most for QEMU to answer, and then probes at once.
//
// For a decisive step without a Probe the record decides. The first step is decided
// when the record is written, the last one when it is removed, and one in between
// when the runner marks it in the record. If a record that decides by its removal cannot be
// removed, the operation goes back. Any other operation is owed until its record is gone.
//
// A step says how long its effect lasts: as long as the process, as the boot, or
// for good. When the process or the boot has ended, only the effects that remain are
// undone or done. A record with a lasting step lies in the store, any other in the run
// directory.
//
// # How to add a kind
//
// The smallest model is guest/hotplug/iothreadsteps.go: it makes one object in QEMU and changes both
// definitions. guest/hotplug/media.go has a Probe, a label on the host and leftovers to
// clean up. For a guest:
//
//  1. Write one file with the Kind literal, the payload and Steps. Add the literal to
//     guestOperations (guest/operations.go). The payload holds the request and everything
//     that Undo needs. It is JSON; fields that are not exported are not kept.
//  2. Choose the decisive step. If QEMU can be asked whether it did it, and nothing
//     after it can be refused, mark that step and give it a Probe (media). If a later
//     step may be refused, give the earlier ones an Undo and mark the last one that
//     may be refused, without a Probe (iothread). If no step can be undone, mark
//     the first one: the record decides (update).
//  3. Each Do may be repeated: ask QEMU before you make something. The exception is a
//     decisive step that its Probe found made. Each Undo may be
//     called without its Do: a missing object is no error.
//  4. After the decisive step an error means "owed", and is tried again. Wrap it in
//     Final when trying again cannot help.
//  5. The client's call runs edit (guest/hotplug/edit.go). Its plan runs in the guest's loop
//     and refuses all that can be refused. The function that the plan returns runs beside
//     the loop; it calls perform. Steps run beside the loop, too: they read and change
//     the definitions in inLoop. They change the running one with setActive and
//     keepActive, then the stored one with followOnce, which needs the operation's ID.
//     Opened gives you the operation.
//  6. Objects are names that other operations compare: "disk/sda", "iothread2". A
//     Change waits for an open Change whatever the objects are (class.go).
//  7. The crash matrix finds kinds and steps by the literals, kills at each, and refuses
//     and kills each step in Undo. It needs a scenario that reaches all steps
//     (conformance/crash_scenarios_test.go, or the file of that row). A scenario that a
//     restart undoes stands before those whose effect a restart changes. Add
//     the payload to FuzzJournals (internal/guest/files_fuzz_test.go).
//
// The lists of other owners are in network/operations.go and fleet/operations.go.
//
// This package holds records, steps, recovery, and the rules for operations that may be open
// together. It does not know what a kind does (guest, fleet, network), nor when
// an owner has time for it (its loop).
package operation
