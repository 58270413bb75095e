package xdr

var remoteProcedures, qemuProcedures []*Procedure
