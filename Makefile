PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-full lint format bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## train a DDP script on 4 ranks in one process
	$(BIN)/phalanx run -n 4 examples/ddp_train.py

test: lint ## lint, types, and the tests that are quick
	$(BIN)/pytest -q -m "not slow"

test-full: lint ## the same with the slow tests
	$(BIN)/pytest -q

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

format: $(READY) ## let ruff rewrite the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## compare all_reduce with torch's threaded group and with Gloo
	$(BIN)/python benchmarks/all_reduce.py

clean: ## remove the virtual environment and all caches
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	rm -rf src/*.egg-info

# Made anew from nothing whenever the pins change, so that no package of old stays behind.
# The stamp is written last: a set-up that was interrupted is repeated.
$(READY): pyproject.toml constraints.txt
	@echo "Setting up .venv (once, about a minute) ..."
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
