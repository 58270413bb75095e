// Package bulk is the lab's work on disks: jobs for fio and what it says of them,
// and a mail server's work on many files, which fio has no words for.
//
// Everything is done in a folder or on a device that is given by its path, and folders
// are left as they were found.
//
// What belongs here: what is done to a disk. What does not: pacing and counting
// (lab/workload), and how the disk comes to the guest.
package bulk
