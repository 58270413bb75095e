package sandbox

// Isolation is used to run the daemon's own helper programs on files that may be hostile. Each program
// runs as one of the users in a sandbox from the builder. With a nil Isolation it runs as the daemon does.
type Isolation struct {
	Builder *Builder
	Users   *Users
}
