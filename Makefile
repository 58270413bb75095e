# make build   bin/lodged, bin/lodge, bin/lodge-lab and bin/lodge-sim
# make check   format, vet, lint, import law and unit tests: quick, without root
# make test    check, and then each area with real QEMU and real clients (CI runs this)
# make crash   every death of the crash matrix (make test draws one in ten)
# make clients every test with other clients (make test runs one per area)
# make soak    the storm alone, with the race detector, for DURATION (1h)
# make fuzz    every fuzz target for DURATION (1h) each, or TOTAL for all; inputs go to test/corpus, hours to docs/fuzzing.md
# make up      start a lodged with a tile of eight booted guests
# make down    stop them
# make lab-image  build the guest for the lab's workloads (once, about two minutes) where `lodge lab run` looks for it
# make lab-mini   run a tile, the shop, disks and an added processor on emulated guests, and compare both sides' counts
# make nested-host  tests that need systemd, NUMA nodes, AppArmor and an IOMMU, on a host in an emulated guest
# make lab-compare  measure docs/lab/compare.md again: the lab's scenarios at lodged and at libvirt's own daemon
# make bench   measure docs/figures.md again, for lodged and libvirt's own daemon
# make bench-memory  simulate memory policies and write docs/figures-memory.md; TRACES=DIR for other traces
# make bench-define  the processor time of definitions with 1,000 devices
# make vulnerabilities  known vulnerabilities in Lodge's dependencies, from Go's database or VULNDB=URL
# make generate  generate the Go code of Lodge's own API from api/lodge/v1/lodge.proto
# make changes join the fragments of docs/changes by area
# make format  format the sources as check expects
#
# crash, clients, soak and nested-host write result, commit and date to docs/runs.
# Each installs missing Debian packages, and says so. The second run needs no
# network.

SHELL = /bin/bash
.SHELLFLAGS = -euo pipefail -c
.DELETE_ON_ERROR:

GO := $(shell scripts/go)
ifeq ($(GO),)
$(error no Go toolchain: see above)
endif
# The toolchain of go.mod, whatever the machine's default is.
export GOFLAGS = -buildvcs=false

VERSION = $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
STAMP   = -trimpath -ldflags '-X main.version=$(VERSION)'
CACHE   = $(CURDIR)/.cache
LINT    = $(CACHE)/bin/golangci-lint
RUNNER  = $(CACHE)/bin/gotestsum
VULN    = $(CACHE)/bin/govulncheck

# The folders of the daemon of `make up`.
DATA ?= /var/lib/lodge
RUN  ?= /run/lodge

# Debian packages that run guests, that control them, and that the tests need.
HOST_PACKAGES   = qemu-system-x86 qemu-utils dnsmasq-base nftables iproute2 xz-utils
CLIENT_PACKAGES = libvirt-clients
# From Debian 13 on QEMU's part for spice is a package of its own.
SPICE_PACKAGE   = $(shell . /etc/os-release; [ "$${VERSION_ID:-13}" -lt 13 ] || echo qemu-system-modules-spice)
TEST_PACKAGES   = $(HOST_PACKAGES) $(CLIENT_PACKAGES) virtinst python3-libvirt ovmf swtpm swtpm-tools fdisk lvm2 \
                  chromium gcc libc6-dev procps dbus-daemon apparmor protobuf-compiler libprotobuf-dev openssh-client \
                  libvirt-daemon libvirt-daemon-driver-qemu iptables tini $(SPICE_PACKAGE) $(LOAD_PACKAGES)
# Servers for the tests of the lab's loads. None of these packages starts a service.
LOAD_PACKAGES   = mariadb-server-core mariadb-client-core php-cli php-mysql fio sysbench

.PHONY: build check format generate lint unit test crash clients soak fuzz nested-host vulnerabilities up down bench bench-define bench-memory guest lab-image lab-mini lab-compare changes
# The lab's agent is static, because it is the first process of the lab's guests.
build:
	$(GO) build $(STAMP) -o bin/ ./cmd/... ./lab/cmd/...
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags='-s -w' -o bin/lodge-lab-agent ./lab/agent/cmd

