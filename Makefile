# Two commands: `make demo` embeds real data, `make test` runs the tests of the package. CI adds `make lint types docs
# test-slow sanitize` (.ci/run); `make test-all` runs all of this and longer jobs.
# Each sets up its virtual environment first and does not reinstall while nothing changed.
PYTHON ?= python3
PYTHONS ?= python3.10 python3.11 python3.12 python3.13 python3.14
VENV ?= .venv
BIN := $(VENV)/bin
LOWEST := .venv-lowest
TORCH ?= 2.6.0
INSTALL := -m pip install --disable-pip-version-check --progress-bar off
export PYTHONUNBUFFERED := 1

# `make test-slow` runs the tests in these folders, `make test` all others: each test is in one of the two.
SLOW := $(addprefix tests/,benchmarks campaign distributed experiments processes project)

# Trainings, documents, states and messages, which no processor's round-off decides. `make test-plain` leaves them out;
# `make test-all` runs them on plain instructions, too.
NOT_NUMERICAL := $(addprefix --ignore=tests/,benchmarks campaign experiments processes project methods/test_clustering.py \
  methods/test_fitted.py graph/test_conversions.py test_errors.py test_lightning.py test_sklearn.py test_warnings.py)

.PHONY: ran sanitize docs docs-test demo test test-slow test-plain test-all test-lowest test-pythons test-torch coverage dist lint types bench bench-quick clean
demo: $(VENV)/installed
	@echo "==> main job: Laplacian eigenmaps of the digits (results in runs/demo)"
	@$(BIN)/python -m experiments demo

# One worker and one thread a core: threads of several workers would wait for each other.
test: $(VENV)/installed
	@echo "==> tests of the package"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto $(addprefix --ignore=,$(SLOW))

ran: $(VENV)/installed
	@echo "==> tests of the package, and their row in docs/releasing.md"
	@$(BIN)/python -m benchmarks.ran --name "the package's" -n auto $(addprefix --ignore=,$(SLOW))

test-slow: $(VENV)/installed
	@echo "==> tests of trainings, benchmarks, documents and several processes"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto $(SLOW)
	@echo "==> eigenpairs again with all threads"
	@$(BIN)/python -m pytest tests/eigen/test_eigenpairs.py
	@$(MAKE) test-plain

# Another processor rounds otherwise. This pass keeps ATen and MKL to the instructions that every x86-64 has, and leaves
# out the compiled loops, as where there was no compiler.
test-plain: $(VENV)/installed
	@echo "==> numerical tests again as on the plainest x86-64, one thread each"
	@ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=1 TORCH_LAPEIG_COMPILED=0 $(BIN)/python -m pytest -n auto $(NOT_NUMERICAL)

test-all: test lint types docs test-slow test-lowest test-pythons sanitize
	@$(MAKE) test-plain NOT_NUMERICAL=
	@echo "==> campaigns: random problems against references, trainings killed and resumed"
	@$(BIN)/python -m tests.campaign --minutes 10
	@$(BIN)/python -m benchmarks.kill_and_resume --kills 20

lint: $(VENV)/installed
	@echo "==> lint and format (ruff)"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/installed
	@echo "==> types (mypy)"
	@$(BIN)/mypy

docs: $(VENV)/installed
	@echo "==> the site, with the programs of its gallery: docs/_build/html/index.html"
	@rm -rf docs/_build/html
	@if $(BIN)/python -c "import sys; sys.exit(sys.version_info < (3, 11))"; \
	then OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -n -W --keep-going -q -d docs/_build/doctrees docs docs/_build/html; \
	else echo "skipped: Sphinx needs Python 3.11"; fi

docs-test: docs
	@echo "==> the site in a browser: links, search, mathematics"
	@$(BIN)/python -m pytest tests/project/test_site.py

test-lowest: $(LOWEST)/installed
	@echo "==> tests with the lowest versions that pyproject.toml allows"
	@OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n auto

test-pythons: $(VENV)/installed
	@echo "==> each Python that is installed, without torch (PYTHONS=... to choose)"
	@$(BIN)/python .ci/pythons.py $(PYTHONS)

.PHONY: test-pins
test-pins: $(VENV)/installed
	@echo "==> pinned versions on every promised Python, by the index's metadata; nothing is downloaded"
	@$(BIN)/python .ci/pythons.py --resolve

test-torch: .venv-torch-$(TORCH)/installed
	@echo "==> the package's tests with torch $(TORCH) and the newest of all others (TORCH=..., PYTHON=... to choose)"
	@OMP_NUM_THREADS=1 $(<D)/bin/python -m pytest -n auto $(addprefix --ignore=tests/,benchmarks campaign experiments project)

DRAWS ?= 10000
sanitize: $(VENV)/installed
	@echo "==> compiled loops under AddressSanitizer and UBSan: their tests, and $(DRAWS) draws of broken input"
	@$(BIN)/python -m benchmarks.sanitize --draws $(DRAWS)

coverage: $(VENV)/installed
	@echo "==> lines of torch_lapeig that the tests run, those of other processes too (report in runs/coverage)"
	@$(BIN)/coverage erase
	@OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -n auto
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage html --quiet
	@$(BIN)/coverage report

dist: $(VENV)/installed
	@echo "==> wheel and source distribution in dist, checked; the wheel alone runs the README's code"
	@$(BIN)/python .ci/dist.py

bench: $(VENV)/installed
	@echo "==> benchmarks, one thread and two: records and benchmarks/RESULTS.md"
	@$(BIN)/python -m benchmarks all
	@$(BIN)/python -m benchmarks results

bench-quick: $(VENV)/installed
	@echo "==> benchmarks, smaller problems, ten minutes on two cores (records in runs/records)"
	@$(BIN)/python -m benchmarks all --quick

$(VENV)/installed: pyproject.toml constraints.txt hatch_build.py $(wildcard torch_lapeig/native/*.[ch])
	@echo "==> virtual environment $(VENV) from $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "==> installing torch_lapeig and its tools, pinned by constraints.txt (a few minutes the first time)"
	@$(BIN)/python $(INSTALL) -c constraints.txt -e ".[dev]"
	@touch $@

$(LOWEST)/installed: pyproject.toml constraints-lowest.txt
	@echo "==> virtual environment $(LOWEST) from $$($(PYTHON) --version); the wheels of these versions end at Python 3.11"
	@$(PYTHON) -m venv $(LOWEST)
	@$(LOWEST)/bin/python $(INSTALL) --only-binary :all: -c constraints-lowest.txt -e ".[test]"
	@touch $@

.venv-torch-%/installed: pyproject.toml hatch_build.py $(wildcard torch_lapeig/native/*.[ch])
	@echo "==> virtual environment $(@D) from $$($(PYTHON) --version); builds of torch with CUDA take 6 GB: delete it afterwards"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python $(INSTALL) --no-cache-dir torch==$* -e ".[test]"
	@touch $@

clean:
	rm -rf $(VENV) $(LOWEST) .venv-torch-* .venv-pythons .venv-dist dist runs docs/_build docs/api docs/auto_gallery
