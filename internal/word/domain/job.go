package domain

import "time"

// JobKind is the kind of a job.
type JobKind string

// The kinds of job.
const (
	JobNone     JobKind = ""
	JobStart    JobKind = "start"
	JobSave     JobKind = "save"
	JobRestore  JobKind = "restore"
	JobDump     JobKind = "dump"
	JobModify   JobKind = "modify"
	JobDestroy  JobKind = "destroy"
	JobShutdown JobKind = "shutdown"
	JobQuery    JobKind = "query"
)

// Progress is how far a job that moves data has come. Sizes are in bytes.
type Progress struct {
	Kind    JobKind
	Started time.Time
	Ended   time.Time // zero while running
	// Estimated says that totals may still grow (guest memory being dirtied).
	Estimated                            bool
	MemTotal, MemProcessed, MemRemaining uint64
	MemPages, MemConstant, MemNormal     uint64
	MemNormalBytes                       uint64
	MemRate                              uint64 // bytes a second
	DirtyRate                            uint64 // pages a second
	Iterations                           uint64
	Downtime, Setup                      time.Duration
	Err                                  string // why it failed; empty on success
	Cancelled                            bool
}
