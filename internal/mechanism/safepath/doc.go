// Package safepath opens files by paths that users name, for a daemon that may access everything.
//
// Folders on a path may belong to users. A symbolic link of a user must not lead the
// daemon, or a program that gets an open descriptor from it, to a file that this user may not reach.
// Links of root are followed, as those below /var often are. Any other link may lead only to files
// of the link's owner.
//
// This package turns a path into an open folder or file. It does not know which client is restricted to
// which folders (package image), nor what is done with the file.
package safepath