# The agent is static, because it is the first process of a guest with nothing
# else in it.
bin/lodge-guest: $(wildcard internal/testguest/agent/*.go internal/testguest/early/*.go internal/testguest/line/*.go)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags='-s -w' -o $@ ./internal/testguest/agent

guest: bin/lodge-guest
	@scripts/need xz-utils grub-common grub-pc-bin e2fsprogs
	$(GO) run ./internal/testguest/build -cache $(CACHE)/guest -agent $< -disk

# Where `lodge lab run` looks for it, unless --images says otherwise.
LAB_IMAGES ?= /var/lib/lodge-lab/images

lab-image: build
	@scripts/need mmdebstrap erofs-utils e2fsprogs debian-archive-keyring
	$(GO) run ./lab/image/build -cache $(CACHE)/lab -agent bin/lodge-lab-agent
	@mkdir -p $(LAB_IMAGES) && ln -sfn $(CACHE)/lab/current $(LAB_IMAGES)/current || \
		echo "$(LAB_IMAGES) cannot be written: give lodge lab run --images $(CACHE)/lab"

lab-mini: lab-image
	@scripts/need $(HOST_PACKAGES) tini
	@scripts/lab scripts/lab-mini bin/lodge $(CACHE)/lab

lab-compare: lab-image
	@scripts/need $(HOST_PACKAGES) libvirt-daemon libvirt-daemon-driver-qemu iptables tini
	@mkdir -p docs/lab
	@scripts/lab scripts/lab-compare bin/lodge .cache/lab docs/lab $(SCENARIOS)

check: lint unit

# golangci-lint holds the formats (gofumpt, gci), go vet and the rules.
lint: $(LINT)
	$(LINT) fmt --diff
	$(LINT) run
	cd lab && $(LINT) run

unit:
	@scripts/need gcc libc6-dev
	$(GO) test -short -race -shuffle=on ./... ./lab/...

# A failed test runs once more, alone, and both results are shown: on a host that is
# busy with guests it may have been too slow. With more than eight failures none is
# repeated. The output contains the race detector's reports.
test: lint build guest lab-image $(RUNNER)
	@scripts/need $(TEST_PACKAGES)
	-@scripts/unpack $(CACHE)/sshd openssh-server netcat-openbsd # without them a test skips
	@mkdir -p $(CACHE)/test
	@status=0; $(RUNNER) --format pkgname-and-test-fails --hide-summary skipped --packages "./... ./lab/..." \
		--rerun-fails=1 --rerun-fails-max-failures=8 --rerun-fails-run-root-test \
		--rerun-fails-report $(CACHE)/test/again -- -race -shuffle=on -timeout 40m || status=$$?; \
	if [ -s $(CACHE)/test/again ]; then echo "tests that failed, and were run again:"; cat $(CACHE)/test/again; fi; exit $$status

# These repeat no test.
crash:
	@scripts/need $(TEST_PACKAGES)
	LODGE_CRASH=all scripts/record crash $(GO) test -race -count=1 -v -timeout 1h -run '^TestCrash' ./conformance

clients: build guest lab-image $(RUNNER)
	@scripts/need $(TEST_PACKAGES)
	-@scripts/unpack $(CACHE)/sshd openssh-server netcat-openbsd # without them a test skips
	LODGE_CLIENTS=all scripts/record clients $(RUNNER) --format testname -- -race -count=1 -timeout 1h ./conformance

# LODGE_STORM_SEED=n repeats the random choices of a storm.
DURATION ?= 1h
soak:
	@scripts/need $(TEST_PACKAGES)
	LODGE_STORM=$(DURATION) scripts/record soak $(GO) test -race -count=1 -v -timeout 0 -run '^TestStorm$$' ./conformance

# Its programs are static: the nested host may have another C library.
nested-host: guest
	@scripts/need qemu-system-x86 qemu-utils mmdebstrap e2fsprogs debian-archive-keyring
	CGO_ENABLED=0 $(GO) build $(STAMP) -o bin/nested/ ./cmd/... ./conformance/nested/agent
	LODGE_NESTED=$(CACHE)/nested LODGE_NESTED_BIN=$(CURDIR)/bin/nested \
		scripts/record nested-host $(GO) test -count=1 -v -timeout 30m -run '^TestNested' ./conformance/nested

# FUZZ=xmltree chooses targets whose PACKAGE.NAME matches; with TOTAL=2h the targets with the least time so far get the most.
fuzz:
	@scripts/fuzz $(if $(TOTAL),-total $(TOTAL),$(DURATION)) $(FUZZ)

# A machine without a network names a copy of the database: VULNDB=file:///path.
vulnerabilities: $(VULN)
	GOFLAGS=$(GOFLAGS) $(VULN) $(if $(VULNDB),-db $(VULNDB)) -test ./...
	cd lab && GOFLAGS=$(GOFLAGS) $(VULN) $(if $(VULNDB),-db $(VULNDB)) -test ./...

format: $(LINT)
	$(LINT) fmt

changes:
	@scripts/changes

generate:
	@scripts/need protobuf-compiler libprotobuf-dev
	@scripts/generate

# Lint tools are pinned in a module of their own, outside of go.work, so that Lodge does not depend
# on theirs, and built once.
$(LINT): tools/go.mod tools/go.sum
	@echo "building golangci-lint (once, about two minutes)"
	cd tools && GOWORK=off $(GO) build -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(RUNNER): tools/go.mod tools/go.sum
	cd tools && GOWORK=off $(GO) build -o $@ gotest.tools/gotestsum

$(VULN): tools/go.mod tools/go.sum
	cd tools && GOWORK=off $(GO) build -o $@ golang.org/x/vuln/cmd/govulncheck

up: build guest
	@scripts/need $(HOST_PACKAGES) $(CLIENT_PACKAGES)
	@scripts/up $(DATA) $(RUN)

down:
	@scripts/down $(DATA) $(RUN)

# This installs libvirt's daemon, which runs only during its measurements.
bench: build bench-define
	@scripts/need $(HOST_PACKAGES) libvirt-daemon libvirt-daemon-driver-qemu tini
	@scripts/bench $(SAMPLES)

# TRACES is one directory of traces, or several.
bench-memory: build
	@scripts/bench-memory $(TRACES)

# Without the race detector, which takes ten times as long.
bench-define:
	$(GO) test -run '^$$' -bench '^BenchmarkDefine$$' -benchtime 20x ./internal/mechanism/qemu
