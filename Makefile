# make run      set up everything, and start a broker and its dashboard in the foreground: make run ARGS="--port 1884"
# make demo     a node, its dashboard, its analysis and two loads that overload it; the page says what to look at
# make check    format, lint, types, import contracts and the fast tests: what to run before a commit
# make test     what CI runs after the lint: unit tests in both forms, system tests on a compiled copy with 4 workers
# make nightly  what CI leaves out: long models, interpreted nodes, 1 and 2 workers, fuzzing, faults, mutation; hours
# make lint     format, lint, types and import contracts
# make bench    Weir beside Mosquitto: make bench ARGS=--quick
# make charts   sustained overload with protection and without, measured and drawn: make charts ARGS="--seconds 10"
# make screenshots  the pictures of the dashboard in deploy/screenshots, by the tests that check what they show
# make fuzz     mutated conversations against the installed Weir: make fuzz ARGS="--inputs 1000000"
# make soak     an hour of load beside the fuzzer: nothing lost, no process grows: make soak ARGS="--minutes 60"
# make faults   workers and Redis killed and stopped under load: make faults ARGS="--runs 50"
#               stored sessions, 1000 faults and power cuts among them, 10 million messages: make faults ARGS=durable
#               APPLICATION clients, the carrier and Kafka: make faults ARGS=applications
#               nodes that share a Redis: make faults ARGS=cluster
# make simulate  histories of stored sessions against a model of Redis, from seeds: make simulate ARGS="--seed 1"
# make nodes    what a worker of a cluster of 10, 50 and 200 nodes does for each event: make nodes ARGS="--nodes 400"
# make scenes   overload scenes that judge how long things take, and an analysis that is killed
# make kafka    an Apache Kafka on loopback in the foreground, for try-outs: make kafka ARGS="--port 0"
# make wheel    the package for another machine: dist/weirmq-*.whl
# make release  a release: VERSION=x.y.z checks the changelog, trains, builds the wheel and tags the commit
# make lock     write requirements.lock anew: the newest versions that pyproject.toml allows
# make clean    remove all that the others made
#
# Compiled files are never in the source tree. .venv holds an installed copy, made again when the text of a source
# changes, so a compiled file cannot hide an edit. Compiling takes minutes: `make run` and `make demo` do not wait for it
# but start interpreted and compile in the background for the next start; everything else waits (deploy/install.py).
# With WEIR_TRAIN=1 gcc learns first what a working Weir executes: a tenth less CPU per message, in twice the time.
# `make bench`, `make charts` and `make release` train unless WEIR_TRAIN=0.

VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --quiet --disable-pip-version-check
INSTALL := $(BIN)/python deploy/install.py

# The exact version of each dependency, also of those that only dependencies need. `make run LOCK=` takes the newest.
LOCK       := requirements.lock
CONSTRAINT := $(if $(LOCK),--constraint $(LOCK))

# The base interpreter: PYTHON if it is set, else the first of these that is new enough. It is looked for once, and only
# where an environment is made: a script of pyenv takes a tenth of a second, and seconds on a busy machine.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON     ?= $(eval PYTHON := $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done))$(PYTHON)

# What pyproject.toml asks for, one requirement a line: what a node needs, or also what building and testing it needs.
REQUIREMENTS := import sys, tomllib; t = tomllib.load(open("pyproject.toml", "rb")); extras = t["project"]["optional-dependencies"]; \
	print(*{"run": t["build-system"]["requires"] + t["project"]["dependencies"] + extras["embedded"], \
	"dev": t["dependency-groups"]["dev"], **extras}[sys.argv[1]], sep="\n")

# INSTALLED imports the installed copy: the tests are importable and the sources are not. -P would not reach what it starts.
INSTALLED := env PYTHONPATH="$(CURDIR)/$(VENV)/only" PYTHONSAFEPATH=1 $(BIN)/python
TREE      := env PYTHONPATH="$(CURDIR)" $(BIN)/python

.PHONY: run demo check test nightly lint bench charts screenshots fuzz soak faults simulate nodes scenes kafka wheel release lock clean \
	installed

