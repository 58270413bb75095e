package wire

import "time"

// Usage is what a guest's kernel has counted since boot.
type Usage struct {
	Instant Instant `json:"instant"`
	// CPUs are the processors in use; Load the mean number of runnable tasks
	// over the last minute.
	CPUs int     `json:"cpus"`
	Load float64 `json:"load"`
	// CPU is the sum over all processors.
	CPU    Times           `json:"cpu"`
	Memory Memory          `json:"memory"`
	Disks  map[string]Disk `json:"disks,omitempty"`
	Nets   map[string]Net  `json:"nets,omitempty"`
}

// Times are where processor time went.
type Times struct {
	User    time.Duration `json:"user"` // nice included
	System  time.Duration `json:"system"`
	Idle    time.Duration `json:"idle"`
	Wait    time.Duration `json:"wait"` // idle with a disk under way
	IRQ     time.Duration `json:"irq"`  // soft ones included
	Steal   time.Duration `json:"steal"`
	Guest   time.Duration `json:"guest"` // part of User
	Context int64         `json:"context"`
}

// Memory is in bytes.
type Memory struct {
	Total     int64 `json:"total"`
	Free      int64 `json:"free"`
	Available int64 `json:"available"`
	Cached    int64 `json:"cached"` // of files, with buffers
	Swap      int64 `json:"swap"`   // used
	Dirty     int64 `json:"dirty"`
}

// Disk counts what a block device did.
type Disk struct {
	Reads        int64         `json:"reads"`
	ReadBytes    int64         `json:"read_bytes"`
	ReadTime     time.Duration `json:"read_time"`
	Writes       int64         `json:"writes"`
	WrittenBytes int64         `json:"written_bytes"`
	WriteTime    time.Duration `json:"write_time"`
	Busy         time.Duration `json:"busy"`
}

// Net counts what a network interface did.
type Net struct {
	InBytes    int64 `json:"in_bytes"`
	InPackets  int64 `json:"in_packets"`
	InErrors   int64 `json:"in_errors"` // dropped ones included
	OutBytes   int64 `json:"out_bytes"`
	OutPackets int64 `json:"out_packets"`
	OutErrors  int64 `json:"out_errors"`
}
