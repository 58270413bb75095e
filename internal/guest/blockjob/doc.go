// Package blockjob runs jobs on the disks of a running guest: commit of a chain of images, with its pivot.
package blockjob
