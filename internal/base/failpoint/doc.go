// Package failpoint names the steps in which Lodge changes the host, so that a
// test can kill the daemon at each of them, or make the step fail or wait.
//
//	failpoint.Reach("launch.cgroup")                              // may die or wait here
//	if err := failpoint.Err("launch.exec"); err != nil { … }      // may fail as well
//
// The name is a literal, of the form area.step, and stands at one place only: the
// list of all points is read from the source (failpointtest.Names), and the crash
// matrix in package conformance fails for a point that none of its scenarios reaches.
//
// In a shipped daemon a point is an empty function, whatever its
// environment says. A daemon that was built with the tag "failpoints" reads the
// environment variable LODGE_FAILPOINTS: the directory for the commands of a test
// (see Armed). Without the variable, a point is one load.
//
// This package holds the mechanism of the points. It does not know the scenarios,
// nor the state that must hold after a death.
package failpoint

// Variable names the directory through which a test commands a daemon that was built
// with the tag.
const Variable = "LODGE_FAILPOINTS"