# Ctrl-C reaches both by itself; the dashboard ends with the node, whose exit code counts. DASHBOARD: its options.
run: $(VENV)/needs $(VENV)/dashboard
	@$(INSTALL) --now
	@$(BIN)/weir start $(ARGS) & node=$$!; \
	$(BIN)/weir dashboard --wait 60 $(DASHBOARD) & dashboard=$$!; \
	trap : INT; trap 'kill -TERM $$node' TERM; \
	while wait $$node; code=$$?; kill -0 $$node 2>/dev/null; do :; done; \
	kill -TERM $$dashboard 2>/dev/null; wait; exit $$code

demo: $(VENV)/needs $(VENV)/dashboard $(VENV)/analytics
	@$(INSTALL) --now
	@exec $(BIN)/weir demo $(ARGS)

wheel: installed
	@mkdir -p dist && cp "$$($(INSTALL) --wheel)" dist && ls dist/*.whl

# The wheel is trained and never interpreted; it is tried in an environment of its own before the commit is tagged.
release: $(VENV)/needs
	@$(BIN)/python deploy/release.py check "$(VERSION)"
	@WEIR_COMPILE=1 $(INSTALL) && rm -rf dist $(VENV)/release && mkdir -p dist && \
		cp "$$(WEIR_COMPILE=1 $(INSTALL) --wheel)" dist
	@$(PYTHON) -m venv $(VENV)/release
	@$(VENV)/release/bin/python -m pip --quiet --disable-pip-version-check install $(CONSTRAINT) dist/*.whl
	@$(VENV)/release/bin/weir --version | grep -F "weir $(VERSION) (compiled" && rm -rf $(VENV)/release
	@$(BIN)/python deploy/release.py tag "$(VERSION)" && ls dist/*.whl

lint: $(VENV)/dev
	@$(BIN)/ruff format --quiet --check .  || { echo 'Run "$(BIN)/ruff format ." to put this right.'; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(TREE) -c 'from importlinter.cli import lint_imports_command as run; run()' >$(VENV)/contracts || \
		{ cat $(VENV)/contracts; exit 1; }

check: lint
	@WEIR_FORM=interpreted $(TREE) -m pytest -q -n auto -m "not slow and not system and not faults and not nightly" tests

# Which tests these are, and why: tests/tools/suite/phases.py.
test: $(VENV)/dev $(VENV)/node/installed
	@$(TREE) -m tests.tools.suite change

nightly: $(VENV)/dev $(VENV)/node/installed
	@$(TREE) -m tests.tools.suite night
	@$(MAKE) --no-print-directory fuzz ARGS="--inputs 200000"
	@$(MAKE) --no-print-directory faults ARGS="--runs 20"
	@$(MAKE) --no-print-directory faults ARGS="durable --faults 100 --keep-going"
	@$(MAKE) --no-print-directory faults ARGS="applications --faults 200 --keep-going"
	@$(MAKE) --no-print-directory faults ARGS="backbone --faults 100 --keep-going"
	@$(MAKE) --no-print-directory faults ARGS="cluster --faults 500 --keep-going"
	@$(MAKE) --no-print-directory simulate ARGS="--histories 100000"
	@$(MAKE) --no-print-directory scenes
	@$(TREE) -m tests.tools.mutation --sample 600

bench charts release: export WEIR_TRAIN ?= 1

bench: installed $(VENV)/dev
	@$(INSTALLED) -m tests.tools.bench $(ARGS)

charts: installed $(VENV)/dev
	@$(INSTALLED) -m tests.tools.bench.charts $(ARGS)

# Each of the four pictures has one test, which writes it only if it shows what it should.
screenshots: $(VENV)/dev $(VENV)/dashboard $(VENV)/analytics
	@WEIR_SCREENSHOTS="$(CURDIR)/deploy/screenshots" $(TREE) -m pytest -q tests/system/test_demo.py \
		tests/dashboard/test_pages.py::test_the_pictures_of_the_readme_show_an_overload

fuzz: installed $(VENV)/dev
	@$(INSTALLED) -m tests.tools.fuzz $(ARGS)

soak: installed $(VENV)/dev
	@$(INSTALLED) -m tests.tools.soak $(ARGS)

faults: installed $(VENV)/dev
	@$(INSTALLED) -m tests.tools.faults $(ARGS)

simulate: $(VENV)/dev
	@$(TREE) -m tests.tools.simulate $(ARGS)

nodes: $(VENV)/dev
	@$(TREE) -m tests.tools.simulate.nodes $(ARGS)

scenes: installed $(VENV)/dev
	@$(INSTALLED) -m pytest -q -s -m faults tests/system tests/analytics

# Maven copies Kafka's jars into the cache of the user, once. It needs no more than a Python.
kafka: $(BIN)/python
	@$(BIN)/python deploy/kafka/server.py $(ARGS)

clean:
	@test ! -x $(BIN)/python || $(INSTALL) --stop
	@rm -rf $(VENV) build dist *.egg-info .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find broker supervisor cli analytics tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The compiled copy. install.py decides in a moment whether there is something to do.
installed: $(VENV)/needs
	@$(INSTALL)
	@mkdir -p $(VENV)/only && ln -sfn ../../tests $(VENV)/only/tests

# The environment. The first question to go wrong gets a sentence; the rest of make assumes it was answered.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Weir needs Python 3.11 or newer, and found none: set PYTHON=/path/to/python3."; exit 1; }
	@$(PYTHON) -c '$(NEW_ENOUGH)' 2>/dev/null || { echo "Weir needs Python 3.11 or newer, and $(PYTHON) is not."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
		{ echo "Weir needs Python's venv module: install the package python3-venv."; exit 1; }
	@echo "Making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv --clear $(VENV)

$(VENV)/needs: $(BIN)/python pyproject.toml $(LOCK)
	@echo "Installing what Weir needs"
	@$(BIN)/python -c '$(REQUIREMENTS)' run >$@.txt
	@$(PIP) install $(CONSTRAINT) -r $@.txt
	@touch $@

# The dashboard and the analysis are optional: if one of them cannot be installed, make goes on without it.
$(VENV)/analytics: PART := analysis
$(VENV)/dashboard: PART := dashboard
$(VENV)/dashboard $(VENV)/analytics: $(VENV)/needs
	@echo "Installing what the $(PART) needs$(if $(filter analysis,$(PART)), (400 MB))"
	@$(BIN)/python -c '$(REQUIREMENTS)' $(@F) >$@.txt
	@$(PIP) install $(CONSTRAINT) -r $@.txt && touch $@ || echo "It could not be installed: Weir runs without the $(PART)."

$(VENV)/dev: $(VENV)/needs
	@echo "Installing what its tests need"
	@$(BIN)/python -c '$(REQUIREMENTS)' dev >$@.txt
	@$(PIP) install $(CONSTRAINT) -r $@.txt
	@touch $@

# MQTT.js, which some system tests use; without npm these tests are skipped, and say so.
NODE_NEEDS := tests/system/programs/javascript/package.json
$(VENV)/node/installed: $(NODE_NEEDS) $(BIN)/python
	@mkdir -p $(@D) && cp $(NODE_NEEDS) $(@D)
	@if command -v npm >/dev/null; then echo "Installing MQTT.js" && \
		npm install --prefix $(@D) --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error >/dev/null && \
		touch $@; \
	else echo "There is no npm: the tests with MQTT.js are skipped"; fi

# An environment of its own with all that pyproject.toml asks for, and the versions that pip chose there. The file is a list
# of constraints: a package that only another version of Python or kind of machine needs is not in it, and is not pinned.
lock: $(BIN)/python
	@rm -rf $(VENV)/lock && $(PYTHON) -m venv $(VENV)/lock
	@for group in run dashboard analytics dev; do $(BIN)/python -c '$(REQUIREMENTS)' $$group; done >$(VENV)/lock.txt
	@$(VENV)/lock/bin/python -m pip --quiet --disable-pip-version-check install -r $(VENV)/lock.txt
	@{ echo "# The exact versions that CI tests, with Python $$($(BIN)/python -c 'import platform; print(platform.python_version())')."; \
		echo "# Written by: make lock"; \
		$(VENV)/lock/bin/python -m pip --disable-pip-version-check freeze --all --exclude pip; } >requirements.lock
	@rm -rf $(VENV)/lock $(VENV)/lock.txt
