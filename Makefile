# make run    set up everything, and start a broker and its dashboard in the foreground: make run ARGS="--port 1884"
# make demo   a node of its own, its dashboard and its analysis, and two loads that overload it: what to look at is said
# make wheel  the package, to be installed elsewhere: dist/weirmq-*.whl
# make test   the whole suite, on the sources as they are and on an installed, compiled copy, with 1, 2 and 4 workers
# make lint   format, lint, types and import contracts
# make check  these and the fast tests: what to run before a commit
# make bench  Weir beside Mosquitto: make bench ARGS=--quick
# make charts sustained overload, with protection and without, measured and drawn: make charts ARGS="--seconds 10"
# make fuzz   mutated conversations against the installed Weir: make fuzz ARGS="--inputs 1000000"
# make faults workers and Redis killed and stopped under load: make faults ARGS="--runs 50"
# make scenes modest clients beside what wants all of a node, an analysis that is killed, and how long all that takes
# make clean  remove all that the others made
#
# Compiled files are never in the source tree. .venv holds an installed copy, made again whenever the text of
# a source (not merely its date) is other than when it was made, so a compiled file cannot hide an edit.
# With WEIR_TRAIN=1 gcc learns first what a Weir that works executes: a tenth faster, in twice the time.

VENV    := .venv
BIN     := $(VENV)/bin
COPY    := $(VENV)/copy
WHEELS  := $(VENV)/wheels
PROFILE := $(CURDIR)/$(VENV)/profile
PIP     := $(BIN)/python -m pip --quiet --disable-pip-version-check
SOURCES := pyproject.toml setup.py broker supervisor cli analytics

# The base interpreter: PYTHON if it is set, else the first of these that is new enough.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON     ?= $(firstword $(foreach p,python3 python3.11 python3.12 python3.13 python3.14,\
	$(shell $(p) -c '$(NEW_ENOUGH)' 2>/dev/null && echo $(p))))

# What pyproject.toml asks for, one requirement a line.
REQUIREMENTS := import sys, tomllib; t = tomllib.load(open("pyproject.toml", "rb")); \
	print(*(t["dependency-groups"]["dev"] if sys.argv[1] == "dev" else t["build-system"]["requires"] + \
	t["project"]["dependencies"] + t["project"]["optional-dependencies"]["embedded"]), sep="\n")

EXTRA := import sys, tomllib; t = tomllib.load(open("pyproject.toml", "rb")); \
	print(*t["project"]["optional-dependencies"][sys.argv[1]], sep="\n")

# Where the sources are not importable but the tests are; -P keeps the current folder out, too.
INSTALLED := env PYTHONPATH="$(CURDIR)/$(VENV)/only" PYTHONSAFEPATH=1 $(BIN)/python
TREE      := env PYTHONPATH="$(CURDIR)" $(BIN)/python

# What clients of one broker can see: also tried with several workers. The others decide themselves how many there are.
CLIENT_TESTS := $(filter-out $(addprefix %/test_,node.py load.py bench.py client_limits.py quotas.py why.py simulate.py demo.py) \
	$(wildcard tests/system/test_overload_*.py),$(wildcard tests/system/test_*.py))

.PHONY: run demo wheel test lint check bench charts fuzz faults scenes clean FORCE
FORCE:

# Ctrl-C reaches all of them by itself; the dashboard ends with the node, whose exit code counts. DASHBOARD: its options.
run: $(VENV)/installed $(VENV)/dashboard
	@$(BIN)/weir start $(ARGS) & node=$$!; \
	$(BIN)/weir dashboard --wait 60 $(DASHBOARD) & dashboard=$$!; \
	trap : INT; trap 'kill -TERM $$node' TERM; \
	while wait $$node; code=$$?; kill -0 $$node 2>/dev/null; do :; done; \
	kill -TERM $$dashboard 2>/dev/null; wait; exit $$code

