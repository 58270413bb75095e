module github.com/lodge-kvm/lodge/lab

go 1.26.0

toolchain go1.26.8

require github.com/lodge-kvm/lodge v0.0.0

replace github.com/lodge-kvm/lodge => ../

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0
	github.com/go-sql-driver/mysql v1.9.3
	github.com/google/go-cmp v0.7.0
	github.com/spf13/cobra v1.10.2
	github.com/vishvananda/netlink v1.3.1
	go.uber.org/goleak v1.3.0
	go.yaml.in/yaml/v3 v3.0.5
	golang.org/x/sys v0.49.0
	pgregory.net/rapid v1.3.0
)

require (
	connectrpc.com/connect v1.21.1 // indirect
	filippo.io/edwards25519 v1.1.1 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/spf13/pflag v1.0.10 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
