// Package savestate saves a guest's memory to a file and dumps it: the format of save images, the operations
// that write them, and the changes of an image's header that need no guest.
package savestate
