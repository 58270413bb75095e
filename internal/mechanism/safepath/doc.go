// Package safepath goes to files that others have named, for a daemon that may go everywhere.
//
// Folders on the way may be users' own: a link that one of them puts there must not lead the
// daemon, nor a program that is handed what it opens, to where that user may not go. Links that
// root made are followed, as those below /var often are; any other leads to what its owner has
// and nowhere else.
//
// What belongs here: from a path to an open folder or file. What does not: who is held to which
// folders (room image) and what is done there.
package safepath
