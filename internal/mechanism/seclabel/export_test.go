package seclabel

import "github.com/lodge-kvm/lodge/internal/mechanism/kernel"

// At returns a host whose AppArmor uses this parser program.
func At(root kernel.Root, parser string) *Host {
	return &Host{Model: AppArmor, Root: root, parser: parser, prefix: "lodge-"}
}
