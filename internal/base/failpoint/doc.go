// Package failpoint names the steps by which Lodge changes the world, so that a
// test can end the daemon at each of them, or have the step fail or wait.
//
//	failpoint.Reach("launch.cgroup")                              // may die or wait here
//	if err := failpoint.Err("launch.exec"); err != nil { … }      // may fail as well
//
// The name is a literal, of the form area.step, and stands at one place only: the
// list of all points is read from the source (failpointtest.Names), and the crash
// matrix of room conformance fails at a point that no scenario of its reaches.
//
// In a daemon as it is shipped a point is an empty function, whatever its
// environment says. One that was built with the tag "failpoints" looks for the
// environment variable LODGE_FAILPOINTS, which names the directory by which a test
// commands it (see Armed); without the variable, a point is one load.
//
// What belongs here: the points' mechanism. What does not: what a scenario does,
// and what must be so after a death.
package failpoint

// Variable names the directory by which a test commands a daemon that was built
// with the tag.
const Variable = "LODGE_FAILPOINTS"
