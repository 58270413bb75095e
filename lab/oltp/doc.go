// Package oltp is the load of a wholesale supplier's order desk on a MariaDB: five
// transactions over nine tables, by warehouses. It is written for the lab and is
// like other such loads without being one of them: its metric is NOPM, new orders
// placed a minute, and its figures compare with those of this lab only.
//
// All money is in cents and whole. After a run the tables themselves say what was
// committed (Audit), so that both sides can be compared and nothing is lost
// unseen.
//
// What belongs here: the tables, what fills them, the transactions and the sums that
// must hold. What does not: pacing and counting (lab/workload).
package oltp
