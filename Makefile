# The entry points for people. `make` alone explains itself.
SHELL := /bin/bash
PY := .venv/bin/python
SEEDS ?= 25
BENCH ?=
DEMO ?=
FAULT_SECONDS ?= 120
SPARK_ROUNDS ?= 30
SECONDS ?= 60
ROUNDS ?= 10

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint sim sim-replay sim-planted faults faults-spark faults-gc faults-schema faults-all delays-schema fuzz bench walk sync-client rewrite-scripts lock wheelhouse clean

help: ## explain the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: ## make .venv with what development needs (uv if installed, else venv + pip)
	@scripts/setup.sh dev nats spark

demo: ## the main job: three nodes, a shop, Spark, a kill -9; DEMO="--no-spark", "--log nats", "--serve"
	@scripts/setup.sh nats spark
	@.venv/bin/slackwater demo $(DEMO)

test: setup ## lint, then every test (minutes)
	@$(MAKE) --no-print-directory lint
	@$(PY) -m pytest -n 2 --dist loadgroup --ignore=tests/spark
	@$(PY) -m pytest tests/spark   # in a process of its own: the JVM's threads may not sleep while a simulation is fenced

lint: setup ## ruff, mypy strict, import-linter
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@$(PY) scripts/sync_client.py --check
	@.venv/bin/lint-imports --no-cache | tail -n 12

sim: setup ## simulate SEEDS=n seeds; 5 % run twice to prove determinism
	@.venv/bin/slackwater sim --seeds $(SEEDS)

sim-replay: setup ## replay one seed: make sim-replay SEED=s
	@.venv/bin/slackwater sim --seed $(SEED) --replay

sim-shrink: setup ## make a failing seed small: make sim-shrink SEED=s
	@.venv/bin/slackwater sim --replay $(SEED) --shrink

sim-planted: setup ## run every planted bug; each must be killed by its named oracle
	@.venv/bin/slackwater sim --planted

faults: setup ## three real nodes under kill -9, pauses and restarts for FAULT_SECONDS (default 120)
	@SLACKWATER_FAULT_SECONDS=$(FAULT_SECONDS) $(PY) -m pytest tests/integration/test_cluster_bank.py -s

faults-spark: setup ## SPARK_ROUNDS (30) Spark snapshots while money moves and nodes die; prints the rate of the transfers
	@SLACKWATER_SPARK_ROUNDS=$(SPARK_ROUNDS) $(PY) -m pytest tests/spark/test_balance.py -s

faults-gc: setup ## three real nodes that keep ten seconds of history, with protections and kill -9, for SECONDS (default 60)
	@SLACKWATER_GC_SECONDS=$(SECONDS) $(PY) -m pytest tests/integration/test_gc_faults.py -s

faults-schema: setup ## schema changes in a loop under a bank on three real nodes with kill -9, for SECONDS (default 60)
	@SLACKWATER_SCHEMA_SECONDS=$(SECONDS) $(PY) -m pytest tests/integration/test_schema_faults.py -s

faults-all: setup ## every capability at once on three real nodes under all faults, over SQLite and over NATS, SECONDS (default 60) each
	@SLACKWATER_EVERYTHING_SECONDS=$(SECONDS) $(PY) -m pytest -n0 tests/integration/test_everything.py -s

delays-schema: setup ## how long one dead or frozen node holds a schema change up: ROUNDS (10) of each kind, with the default durations
	@SLACKWATER_SCHEMA_ROUNDS=$(ROUNDS) $(PY) -m pytest tests/integration/test_schema_delays.py -s

fuzz: setup ## besiege three real nodes with fuzzed frames for SECONDS (default 60); prints one JSON object
	@$(PY) -m tests.fuzz --seconds $(SECONDS)

bench: ## all benchmarks, or BENCH="storage log"; ratios to peers in the same run
	@scripts/setup.sh dev nats spark bench
	@.venv/bin/slackwater bench $(BENCH)

walk: setup ## follow three requests through the running code; writes docs/walk.md
	@$(PY) scripts/walk.py

sync-client: setup ## write the synchronous client from the asynchronous one: src/slackwater/client/sync.py
	@$(PY) scripts/sync_client.py

rewrite-scripts: setup ## re-record the golden scripts; review the diff like code
	@SLACKWATER_REWRITE_SCRIPTS=1 $(PY) -m pytest -k script tests/unit

lock: ## resolve dependencies again (needs uv); writes uv.lock and requirements.lock
	@python3 scripts/lock.py refresh

wheelhouse: setup ## download every locked wheel into .wheelhouse, for installing offline with `uv sync --frozen`
	@$(PY) -m ensurepip --upgrade >/dev/null && $(PY) -m pip download --quiet --no-deps --require-hashes -r requirements.lock -d .wheelhouse

clean: ## remove the environment and caches
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
