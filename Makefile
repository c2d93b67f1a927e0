# Set-up, runs and tests. Every target makes what it needs: a fresh clone needs no step before it.

# The first Python from 3.11 to 3.13 that really starts (a name on the PATH may be an empty shim); or PYTHON=/path/to/python3.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11 python; do \
	$$name -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
RUN := $(BIN) -m replications

PROFILE ?= quick
ONLY ?=
SEEDS ?=
PORT ?=
WORKERS ?=
RESULTS ?=
EXTRAS ?= suite,track,test
PLACE := $(if $(RESULTS),--results $(RESULTS))
FLAGS := --profile $(PROFILE) $(if $(ONLY),--only $(ONLY)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(WORKERS),--workers $(WORKERS)) $(PLACE) $(ARGS)

.DEFAULT_GOAL := help
PAPERS := $(subst _,-,$(patsubst replications/%/claims.toml,%,$(wildcard replications/*/claims.toml)))
REPLICATE := $(PAPERS:%=replicate-%)
.PHONY: help setup model test lint bench gpu-check report view clean $(REPLICATE)

help:  ## list every target
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-24s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@for paper in $(REPLICATE); do printf '  make %-24s %s\n' $$paper 'run this replication: measurements, verdicts, figures, report'; done
	@echo
	@echo "  PROFILE=smoke|quick|full|gpu|paper   SEEDS=number|A-B   ONLY=experiment   WORKERS=processes   ARGS=--fresh"
	@echo "  Results of your own runs go to results-mine/, or RESULTS=directory; RESULTS=results changes the committed ones."

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed; install it, or run make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $(STAMP)

setup: $(STAMP) model  ## make the virtual environment and fetch the embedded model

model: $(STAMP)  ## fetch and convert the embedded language model (once; kept in the user's cache)
	$(RUN) model

$(REPLICATE): replicate-%: $(STAMP) model
	$(RUN) run $* $(FLAGS)

test: $(STAMP) model  ## run every test, two files at a time
	$(BIN) -m pytest -n 2 --dist loadfile

lint: $(STAMP)  ## check style
	$(BIN) -m ruff check .
	$(BIN) -m ruff format --check .

bench: $(STAMP)  ## measure speed ratios in one run
	$(RUN) bench

gpu-check: $(STAMP) model  ## check training and both theorems on one GPU, under 8 minutes (results-mine/gpu-check/)
	$(RUN) gpu-check $(PLACE) $(ARGS)

report: $(STAMP)  ## recompute verdicts, figures and reports from the committed results, or RESULTS=directory
	$(RUN) verdicts $(PLACE)
	$(RUN) figures $(PLACE)
	$(RUN) report $(PLACE)

view: $(STAMP)  ## serve the report on this machine and print its address (PORT=8000)
	$(RUN) view $(if $(PORT),--port $(PORT))

clean:  ## remove the virtual environment (results and the model cache stay)
	rm -rf $(VENV)
