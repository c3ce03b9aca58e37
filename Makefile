# TorchYard: every target does the set-up it needs. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.8
INSTALLED := $(VENV)/.installed
# One thread a process: ranks share the machine's cores, and reductions keep one order.
export OMP_NUM_THREADS ?= 1
# Tests start Python by the hundred: without bytecode each process compiles half of PyTorch anew.
unexport PYTHONDONTWRITEBYTECODE
# A process of tests for each core: they share nothing but the machine.
PARALLEL := -n logical --maxprocesses 8
# Where the time of a tier goes; `make test-times` reads it.
TIMES := build/times
# What the processors did since the machine was started, where the kernel says so.
STAT := test ! -e /proc/stat || cp /proc/stat
# Four at a time, since most of them wait for the cluster; then, one after the other, those that break or change all of it.
CLUSTER_TESTS := $(SHELL) -c 'failed=0; \
  $(BIN)/pytest -q -n 4 --dist worksteal --junit-xml=$(TIMES)/cluster.xml -m "not alone and not schedulers" \
    tests/cluster tests/chart || failed=$$?; \
  $(BIN)/pytest -q --junit-xml=$(TIMES)/alone.xml -m "alone and not schedulers" tests/cluster || failed=$$?; exit $$failed'
# Gang schedulers that the test bed can compile and install, and their tests, one after the other: queues are of the cluster.
ALL_SCHEDULERS := kueue,volcano,coscheduling
SCHEDULER_TESTS := $(BIN)/pytest -q --junit-xml=$(TIMES)/schedulers.xml -m schedulers tests/cluster/schedulers
# Seeds of each workload that must learn. With several, each test keeps all cores busy by itself.
export SEEDS ?= 1
LEARNERS := $(if $(filter 1,$(SEEDS)),$(PARALLEL) --dist worksteal)