demo: $(VENV)/installed $(VENV)/dashboard $(VENV)/analytics
	@exec $(BIN)/weir demo $(ARGS)

wheel: $(VENV)/installed
	@mkdir -p dist && cp $(WHEELS)/*.whl dist && ls dist/*.whl

# Two at a time: with more, tests of whole nodes wait for each other. What fails beside another is tried once more with
# the machine to itself, and what it said the first time stays to be read.
# The analysis is not compiled, and is tried once. What one broker's clients see of the installed copy is tried with
# several workers alone: that the sources do the same with one has been seen by then.
NODES  := -m "system and not faults"
OTHERS := -m "not system and not faults"
PYTEST := -m pytest -q
try     = $(1) $(PYTEST) --cache-clear -n 2 --dist worksteal $(2) || \
	{ [ $$? -eq 1 ] && echo "== what failed, once more by itself ==" && \
	$(1) $(PYTEST) --no-cov -W ignore::pytest_cov.CovDisabledWarning --last-failed --last-failed-no-failures none $(2); }
# A thousand long conversations take minutes: the compiled copy has them, and short ones are had everywhere.
LONG   := $(addprefix --deselect=tests/model/test_,\
	conversations.py::test_many_long_conversations_go_as_the_reference_says \
	node_conversations.py::test_nor_after_many_long_conversations)
ONCE   := $(addprefix --ignore=tests/,analytics dashboard deploy system/test_demo.py)

test: $(VENV)/installed $(VENV)/dev $(VENV)/node/installed
	@echo "== the sources, interpreted =="
	@export WEIR_FORM=interpreted; $(call try,$(TREE),$(OTHERS) $(LONG) --cov=broker.mqtt --cov=broker.session \
		--cov=broker.routing --cov-branch --cov-report= tests)
	@$(TREE) -m coverage report --skip-covered --fail-under=97
	@export WEIR_FORM=interpreted; $(call try,$(TREE),$(NODES) $(LONG) tests)
	@set -e; form=$$($(INSTALLED) -c 'from broker.version import form; print(form())'); \
	export WEIR_FORM=$$form WEIR_INSTALLED=1; \
	echo "== the installed copy, $$form =="; \
	$(call try,$(INSTALLED),$(OTHERS) $(ONCE) tests); \
	$(call try,$(INSTALLED),$(NODES) $(ONCE) $(addprefix --ignore=,$(CLIENT_TESTS)) tests); \
	for workers in 2 4; do \
		echo "== the installed copy, $$form, $$workers workers =="; \
		export WEIR_SYSTEM_WORKERS=$$workers; \
		$(call try,$(INSTALLED),$(NODES) $(CLIENT_TESTS)); \
	done

lint: $(VENV)/dev
	@$(BIN)/ruff format --quiet --check .  || { echo 'Run "$(BIN)/ruff format ." to put this right.'; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(TREE) -c 'from importlinter.cli import lint_imports_command as run; run()' >$(VENV)/contracts || \
		{ cat $(VENV)/contracts; exit 1; }

check: lint
	@WEIR_FORM=interpreted $(TREE) -m pytest -q -n auto -m "not slow and not system" tests

bench: $(VENV)/installed $(VENV)/dev
	@$(INSTALLED) -m tests.tools.bench $(ARGS)

charts: $(VENV)/installed $(VENV)/dev
	@$(INSTALLED) -m tests.tools.bench.charts $(ARGS)

fuzz: $(VENV)/installed $(VENV)/dev
	@$(INSTALLED) -m tests.tools.fuzz $(ARGS)

faults: $(VENV)/installed $(VENV)/dev
	@$(INSTALLED) -m tests.tools.faults $(ARGS)

scenes: $(VENV)/installed $(VENV)/dev
	@$(INSTALLED) -m pytest -q -s -m faults tests/system tests/analytics

clean:
	@rm -rf $(VENV) build dist *.egg-info .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find broker supervisor cli analytics tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. The first question to go wrong gets a sentence; the rest of make assumes it was answered.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Weir needs Python 3.11 or newer, and found none: set PYTHON=/path/to/python3."; exit 1; }
	@$(PYTHON) -c '$(NEW_ENOUGH)' 2>/dev/null || { echo "Weir needs Python 3.11 or newer, and $(PYTHON) is not."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
		{ echo "Weir needs Python's venv module: install the package python3-venv."; exit 1; }
	@echo "Making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv --clear $(VENV)

$(VENV)/needs: $(BIN)/python pyproject.toml
	@echo "Installing what Weir needs"
	@$(BIN)/python -c '$(REQUIREMENTS)' run >$@.txt
	@$(PIP) install -r $@.txt
	@touch $@

# The dashboard and the analysis do without each other, and the broker without both: who cannot get them goes on.
$(VENV)/dashboard $(VENV)/analytics: $(VENV)/needs
	@echo "Installing what the $(@F) needs"
	@$(BIN)/python -c '$(EXTRA)' $(@F) >$@.txt
	@$(PIP) install -r $@.txt && touch $@ || echo "It could not be installed: Weir runs without the $(@F)."

$(VENV)/dev: $(VENV)/needs
	@echo "Installing what its tests need"
	@$(BIN)/python -c '$(REQUIREMENTS)' dev >$@.txt
	@$(PIP) install -r $@.txt
	@touch $@

# MQTT.js, which some tests of the whole program use; without npm they say that it is missing.
NODE_NEEDS := tests/system/programs/javascript/package.json
$(VENV)/node/installed: $(NODE_NEEDS) $(BIN)/python
	@mkdir -p $(@D) && cp $(NODE_NEEDS) $(@D)
	@if command -v npm >/dev/null; then echo "Installing MQTT.js" && \
		npm install --prefix $(@D) --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error >/dev/null && \
		touch $@; \
	else echo "There is no npm: the tests with MQTT.js are skipped"; fi

# Every source with its checksum, and what else decides how the copy is built; rewritten only when it changes.
$(VENV)/contents: $(BIN)/python FORCE
	@{ echo "WEIR_COMPILE=$$WEIR_COMPILE WEIR_TRAIN=$$WEIR_TRAIN CC=$$CC"; \
		find $(SOURCES) -type f ! -name '*.pyc' -exec cksum {} + | sort; } >$@.new
	@cmp -s $@.new $@ || mv $@.new $@

# Built from a fresh copy: setuptools would otherwise carry on what an earlier build left in ./build. WEIR_TRAIN=1 builds
# twice, and has Weir work in between: the second build knows what is executed.
BUILD   := rm -rf $(COPY)/build $(WHEELS) && $(PIP) --log $(VENV)/build.log wheel --no-deps --no-build-isolation \
	--wheel-dir $(WHEELS) ./$(COPY) && $(PIP) install --no-deps --force-reinstall $(WHEELS)/*.whl
$(VENV)/installed: $(VENV)/needs $(VENV)/contents
	@echo "Installing Weir"
	@rm -rf $(COPY) $(PROFILE) $(VENV)/build.log && mkdir -p $(COPY) && cp -R $(SOURCES) README.md LICENSE $(COPY)
	@find $(COPY) -name __pycache__ -type d -prune -exec rm -rf {} +
	@if [ "$$WEIR_TRAIN" = 1 ]; then \
		export WEIR_PROFILE=$(PROFILE) && $(BUILD) && \
		echo "Having it work, to install it as that shows" && $(BIN)/python deploy/train.py || exit 1; \
	fi; $(BUILD)
	@sed -n 's/.* \([A-Z].*: Weir is installed interpreted\)/\1/p' $(VENV)/build.log | sort -u
	@mkdir -p $(VENV)/only && ln -sfn ../../tests $(VENV)/only/tests
	@$(BIN)/weir --version
	@touch $@
