package qemu

// Commit is a block job that writes the data of some images of a chain into an image below them.
type Commit struct {
	// Job is its name.
	Job string
	// Device is the node that the disk's device has: TopNode.
	Device string
	// Top and Base are the numbers of the uppermost image that goes, and of the one that is written.
	Top, Base uint
	// Backing is the name of Base for the header of the image above Top. Empty: Top is the active image,
	// and no header changes. QEMU itself only knows the number of the file that it was handed.
	Backing string
	// Speed limits the job in bytes a second; 0: no limit.
	Speed uint64
}

// Start returns the command that starts the job. It copies until the job is pending. With the active image
// the job becomes ready first and must be told to complete. A pending job has written everything and
// blocks writes above the base. It changes the chain when it is finalized, and nothing when it is
// cancelled. A concluded job stays known until it is dismissed.
func (c Commit) Start() Step {
	props := properties{
		{"job-id", c.Job},
		{"device", c.Device},
		{"top-node", FormatNode(c.Top)},
		{"base-node", FormatNode(c.Base)},
		{"filter-node-name", filterNode(c.Top)},
	}
	props.text("backing-file", c.Backing)
	if c.Speed > 0 {
		props.add("speed", c.Speed)
	}
	props.add("auto-finalize", false)
	props.add("auto-dismiss", false)
	return Step{Command: "block-commit", Args: props}
}

// filterNode is the name of the filter node that a job puts above an image while it runs.
func filterNode(number uint) string { return nodeBase(number) + "-filter" }

// SetJobSpeed returns the command that limits the speed of a job, in bytes a second; 0: no limit.
func SetJobSpeed(job string, speed uint64) Step {
	return Step{Command: "block-job-set-speed", Args: properties{{"device", job}, {"speed", speed}}}
}

// CancelJob returns the command that cancels a job. The job ends some time later.
func CancelJob(job string) Step { return jobStep("job-cancel", job) }

// CompleteJob returns the command that makes a ready job pending.
func CompleteJob(job string) Step { return jobStep("job-complete", job) }

// FinalizeJob returns the command that makes a pending job change the chain.
func FinalizeJob(job string) Step { return jobStep("job-finalize", job) }

// DismissJob returns the command that removes a concluded job from QEMU's list.
func DismissJob(job string) Step { return jobStep("job-dismiss", job) }

func jobStep(command, job string) Step {
	return Step{Command: command, Args: properties{{"id", job}}}
}

// RemoveImage returns the command that removes the node of an image that a job has taken out of a chain.
// Nodes above it must be removed first.
func RemoveImage(number uint) *Step {
	step := removeStep("blockdev", FormatNode(number))
	return &step
}

// Job is QEMU's report on a job in query-jobs.
type Job struct {
	ID     string    `json:"id"`
	Status JobStatus `json:"status"`
	// Error is the reason of a failure; empty for a concluded job: it succeeded.
	Error string `json:"error"`
}

// JobStatus is the status of a job, in QEMU's words.
type JobStatus string

// Statuses of jobs that matter here.
const (
	JobReady     JobStatus = "ready"     // both images have the same content, and stay equal
	JobPending   JobStatus = "pending"   // done except for the change of the chain
	JobConcluded JobStatus = "concluded" // it has succeeded or failed
)

// BlockJob is QEMU's report on the progress of a job in query-block-jobs.
type BlockJob struct {
	Device string `json:"device"` // its name
	Offset uint64 `json:"offset"` // bytes copied so far
	Len    uint64 `json:"len"`    // bytes to copy
	Speed  uint64 `json:"speed"`  // bytes a second at most; 0: unbounded
	Ready  bool   `json:"ready"`
}

// JobEvent is QEMU's event for a change of a job's status.
type JobEvent struct {
	ID     string    `json:"id"`
	Status JobStatus `json:"status"`
}
