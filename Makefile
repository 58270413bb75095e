# make build   bin/lodged, bin/lodge and bin/lodge-lab
# make check   format, vet, lint, import law and unit tests: quick, needs no root
# make test    check, and then each area with real QEMU and real clients: what CI runs
# make crash   every death of the crash matrix, where test draws one in ten
# make clients every test with foreign clients, where test has one thread per area
# make soak    the storm alone, with the race detector, for DURATION (1h)
# make fuzz    every fuzz target for DURATION (1h) each, or for TOTAL all together; what they learn is kept in test/corpus, the hours in docs/fuzzing.md
# make up      a running lodged with a tile of eight booted guests
# make down    the end of that
# make lab-image  the guest that the lab's workloads run in (once, about two minutes), put where `lodge lab run` looks
# make lab-mini   a tile, the shop, disks and an added processor on emulated guests, counted on both sides
# make nested-host  tests on a host of their own, with systemd, nodes, AppArmor and an IOMMU, in an emulated guest
# make lab-compare  docs/lab/compare.md measured anew: the lab's scenarios at lodged and at libvirt's own daemon
# make bench   docs/figures.md measured anew, with libvirt's own daemon beside
# make bench-define  what definitions with 1,000 devices cost, in processor time
# make vulnerabilities  what is known against the code that Lodge uses; asks Go's database, or VULNDB=URL
# make generate  the Go code of Lodge's own API, from api/lodge/v1/lodge.proto
# make format  put the sources into the form that check wants
#
# crash, clients, soak and nested-host write result, commit and date to docs/runs.
# Each installs the Debian packages that it misses, and says so. A second time
# none of them needs a network.

SHELL = /bin/bash
.SHELLFLAGS = -euo pipefail -c
.DELETE_ON_ERROR:

GO := $(shell scripts/go)
ifeq ($(GO),)
$(error no Go toolchain: see above)
endif
# The toolchain that go.mod asks for, whatever the machine's own default says.
export GOFLAGS = -buildvcs=false

VERSION = $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
STAMP   = -trimpath -ldflags '-X main.version=$(VERSION)'
CACHE   = $(CURDIR)/.cache
LINT    = $(CACHE)/bin/golangci-lint
RUNNER  = $(CACHE)/bin/gotestsum
VULN    = $(CACHE)/bin/govulncheck

# Where `make up` keeps its daemon.
DATA ?= /var/lib/lodge
RUN  ?= /run/lodge

# What runs guests; what drives them; what the tests need besides.
HOST_PACKAGES   = qemu-system-x86 qemu-utils dnsmasq-base nftables iproute2 xz-utils
CLIENT_PACKAGES = libvirt-clients
# From Debian 13 on QEMU's part for spice is a package of its own.
SPICE_PACKAGE   = $(shell . /etc/os-release; [ "$${VERSION_ID:-13}" -lt 13 ] || echo qemu-system-modules-spice)
TEST_PACKAGES   = $(HOST_PACKAGES) $(CLIENT_PACKAGES) virtinst python3-libvirt ovmf swtpm swtpm-tools fdisk lvm2 \
                  chromium gcc libc6-dev procps dbus-daemon apparmor protobuf-compiler libprotobuf-dev openssh-client \
                  libvirt-daemon libvirt-daemon-driver-qemu iptables tini $(SPICE_PACKAGE) $(LOAD_PACKAGES)
# What the lab's loads are tried on. None of them starts a service.
LOAD_PACKAGES   = mariadb-server-core mariadb-client-core php-cli php-mysql fio sysbench

.PHONY: build check format generate lint unit test crash clients soak fuzz nested-host vulnerabilities up down bench bench-define guest lab-image lab-mini lab-compare
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

