package qemu

// Commit is a job that writes what some images of a disk's chain hold into one below them.
type Commit struct {
	// Job is its name.
	Job string
	// Device is the node that the disk's device has: TopNode.
	Device string
	// Top and Base are the numbers of the uppermost image that goes, and of the one that is written.
	Top, Base uint
	// Backing is what the image above Top is to call Base in its header. Empty: the device has Top, and
	// no header changes. QEMU would write the number of the file that it was handed.
	Backing string
	// Speed is the most that is written in a second, in bytes; 0: as much as goes.
	Speed uint64
}

// Start gives the step that begins the job. It copies until it is pending: where the device has Top it is ready
// first, and then told to complete. A job that is pending has written all, and no longer lets the device write
// above the base; it changes the chain when it is told to finalize, and nothing when it is cancelled. Its end
// stays known until it is dismissed.
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

// filterNode is the name of the node that a job puts above an image for as long as it takes.
func filterNode(number uint) string { return nodeBase(number) + "-filter" }

// SetJobSpeed gives the step that bounds a job, in bytes a second; 0: not at all.
func SetJobSpeed(job string, speed uint64) Step {
	return Step{Command: "block-job-set-speed", Args: properties{{"device", job}, {"speed", speed}}}
}

// CancelJob gives the step that ends a job without its effect. The job ends some time after it.
func CancelJob(job string) Step { return jobStep("job-cancel", job) }

// CompleteJob gives the step that has a job which is ready become pending.
func CompleteJob(job string) Step { return jobStep("job-complete", job) }

// FinalizeJob gives the step that has a job which is pending change the chain.
func FinalizeJob(job string) Step { return jobStep("job-finalize", job) }

// DismissJob gives the step by which QEMU forgets a job that has ended.
func DismissJob(job string) Step { return jobStep("job-dismiss", job) }

func jobStep(command, job string) Step {
	return Step{Command: command, Args: properties{{"id", job}}}
}

// RemoveImage gives the step that takes away the node of an image that a job has taken out of a chain. Those above it
// go first.
func RemoveImage(number uint) *Step {
	step := removal("blockdev", FormatNode(number))
	return &step
}

// Job is what QEMU tells of a job on query-jobs.
type Job struct {
	ID     string    `json:"id"`
	Status JobStatus `json:"status"`
	// Error says why a job has failed; empty where it is concluded: it has not.
	Error string `json:"error"`
}

// JobStatus is how far a job is, in QEMU's words.
type JobStatus string

// Statuses of jobs that matter here.
const (
	JobReady     JobStatus = "ready"     // both images have the same, and stay so
	JobPending   JobStatus = "pending"   // all is done but the change of the chain
	JobConcluded JobStatus = "concluded" // it has ended, one way or the other
)

// BlockJob is what QEMU tells of the figures of a job on query-block-jobs.
type BlockJob struct {
	Device string `json:"device"` // its name
	Offset uint64 `json:"offset"` // bytes that were copied
	Len    uint64 `json:"len"`    // bytes that are to be
	Speed  uint64 `json:"speed"`  // bytes a second at most; 0: unbounded
	Ready  bool   `json:"ready"`
}

// JobEvent is what QEMU sends when a job is in another status.
type JobEvent struct {
	ID     string    `json:"id"`
	Status JobStatus `json:"status"`
}
