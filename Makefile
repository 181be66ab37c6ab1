.DEFAULT_GOAL := help
.PHONY: help demo page play docs note site notebooks tables test test-all attack mutants lint format clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
DEMO := $(VENV)/.demo
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
PACKAGES := packages/tolerance packages/estimators packages/playground
BENCHMARKS := $(wildcard benchmarks/__main__.py)
ARGS ?=
PAGE := packages/playground/src/iceform_playground/built/index.html

# Two processes of one thread each: many small tensors gain nothing from more threads.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Every cell is run, and every warning is an error. What cells print is kept in out/cells for as long
# as the library and the cell stay the same. Four processes keep two cores busy: they start kernels
# and wait for them.
SPHINX := OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -n -W --keep-going -j 4 -q

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / && ($$1 != "bench" || "$(BENCHMARKS)") { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)

# What the demo runs; what tests, documentation and linting need comes with the first target of theirs.
$(DEMO): pyproject.toml constraints.txt packages/estimators/pyproject.toml | $(BIN)/python
	@echo "installing the demo into $(VENV)"
	@$(PIP) -e . -e "packages/estimators[demo]"
	@touch $@

$(STAMP): pyproject.toml constraints.txt $(PACKAGES:%=%/pyproject.toml) | $(BIN)/python
	@echo "installing into $(VENV)"
	@$(PIP) -e ".[dev]" -e "packages/estimators[demo,dask]" -e packages/tolerance -e "packages/playground[build]"
	@touch $(DEMO) $@

demo: $(DEMO) ## write out/report.html
	$(BIN)/python -m iceform demo

$(PAGE): $(STAMP) $(wildcard packages/playground/src/iceform_playground/*.py packages/playground/src/iceform_playground/page/*)
	OMP_NUM_THREADS=1 $(BIN)/python -m iceform_playground.site

page: $(PAGE) ## build the playground's page; needs npm the first time

play: $(PAGE) ## open the playground in a browser
	$(BIN)/python -m iceform play $(ARGS)

docs: $(STAMP) ## build the documentation into out/docs
	$(SPHINX) -d out/doctrees $(ARGS) docs out/docs

note: $(STAMP) ## measure, then build the note (PDF) into docs/note; needs latexmk
	OMP_NUM_THREADS=1 $(BIN)/python docs/note/measure.py
	cd docs/note && latexmk -pdf -interaction=nonstopmode -halt-on-error -outdir=../../out/note note.tex
	cp out/note/note.pdf docs/note/note.pdf

site: $(STAMP) ## build documentation and playground as static files into out/site; needs npm
	$(SPHINX) -d out/doctrees-site -t site docs out/site
	OMP_NUM_THREADS=1 $(BIN)/python -m iceform_playground.site out/site/play

notebooks: $(STAMP) ## run the tutorials and store their outputs
	OMP_NUM_THREADS=1 PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.notebooks $(ARGS)

tables: $(STAMP) ## fit the tables that ship with the library anew
	OMP_NUM_THREADS=1 $(BIN)/python -m iceform_estimators.machine.build_tables

test: $(STAMP) ## run the quick tests; ARGS="-k residual" picks some
	$(PYTEST) $(ARGS)

test-all: $(STAMP) ## run every test, the slow ones too
	$(PYTEST) -m "" $(ARGS)

attack: $(STAMP) ## attack certificates with exact references; table in results/attacks.md
	OMP_NUM_THREADS=1 PYTHONPATH=packages/estimators $(BIN)/python -m tests.attacks $(ARGS)

mutants: $(STAMP) ## see that the tests notice wrong programs; table in results/attacks.md
	$(BIN)/python -m tests.mutants $(ARGS)
	$(BIN)/python -m tests.mutants --random all

lint: $(STAMP) ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## mend style and formatting in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

ifdef BENCHMARKS
.PHONY: bench
bench: $(STAMP) ## print the benchmark tables
	$(BIN)/python -m benchmarks $(ARGS)
endif

clean: ## remove outputs and caches, keep the environment
	rm -rf out build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +
