// Package domaincalls serves libvirt's calls about domains.
//
// Each file has one group of calls, and begins with the function that registers them. Flags that need more rights are
// in package rpc, which checks the rights.
package domaincalls
