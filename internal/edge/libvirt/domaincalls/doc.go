// Package domaincalls serves libvirt's calls about domains.
//
// One file has one group of calls, and begins with the function that registers them. Flags that the rules of access
// must know, too, are in package rpc.
package domaincalls
