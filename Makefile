# Everything sets itself up in .venv; `make demo` and `make test` work in a fresh clone on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
READY := $(VENV)/.ready
export PYTHONDONTWRITEBYTECODE :=  # compiled once, tests are collected in half the time, and commands start in half of it
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

.PHONY: demo test test-long lint bench docs docs-tables evidence lock clean

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Coterie needs Python 3.11 or newer; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,deploy]'
	@touch $@

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

demo: $(READY)  ## four groups with tasks of their own: FedAvg, FedCAPrivacy and Coterie, attacked; ends with a report
	rm -rf demo
	$(BIN)/coterie compare coterie fedavg fedcaprivacy --data digits --clients 24 --partition permute:4+dirichlet:0.5 \
		--set clusters=auto --crypto real --audit --out demo

test: $(READY)  ## the fast tests, in two processes; an idle one takes tests of the other
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-long: $(READY)  ## the slow ones: every mode, hostile bytes by the ten thousand, real data, whole trainings, more examples
	$(BIN)/python -m pytest -m "long or hypothesis" --timeout=3600 --hypothesis-profile=exploring -n 2 --dist worksteal

lint: $(READY)  ## style, types, layers, sizes
	$(BIN)/ruff check src tests papers benchmarks
	$(BIN)/ruff format --check src tests papers benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/house/test_layers.py tests/house/test_rooms.py
	$(BIN)/python -m benchmarks.size

bench: $(READY)  ## speeds as ratios, measured in one run, written to docs/bench.json
	$(BIN)/python -m benchmarks.speed docs/bench.json

docs: $(VENV)/.docs  ## the pages as a site in build/site/VERSION, with a reference and executed notebooks; a warning is an error
	$(BIN)/python -W ignore::FutureWarning -m sphinx --fresh-env --fail-on-warning --keep-going --quiet --doctree-dir build/doctrees docs build/site/$(VERSION)
	$(BIN)/python -m pytest tests/docs/test_site.py

docs-tables: $(READY)  ## the tables, numbers and studies' pictures of the pages, made anew from the records beside them
	$(BIN)/python -m benchmarks.pages

evidence: $(READY)  ## the runs of docs/evidence/papers.md that a CPU can do, continued; says first how many hours they take
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.evidence reproduction --jobs $(JOBS)

lock: $(READY)  ## requirements-deploy.txt: all that a deployment installs, with the hashes of all its files, from constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9,<1'
	$(BIN)/uv pip compile pyproject.toml --extra deploy --constraints constraints.txt --universal --python-version 3.11 \
		--generate-hashes --no-annotate --custom-compile-command 'make lock' --quiet --output-file requirements-deploy.txt > /dev/null

clean:
	rm -rf $(VENV) demo runs build .pytest_cache .mypy_cache .ruff_cache .hypothesis
