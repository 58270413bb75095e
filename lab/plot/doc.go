// Package plot draws measured values as pictures: static SVG that needs no
// script, no font and nothing from outside, stands light and dark paper and
// print, and can be told apart without colours: each look has its own dash and
// marker beside its colour. Every picture has a title and a description for
// those who do not see it, and every mark tells its value to a pointer.
//
// Lines, Bars, Columns, Grid, Matrix and Multiples are plain values; SVG draws one of
// them. The looks are in Style, which a page includes once; Alone makes of a
// drawing a file that needs no page.
//
// What belongs here: scales, marks, legends. What does not: what the values
// mean, and tables.
package plot
