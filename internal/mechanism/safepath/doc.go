// Package safepath opens files by paths that users name, for a daemon that may access everything.
//
// Folders on a path may belong to users. A symbolic link of a user must not lead the
// daemon, or a program that gets an open descriptor from it, to a file that this user may not reach.
//
//	link on the path                      is followed
//	--------------------------------------+------------------------------------------------------
//	made by root or the daemon's user     anywhere, as those below /var often need
//	made by another user                  only to a target of that user; a missing target counts
//	                                      as its folder's owner's
//	on FUSE, /media or /run/media         only to a target on the same file system
//	links of two users, or of two such    never
//	file systems, on one path
//	more than 40 links                    never (ELOOP)
//
// This package turns a path into an open folder or file. It does not know which client is restricted to
// which folders (package image), nor what is done with the file.
package safepath