# A test that fails is run once more by itself, and both results are told: on a
# host that is busy with guests something else may have held it up. More than eight
# failures are not tried again. What the race detector said stands in the output.
test: lint build guest lab-image $(RUNNER)
	@scripts/need $(TEST_PACKAGES)
	-@scripts/unpack $(CACHE)/sshd openssh-server netcat-openbsd # without them a test skips
	@mkdir -p $(CACHE)/test
	@status=0; $(RUNNER) --format pkgname-and-test-fails --hide-summary skipped --packages "./... ./lab/..." \
		--rerun-fails=1 --rerun-fails-max-failures=8 --rerun-fails-run-root-test \
		--rerun-fails-report $(CACHE)/test/again -- -race -shuffle=on -timeout 40m || status=$$?; \
	if [ -s $(CACHE)/test/again ]; then echo "tests that failed, and were run again:"; cat $(CACHE)/test/again; fi; exit $$status

# These take no test a second time.
crash:
	@scripts/need $(TEST_PACKAGES)
	LODGE_CRASH=all scripts/record crash $(GO) test -race -count=1 -v -timeout 1h -run '^TestCrash' ./conformance

clients: build guest lab-image $(RUNNER)
	@scripts/need $(TEST_PACKAGES)
	-@scripts/unpack $(CACHE)/sshd openssh-server netcat-openbsd # without them a test skips
	LODGE_CLIENTS=all scripts/record clients $(RUNNER) --format testname -- -race -count=1 -timeout 1h ./conformance

# LODGE_STORM_SEED=n repeats what a storm drew.
DURATION ?= 1h
soak:
	@scripts/need $(TEST_PACKAGES)
	LODGE_STORM=$(DURATION) scripts/record soak $(GO) test -race -count=1 -v -timeout 0 -run '^TestStorm$$' ./conformance

# Its programs are static: the host within may have another C library.
nested-host: guest
	@scripts/need qemu-system-x86 qemu-utils mmdebstrap e2fsprogs debian-archive-keyring
	CGO_ENABLED=0 $(GO) build $(STAMP) -o bin/nested/ ./cmd/... ./conformance/nested/agent
	LODGE_NESTED=$(CACHE)/nested LODGE_NESTED_BIN=$(CURDIR)/bin/nested \
		scripts/record nested-host $(GO) test -count=1 -v -timeout 30m -run '^TestNested' ./conformance/nested

# FUZZ=xmltree chooses targets whose PACKAGE.NAME matches; of TOTAL=2h those get the most that had the least.
fuzz:
	@scripts/fuzz $(if $(TOTAL),-total $(TOTAL),$(DURATION)) $(FUZZ)

# A machine without a network names a copy of the database: VULNDB=file:///path.
vulnerabilities: $(VULN)
	GOFLAGS=$(GOFLAGS) $(VULN) $(if $(VULNDB),-db $(VULNDB)) -test ./...
	cd lab && GOFLAGS=$(GOFLAGS) $(VULN) $(if $(VULNDB),-db $(VULNDB)) -test ./...

format: $(LINT)
	$(LINT) fmt

generate:
	@scripts/need protobuf-compiler libprotobuf-dev
	@scripts/generate

# Lint tools are pinned in a module of their own, so that Lodge does not depend
# on theirs, and built once.
$(LINT): tools/go.mod tools/go.sum
	@echo "building golangci-lint (once, about two minutes)"
	cd tools && $(GO) build -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(RUNNER): tools/go.mod tools/go.sum
	cd tools && $(GO) build -o $@ gotest.tools/gotestsum

$(VULN): tools/go.mod tools/go.sum
	cd tools && $(GO) build -o $@ golang.org/x/vuln/cmd/govulncheck

up: build guest
	@scripts/need $(HOST_PACKAGES) $(CLIENT_PACKAGES)
	@scripts/up $(DATA) $(RUN)

down:
	@scripts/down $(DATA) $(RUN)

# libvirt's daemon is installed for it, and runs only while it is measured.
bench: build bench-define
	@scripts/need $(HOST_PACKAGES) libvirt-daemon libvirt-daemon-driver-qemu tini
	@scripts/bench $(SAMPLES)

# Without the race detector, which costs ten times as much.
bench-define:
	$(GO) test -run '^$$' -bench '^BenchmarkDefine$$' -benchtime 20x ./internal/mechanism/qemu
