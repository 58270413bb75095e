//go:build failpoints

package failpoint

import "os"

// Built says whether points do anything in this program.
const Built = true

// commanded reads the requests of a test; nil: there are none.
var commanded = func() *control {
	dir := os.Getenv(Variable)
	if dir == "" {
		return nil
	}
	return &control{dir: dir}
}()

// Reach reports that a point has been reached. The program may end here, or wait.
func Reach(name string) { _ = Err(name) }

// Err is Reach at a step that can fail: it may return an error.
func Err(name string) error {
	if commanded == nil {
		return nil
	}
	return commanded.reach(name)
}
