// Package seclabel knows what a guest's processes and files are called in mandatory
// access control: SELinux's contexts with a pair of categories for each guest (sVirt),
// or a profile of AppArmor's for each.
//
// A Host is what this host enforces, found once. What a guest is called is a Guest;
// what AppArmor is told of it a Profile, whose text is made here and nowhere else.
// Nothing here remembers what was labelled: that is whose files they are who lends
// them, in room guest. How the kernel is told is in room kernel, and when a program
// gets its label in room sandbox.
package seclabel
