// Package shop is an on-line DVD shop to measure a web server, PHP and a database
// with: the tables, the pages, the goods and customers, and what a customer does.
// It is written for the lab after what the field's papers say of such shops.
//
// Everything in the shop follows from its Shop value: customer 17 of one seed has the same
// name wherever it is worked out, so the visitor knows what each page must say
// without asking the database, and no two seeds have a row in common.
//
// What belongs here: the shop and its visitors. What does not: pacing, counting
// and connections (lab/workload), and setting up servers (lab/service).
package shop
