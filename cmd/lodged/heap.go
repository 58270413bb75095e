package main

// ballast lives on the heap, is never touched, and so takes no memory of the
// host. The collector, which begins when as much has been allocated as lives,
// counts it: a daemon with few guests would else collect dozens of times in a
// storm. One with many hardly notices.
var ballast = make([]byte, 14<<20)
