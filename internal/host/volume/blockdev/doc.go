// Package blockdev runs the host's tools on block devices and reads what they
// print: LVM's commands, sfdisk, partx, blkid and wipefs.
//
// Every run of a tool has a bound on its time and its output, a fixed PATH and
// the C locale. Reports are foreign input: a disk may have been written by a
// guest, so a partition table is checked against the size of its device.
//
//	tool.go        runs a tool; names the package that a missing one is in
//	device.go      what a device holds, and whether anything has it open
//	lvm.go         LVM's reports and its refusals
//	partitions.go  partition tables: free space, numbers, types
//
// What belongs here: devices, tools and their formats. What does not: pools,
// volumes and their documents (package volume).
package blockdev
