PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DOCS := .venv/.docs
LIBRARIES := .venv-libraries/.ready
# More workers than cores: a third of what the tests do is to wait for programs.
JOBS ?= $(shell expr $$(nproc) + 2)
# A file has one worker, and its module fixtures once; tests/conftest.py has the order.
# A worker that dies is not replaced: pytest-xdist 3.8 waits for ever for what a new one is to run.
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0

# Where it is set, each of the programs that the tests start would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo check test test-full test-libraries conformance upstream docs lint format bench bench-costs bench-startup bench-tests bench-bugs bench-explain bench-explore bench-orders bench-scale chaos clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## train a DDP script on 4 ranks in one process
	$(BIN)/phalanx run -n 4 examples/ddp_train.py

check: lint ## lint, types, and the tests that start no program: before each commit (2 minutes)
	$(BIN)/pytest -q -m "not slow and not programs" $(PARALLEL)

test: lint ## lint, types, and all tests but the slow ones: what CI runs (5 minutes)
	$(BIN)/pytest -q -m "not slow" --cache-clear $(PARALLEL) || { \
		test $$? -eq 1 && echo "once more, alone, what failed beside other tests:" && \
		$(BIN)/pytest -q -m "not slow" --last-failed --last-failed-no-failures none; }

test-full: lint ## everything, one test after another
	$(BIN)/pytest -q

test-libraries: $(LIBRARIES) ## run programs of other libraries; write docs/libraries.md
	.venv-libraries/bin/python -m tests.libraries.run --write docs/libraries.md

conformance: $(READY) ## run the suite on threads and on Gloo; write docs/conformance.md, coverage.md
	@mkdir -p build
	$(BIN)/phalanx conformance --json build/threads.json -q
	$(BIN)/phalanx conformance --engine processes --against build/threads.json \
		--document docs/conformance.md -q
	$(BIN)/python -m tests.conformance.coverage

upstream: $(READY) ## run torch's own backend suite on our ranks (5 minutes)
	$(BIN)/python tests/upstream/run.py --ranks 3,4,8

docs: $(DOCS) ## build the documentation with its search: build/docs/index.html
	@rm -rf build/docs
	$(BIN)/python -m sphinx -W --keep-going -q -d build/doctrees -E -b html docs build/docs
	@echo "open build/docs/index.html"

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

format: $(READY) ## let ruff rewrite the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## compare all_reduce with torch's threaded group and with Gloo
	$(BIN)/python benchmarks/all_reduce.py

bench-scale: $(READY) ## measure many ranks beside as many bare threads (5 minutes)
	$(BIN)/python benchmarks/scale.py

bench-explore: $(READY) ## measure schedules a second beside a kept world and bare threads (2 minutes)
	$(BIN)/python benchmarks/explore.py

bench-orders: $(READY) ## find the bugs of the order benchmark by each strategy; write docs/orders.md (20 minutes)
	@mkdir -p build
	$(BIN)/python -m benchmarks.orders --json build/orders.json --write docs/orders.md

bench-costs: $(READY) ## compare what operations cost with NCCL's curves and with Gloo; write docs/time.md
	$(BIN)/python benchmarks/costs.py --gloo 2,3,4 --rounds 15 --write docs/time.md

bench-startup: $(READY) ## compare phalanx run with the import of torch.distributed
	$(BIN)/python benchmarks/startup.py

bench-tests: $(READY) ## compare fifty small tests with torch's test classes (10 minutes)
	$(BIN)/python benchmarks/testing.py

bench-bugs: $(READY) ## run wrong programs on Gloo, DETAIL and Phalanx; write docs/bugs.md (25 minutes)
	$(BIN)/python -m benchmarks.bugs --on gloo,detail,phalanx --write docs/bugs.md

bench-explain: $(READY) ## let wrong programs hang under torchrun and explain their dumps; write docs/explain.md (an hour)
	$(BIN)/python benchmarks/explain.py --write docs/explain.md

chaos: $(READY) ## inject faults into runs on all engines, at random moments (half an hour)
	$(BIN)/python -m tests.chaos.run

clean: ## remove the virtual environment and all caches
	rm -rf .venv .venv-libraries build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	rm -rf src/*.egg-info

# Made anew from nothing whenever the pins change, so that no package of old stays behind.
# The stamp is written last: a set-up that was interrupted is repeated.
$(READY): pyproject.toml constraints.txt
	@echo "Setting up .venv (once, about a minute) ..."
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(DOCS): $(READY)
	@echo "Installing Sphinx into .venv (once) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

# All versions are pinned, so the list of them is also the list of what to install.
$(LIBRARIES): pyproject.toml constraints-libraries.txt
	@echo "Setting up .venv-libraries (once, some minutes) ..."
	@$(PYTHON) -m venv --clear .venv-libraries
	@.venv-libraries/bin/python -m pip install -qq --disable-pip-version-check \
		-r constraints-libraries.txt -e .
	@touch $@
