// Package seclabel chooses the mandatory access control labels of a guest's processes and files: SELinux
// contexts with a pair of categories for each guest (sVirt), or an AppArmor profile for each.
//
// A Host is the access control that this host enforces, found once. A Guest holds the labels of one guest. A Profile is its
// AppArmor profile, and its text is made only here. The package does not remember which files were
// labelled: package guest does. Package kernel passes labels to the kernel, and package sandbox sets the
// label of a program at its start.
package seclabel
