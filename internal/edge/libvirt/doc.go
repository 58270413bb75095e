// Package libvirt is the edge that speaks libvirt's remote protocol. It joins the handlers of all drivers in one table
// (table.go) and makes the server. Package rpc says how a call travels and how to add one.
package libvirt
