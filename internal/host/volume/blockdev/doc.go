// Package blockdev runs the host's tools on block devices and parses their output: LVM's commands, sfdisk,
// partx, blkid and wipefs.
//
// Every run of a tool has a bound on its time and its output, a fixed PATH and the C locale. Reports are
// foreign input: a disk may have been written by a guest, so a partition table is checked against the size of
// its device.
//
//	tool.go        runs a tool; names the package that contains a missing one
//	device.go      content of a device, and whether any process has it open
//	lvm.go         LVM's reports and errors
//	partitions.go  partition tables: free space, numbers, types
//
// Devices, tools and their formats belong here. Pools, volumes and their documents do not (package volume).
package blockdev
