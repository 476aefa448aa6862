# Two commands matter: `make demo` and `make test`. Each sets up .venv by itself; a second run starts at once.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test lint format protos protos-release manifests clean

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MODEL := smollm2-135m-instruct
PROTOS := $(wildcard protos/paceline/v1/*.proto)
# The first Python of at least 3.11, or the one named by PYTHON=...
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
# For every process started here; what `paceline serve` starts gets them from its own code.
export RAY_USAGE_STATS_ENABLED := 0
export RAY_AUTH_MODE := disabled

help:
	@echo "make demo             install, start the stack, answer PROMPT with and without drafts, print a summary"
	@echo "make test             install and run the whole suite"
	@echo "make lint             ruff, mypy, import contracts, buf"
	@echo "make format           format the code"
	@echo "make protos           regenerate services/paceline/v1 from protos/"
	@echo "make protos-release   take today's protos as what later ones must stay compatible with"
	@echo "make manifests        print the Kubernetes manifests"
	@echo "make clean            remove what these commands made in this folder"

install: $(INSTALLED)

# torch first and pinned, so that every machine measures the same build; then the package itself, editable.
$(INSTALLED): pyproject.toml
	@test -n "$(PYTHON)" || { echo "paceline needs Python 3.11 or later; name one with: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@rm -f $@
	@test -x $(BIN)/python || { echo "paceline: making $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@echo "paceline: [1/3] pip"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@echo "paceline: [2/3] torch (the largest part)"
	@$(BIN)/python -m pip install --disable-pip-version-check "torch==2.13.0"
	@echo "paceline: [3/3] paceline and everything else"
	@$(BIN)/python -m pip install --disable-pip-version-check -e ".[serve,dev,study]"
	@touch $@
	@echo "paceline: installed in $(VENV)"

demo: $(INSTALLED)
	@$(BIN)/paceline demo $${PROMPT:+--prompt "$$PROMPT"}

test: $(INSTALLED)
	@$(BIN)/paceline models fetch $(MODEL)
	@$(BIN)/python -m pytest -m "not ray" -n 2 --dist loadfile
	@$(BIN)/python -m pytest -m ray

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint protos
	$(BIN)/buf breaking protos --against protos/released.binpb

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# OUT=FOLDER writes elsewhere; the tests compare such a copy with what is committed.
OUT ?= services
protos: $(INSTALLED)
	@mkdir -p $(OUT)
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=$(OUT) --pyi_out=$(OUT) --grpc_python_out=$(OUT) $(PROTOS)

protos-release: $(INSTALLED)
	$(BIN)/buf build protos --exclude-source-info -o protos/released.binpb

manifests: $(INSTALLED)
	@$(BIN)/python deploy/kuberay/render.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find services clients tests deploy -name __pycache__ -type d -prune -exec rm -rf {} +
