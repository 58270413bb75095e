// Package filelabel gives a guest's files its SELinux label and its AppArmor profile, and takes them back.
//
// Labels are those of one guest. A journal beside its run directory says which files have the guest's label,
// so that the next daemon can give them their own again. LabelLeases are files that several guests use: the
// last guest that lets go of a file restores the label that the file had before the first.
package filelabel
