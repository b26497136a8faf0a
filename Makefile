# make serve   sets everything up and runs the service on an embedded PostgreSQL
# make test    sets everything up and runs the tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
ARGS ?=

.PHONY: install serve test cover check bench soak lock clean

install: $(VENV)/.installed

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Paidonce needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# The locks name every package, so nothing is left to resolve: --no-deps. (With it, pip does not
# look for a newer version of a pinned package that is required with an extra.)
$(VENV)/.installed: requirements/run.lock pyproject.toml | $(BIN)/python
	$(PIP) install --no-deps --require-hashes -r requirements/run.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.installed-dev: requirements/dev.lock $(VENV)/.installed
	$(PIP) install --no-deps --require-hashes -r requirements/dev.lock
	@touch $@

serve: install
	$(BIN)/paidonce serve $(ARGS)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

# Branch coverage of the code that moves money, including the servers that the tests start.
cover: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto --dist loadfile --cov --cov-report= --deselect tests/guards $(ARGS)
	$(BIN)/coverage report --include='src/paidonce/core/*,src/paidonce/processing/*,src/paidonce/queue/*,src/paidonce/linking/*,src/paidonce/inbox/*' --show-missing --fail-under=95

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --soak $(ARGS)

# Make both locks again after a change of the dependencies in pyproject.toml. Needs uv.
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header
lock:
	$(COMPILE) --group build pyproject.toml -o requirements/run.lock
	$(COMPILE) --group dev pyproject.toml -c requirements/run.lock -o requirements/dev.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
