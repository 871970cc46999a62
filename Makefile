# make demo   trains a small language model, then proves that its bits repeat (ARGS="--steps 40")
# make test   everything that runs without a GPU (STEPS="cpp python" runs some of it, V=1 shows all)
# make lint   the quick checks     make format   formats the C++ sources
# make bench  builds and runs the C++ benchmarks     make clean   removes build/ (not .venv)
#
# Needs git, make, python3 with venv and a C++20 compiler. Everything else goes into .venv, from
# PyPI; pip's own settings (PIP_INDEX_URL, ...) are obeyed. VENV_ARGS=--system-site-packages takes
# an installed torch instead of fetching one (about 2 GB with its CUDA libraries, also on a CPU).
PYTHON ?= python3
VENV ?= .venv
VENV_ARGS ?=
ARGS ?=
STEPS ?=

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
# The package is built again when one of these changes.
SOURCES := CMakeLists.txt pyproject.toml README.md \
  $(shell find cmake include src python -type f ! -name '*.pyc' 2>/dev/null)

.PHONY: demo test lint format bench clean
.NOTPARALLEL:

demo: $(VENV)/.monomoe
	$(PY) -m monomoe demo $(ARGS)

test: $(VENV)/.tools $(VENV)/.monomoe
	$(PY) tools/run_tests.py $(STEPS)

lint: $(VENV)/.tools
	$(PY) tools/run_tests.py includes layout docs format tidy

format: $(VENV)/.tools
	PATH="$(abspath $(VENV))/bin:$$PATH" $(PY) tools/format.py

bench: $(VENV)/.build
	PATH="$(abspath $(VENV))/bin:$$PATH" cmake --preset cpu
	PATH="$(abspath $(VENV))/bin:$$PATH" cmake --build --preset cpu
	for program in build/cpu/bench_*; do "$$program" $(ARGS) || exit 1; done

clean:
	rm -rf build

# Stamps: each is made again when pyproject.toml changes; pip then only fetches what is new.
$(VENV)/.made:
	@$(PYTHON) tools/check_machine.py
	$(PYTHON) -m venv $(VENV_ARGS) $(VENV)
	@touch $@

$(VENV)/.build: pyproject.toml $(VENV)/.made
	@echo "tools to build with: from PyPI into $(VENV)"
	$(PY) tools/requirements.py build > $@.txt
	$(PIP) install -q -r $@.txt
	@touch $@

$(VENV)/.run: pyproject.toml $(VENV)/.build
	@echo "torch and what the demo needs: from PyPI into $(VENV), once, about 2 GB"
	$(PY) tools/requirements.py run demo > $@.txt
	$(PIP) install -r $@.txt
	@touch $@

$(VENV)/.tools: pyproject.toml $(VENV)/.build
	@echo "tools to test with: from PyPI into $(VENV)"
	$(PY) tools/requirements.py test lint > $@.txt
	$(PIP) install -q -r $@.txt
	@touch $@

$(VENV)/.monomoe: $(SOURCES) $(VENV)/.run
	@echo "building and installing monomoe"
	$(PIP) install -q --no-deps --no-build-isolation --force-reinstall .
	@touch $@