MINUTES ?= 10
# Pages written by hand; docs/reference is generated.
PAGES := *.md charts/torchyard/*.md images/*.md docs/*.md docs/decisions docs/notebook

help: ## list every target
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## make .venv with everything pinned; leaves .venv/bin/torchyard

$(INSTALLED): requirements.lock pyproject.toml ui/package-lock.json
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else \
	  f"PYTHON={sys.executable} is Python {v[0]}.{v[1]}; TorchYard needs 3.11 to 3.13: make PYTHON=python3.12 install")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "python3 -m venv failed: install your system's venv package (Debian: apt-get install python3-venv)" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip sync --system-certs --quiet --python $(BIN)/python --require-hashes requirements.lock
	$(BIN)/uv pip install --system-certs --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	$(BIN)/python hack/browser_libraries.py --if-reached
	@$(BIN)/python hack/bytecode.py take
	@touch $@

demo: $(INSTALLED) ## train CVRP on two local nodes, live, and show what it learned
	@$(BIN)/torchyard demo

demo-lm: $(INSTALLED) ## teach a real language model (SmolLM2, 135 M) with LoRA, and ask it with transformers and peft
	@$(BIN)/python -m hack.demo_lm

# What mostly waits comes first: the cluster tier, and end-to-end tests beside it. What only computes follows. All tiers at
# once took a third more processor time than each by itself.
test: check ## all that this machine can run; the tiers of cluster and learning write to build/test-*.log meanwhile
	@rm -rf $(TIMES) && mkdir -p $(TIMES) && $(STAT) $(TIMES)/stat.before
	@code=0; $(MAKE) --no-print-directory --jobs=3 beside-cluster in-sight || code=$$?; \
	  $(STAT) $(TIMES)/stat.after; $(BIN)/python hack/bytecode.py keep; \
	  tail -n +1 build/test-learning.log build/test-cluster.log; \
	  $(BIN)/python hack/test_times.py --slowest 0 $(TIMES) || true; exit $$code

in-sight:
	@code=0; $(MAKE) --no-print-directory test-e2e || code=$$?; \
	  $(MAKE) --no-print-directory beside-learning test-unit || code=$$?; exit $$code

beside-cluster:
	@code=0; { $(MAKE) --no-print-directory test-cluster-if-built || code=$$?; \
	  $(MAKE) --no-print-directory test-schedulers-if-built || code=$$?; } >build/test-cluster.log 2>&1; exit $$code

beside-learning:
	@$(MAKE) --no-print-directory test-learning >build/test-learning.log 2>&1

check: $(INSTALLED) ## lint, format, types, import contracts, vocabulary
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mdformat --check $(PAGES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python hack/vocabulary.py

test-unit: $(INSTALLED) ## unit and property tests
	$(BIN)/pytest -q $(PARALLEL) --dist worksteal --junit-xml=$(TIMES)/unit.xml -m "not e2e and not learning and not cluster"

fuzz: $(INSTALLED) ## attackers' input, mutated, for MINUTES (10) minutes; a short run is part of test-unit
	TORCHYARD_FUZZ_MINUTES=$(MINUTES) $(BIN)/pytest -q tests/fuzz

test-e2e: $(INSTALLED) ## real agents, torchrun launchers and trainers on this machine, failures injected
	$(BIN)/pytest -q $(PARALLEL) --dist worksteal --junit-xml=$(TIMES)/e2e.xml -m e2e

test-learning: $(INSTALLED) ## workloads that must really learn; SEEDS=3 before a release and when a trainer changed
	nice -n 19 $(BIN)/pytest -q $(LEARNERS) --junit-xml=$(TIMES)/learning.xml -m learning tests/learning

test-times: $(INSTALLED) ## print where the time of the last test run went, by tier and the 30 slowest tests
	@$(BIN)/python hack/test_times.py $(TIMES)

test-cluster: $(INSTALLED) ## a real cluster: Helm, containers, faults; the one of KUBECONFIG, or kind on this machine
	@$(PYTHON) hack/kind with $(CLUSTER_TESTS)

test-schedulers: $(INSTALLED) ## gang schedulers and queues on that cluster: Kueue, Volcano, coscheduling, native
	@SCHEDULERS="$(or $(SCHEDULERS),$(ALL_SCHEDULERS))" $(PYTHON) hack/kind with $(SCHEDULER_TESTS)

test-schedulers-if-built: $(INSTALLED)
	@SCHEDULERS=built $(PYTHON) hack/kind with --if-built $(SCHEDULER_TESTS) || { code=$$?; [ $$code -eq 77 ] || exit $$code; \
	  echo "all tests of gang schedulers are skipped: 'make kind-up SCHEDULERS=$(ALL_SCHEDULERS)' builds these once"; }

faults: $(INSTALLED) ## all fault plans against the operator on that cluster; PLANS="--only REGEX" some of them
	@$(PYTHON) hack/kind with $(BIN)/python -m tests.cluster.plans $(PLANS)

# What `make test` runs: where no test bed was built yet, it says so instead of compiling a whole Kubernetes unasked.
test-cluster-if-built: $(INSTALLED)
	@$(PYTHON) hack/kind with --if-built $(CLUSTER_TESTS) || { code=$$?; [ $$code -eq 77 ] || exit $$code; \
	  echo "all cluster tests are skipped: 'make kind-up' builds a cluster once (docs/testbed.md), or set KUBECONFIG"; }

kind-up: ## a kind cluster of three nodes on this machine (docs/testbed.md); SCHEDULERS=kueue,volcano,coscheduling,jobset adds these
	@SCHEDULERS="$(SCHEDULERS)" $(PYTHON) hack/kind up

kind-images: ## build our images from the working tree and load what changed into that cluster
	@$(PYTHON) hack/kind images

prometheus: ## compile Prometheus and promtool once, for tests/chart/test_prometheus.py
	@$(PYTHON) hack/kind program prometheus

kind-env: ## print what a shell needs for it: eval "$$(make -s kind-env)"
	@$(PYTHON) hack/kind env

kind-demo: $(INSTALLED) ## all of the above, the chart installed in it, and a job on two nodes, watched
	@$(PYTHON) hack/kind demo

kind-down: ## delete it; what was built stays cached
	@$(PYTHON) hack/kind down

registry: ## a container registry on this machine, in the foreground; REGISTRY="--port 0 --folder DIR": python hack/registry --help
	@$(PYTHON) hack/registry $(REGISTRY)

manifests: $(INSTALLED) ## write the installation as plain YAML into dist/, for people without Helm
	@$(BIN)/python hack/manifests.py dist

sbom: $(INSTALLED) ## bills of materials (CycloneDX) of the wheel and the images, into dist/
	@$(BIN)/python hack/sbom.py dist

audit: $(INSTALLED) ## look for known vulnerabilities of everything pinned; ADVISORIES=FOLDER reads a copy of the database
	@ADVISORIES="$(ADVISORIES)" $(BIN)/python hack/audit.py

scan: $(INSTALLED) ## kube-score and checkov, from PATH, over the chart with defaults and with every option on
	@$(BIN)/python hack/scan.py

release: $(INSTALLED) ## everything that a release publishes, into dist/ (docs/release.md); TARGETS=operator,agent,... PLATFORMS=linux/amd64,...
	@IMAGES="$(IMAGES)" TARGETS="$(TARGETS)" PLATFORMS="$(PLATFORMS)" $(BIN)/python hack/release.py

docs: $(INSTALLED) ## build the documentation site into build/docs/site, without network
	@$(BIN)/python hack/site

generate: $(INSTALLED) ## write the CRD, parameter schemas and reference again from the models
	$(BIN)/python hack/generate.py

COMPILE = $(BIN)/uv pip compile --system-certs --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-annotate --no-header
# What an image installs is a part of what was tested.
COMPILE_PART = $(COMPILE) --constraints requirements.lock

lock: ## resolve dependencies again into requirements.lock and the images' parts of it
	$(COMPILE) pyproject.toml --all-extras --output-file requirements.lock
	$(COMPILE_PART) pyproject.toml --extra operator --extra sweep --output-file images/operator.lock
	$(COMPILE_PART) pyproject.toml --extra trainers --extra inputs --output-file images/trainer.lock
	$(COMPILE) --no-deps hack/smollm2.in --output-file hack/smollm2.lock
	$(COMPILE) --no-deps hack/vllm.in --output-file hack/vllm.lock
	$(COMPILE_PART) images/build.in --output-file images/build.lock

format: $(INSTALLED) ## format and mend what can be mended by machine
	$(BIN)/ruff format .
	$(BIN)/mdformat $(PAGES)
	$(BIN)/ruff check --fix .

clean: ## remove what was built here, .venv included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: help install demo demo-lm test check test-unit fuzz test-e2e test-cluster test-cluster-if-built test-schedulers test-schedulers-if-built test-learning in-sight beside-cluster beside-learning test-times faults kind-up kind-images prometheus kind-env kind-demo kind-down registry manifests sbom audit scan release docs generate lock format clean
