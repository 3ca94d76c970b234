# Two commands: `make demo` embeds real data, `make test` runs lint, types and tests.
# Each sets up the same virtual environment first and does not reinstall while nothing changed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PYTHONUNBUFFERED := 1

.PHONY: demo test lint types check bench clean
demo: $(VENV)/installed
	@echo "==> main job: Laplacian eigenmaps of the digits (results in runs/demo)"
	@$(BIN)/python -m experiments demo

test: lint types check

lint: $(VENV)/installed
	@echo "==> lint and format (ruff)"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/installed
	@echo "==> types (mypy)"
	@$(BIN)/mypy

check: $(VENV)/installed
	@echo "==> tests (pytest)"
	@$(BIN)/python -m pytest

bench: $(VENV)/installed
	@echo "==> benchmarks (figures are recorded in benchmarks/RESULTS.md)"
	@$(BIN)/python -m benchmarks.embedding
	@$(BIN)/python -m benchmarks.spmm
	@$(BIN)/python -m benchmarks.neighbors
	@$(BIN)/python -m benchmarks.eigensolvers
	@$(BIN)/python -m benchmarks.backward
	@$(BIN)/python -m benchmarks.layer
	@$(BIN)/python -m benchmarks.positional_encoding
	@$(BIN)/python -m benchmarks.transform
	@$(BIN)/python -m benchmarks.loss

$(VENV)/installed: pyproject.toml constraints.txt
	@echo "==> virtual environment $(VENV) from $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "==> installing torch_lapeig and its tools, pinned by constraints.txt (a few minutes the first time)"
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) runs
