package seclabel

import "github.com/lodge-kvm/lodge/internal/mechanism/kernel"

// At is a host whose AppArmor has this parser.
func At(root kernel.Root, parser string) *Host {
	return &Host{Model: AppArmor, Root: root, parser: parser, prefix: "lodge-"}
}
