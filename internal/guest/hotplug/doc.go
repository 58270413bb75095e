// Package hotplug changes a guest while it runs, and its stored definition: devices that are attached, detached or
// updated, media, processors, memory, iothreads, limits and pins.
//
// Each change of a running guest is an operation (package operation): one file has its payload and its steps.
package hotplug
