package sandbox

// Isolation are for programs that the daemon runs for itself on what may be
// hostile: each is one of the users, in a chamber of the house. Nil quarters: they
// run as the daemon does.
type Isolation struct {
	Builder *Builder
	Users   *Users
}
