# Every target does its own set-up, once: .venv/.stamp-EXTRA says that isonorm[EXTRA] is installed.
# `make test TORCH=2.8.0` replaces the pin of torch, in an environment of its own beside .venv.

PYTHON ?= python3
VENV := .venv$(if $(TORCH),-torch$(TORCH))
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: demo test fuzz check bench format clean help again

demo: $(VENV)/.stamp-lab ## train one network with several normalizations; print a table, write an HTML report under runs/
	$(BIN)/isonorm compare

test: $(VENV)/.stamp-test ## run the tests and the docstring examples; ARGS="-k newton" is passed on to pytest
	$(BIN)/python -m pytest $(ARGS)

fuzz: $(VENV)/.stamp-test ## try random cases for five minutes; ARGS="--minutes 30 --seed 1 --only NAME" is passed on, --help tells more
	$(BIN)/python tests/fuzz/run.py $(ARGS)

check: $(VENV)/.stamp-dev ## lint, formatting and types; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(VENV)/.stamp-lab ## time and memory on the CPU, beside BatchNorm and the paper's algorithm in plain torch
	$(BIN)/python -m benchmarks.cpu

format: $(VENV)/.stamp-dev ## format the code and apply safe lint fixes
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

clean: ## remove the environments, the caches and runs/
	rm -rf .venv .venv-torch* .pytest_cache .ruff_cache .hypothesis build dist runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

# An environment whose set-up was interrupted holds .unfinished: no stamp in it counts, and it is rebuilt.
$(VENV)/.stamp-%: pyproject.toml constraints.txt $(if $(wildcard $(VENV)/.unfinished),again)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "isonorm needs python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo missing): name another with make PYTHON=python3.11." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments because its venv or ensurepip module is missing: install it (python3-venv on Debian and Ubuntu) and try again." >&2; exit 1; }
	@echo "Setting up isonorm[$*] in $(VENV), once: a new environment takes a few minutes."
	@if [ -e $(VENV)/.unfinished ] || [ ! -x $(BIN)/python ]; then rm -rf $(VENV); fi
	@mkdir -p $(VENV) && touch $(VENV)/.unfinished
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@sed '$(if $(TORCH),s/^torch==.*/torch==$(TORCH)/)' constraints.txt > $(VENV)/constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt -e ".[$*]"
	@rm $(VENV)/.unfinished && touch $@
