// Package image knows disk images: what a header says, what lies below an
// image, and how images are made, grown and copied.
//
// Headers are read here and not by a tool: a pool of a thousand images costs a
// thousand small reads and no process, and the bounds are our own. Whoever
// wrote an image is hostile. So every count and offset in a header is checked,
// a format that the caller declares is never second-guessed (a raw disk whose
// guest wrote a qcow2 header stays raw), and below an image only layers with a
// declared format are followed.
//
// Making and copying is qemu-img's work, run as a bounded child: a deadline, a
// limit on memory and processor time, on what it may say, in a process group
// of its own that dies with the daemon, and with files that we opened, so that
// no name is resolved twice. What belongs here: one image file and its chain.
// What does not: where images lie, who owns them, and who may use them.
package image
