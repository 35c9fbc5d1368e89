#!/bin/bash
# Runs the tests and benchmarks that need a GPU, the most important first: bash benchmarks/gpu_all.sh [SECONDS [REPORT]]
#
# A part that fails or takes too long does not end the others, and no part begins after SECONDS (default: 3600). REPORT
# (default: bench_output/gpu_report.md) has a table of the parts, and their output; it is written again after each part.
# PARTS="32x128 demo" chooses parts. SMALL=--bert_config_file=FILE replaces BERT-Base, to try this script on a CPU.
cd "$(dirname "$0")/.." || exit
ends=$((SECONDS + ${1:-3600})) report=${2:-bench_output/gpu_report.md} python=${PYTHON:-python3} folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$(dirname "$report")" && touch "$folder/all"
export PYTHONPATH=$PWD:$PWD/benchmarks:$PYTHONPATH PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL=2
# Several processes test at the same time, so none may take the whole memory of the GPU.
export BERT_TF2_TEST_GPU=1 TF_FORCE_GPU_ALLOW_GROWTH=true
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null)
# The flags of XLA are for the tests and the peers, which do not set them.
$python - "$folder/head" "${gpu:-no GPU}" > "$folder/flags" <<'END'
import importlib.metadata, os, pathlib, sys
import machine, processes
from bert_tf2.support import xla_flags
versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("tensorflow", "keras"))
head = f"{sys.argv[2]}; {versions}; {machine.describe()}; revision {processes.revision()}\n\n"
pathlib.Path(sys.argv[1]).write_text(f"{head}| part | result | s |\n|-|-|-:|\n")
xla_flags.prepare(xla_flags.NO_CACHE)
print(os.environ.get("XLA_FLAGS", ""))
END
XLA_FLAGS=$(cat "$folder/flags")
export XLA_FLAGS
cat "$folder/head"

part() { # NAME LIMIT COMMAND...
  local name=$1 limit=$2 began=$SECONDS left=$((ends - SECONDS)) status result
  shift 2
  if [[ -n $PARTS && " $PARTS " != *" $name "* ]]; then return; fi
  if ((left < 15)); then echo "| $name | no time left | |" >> "$folder/head"; return; fi
  printf '\n## %s\n\n' "$name" | tee -a "$folder/all"
  timeout --kill-after=5 $((limit < left ? limit : left)) "$@" 2> "$folder/errors" | tee -a "$folder/all"
  status=${PIPESTATUS[0]}
  case $status in 0) result=done ;; 124 | 137) result="over the limit" ;; *) result="failed, status $status" ;; esac
  if ((status)); then grep -v '^[IWE]0000' "$folder/errors" | tail -n 15 | cut -c 1-400 | tee -a "$folder/all"; fi
  echo "| $name | $result | $((SECONDS - began)) |" | tee -a "$folder/head"
  cat "$folder/head" "$folder/all" > "$report"
}
tests() { part "$1" "$2" $python -m pytest -vv -rs --tb=short -m "not slow" -k "$3" "${@:4}" tests/test_gpu.py; }
program() { part "$1" "$2" $python "benchmarks/$3" $SMALL "${@:4}"; }
settings() { program "$1" "$2" xla_settings.py --limit=110 "--settings=$3" "${@:4}"; }
step() { program "$1" "$2" pretraining_step.py --xla "${@:3}"; }

ours="as bert_tf2 sets them" large="--precision=bfloat16 --batch_size=128"
packed="--precision=bfloat16 --batch_size=32 --max_seq_length=512 --max_predictions_per_seq=76 --mean_length=256"
packed="$packed --steps=6 --in_turn"
# BERT-Base compiles in about a minute; most limits are twice the time that a part should take.
tests attention-values 120 in_one_kernel
settings attention-speed 230 "no attention dropout,attention in one kernel" --max_seq_length=512
settings 32x128 200 "$ours"
step 32x128-copies 120 --unpad=none --loop --xla_cache_dir="$folder/xla" --precision=bfloat16 --batch_size=32
step 128x128 120 --unpad=none --loop --xla_cache_dir="$folder/xla" $large
step 128x128-kernels 120 --unpad=none --loop --xla_cache_dir="$folder/xla" --profile_dir="$folder/profile" $large
program 128x128-transformers 150 peers/torch_transformers_step.py --variant=compile --loop $large
tests tests 300 "not in_one_kernel and not fused" --numprocesses=6 --dist=worksteal
settings 32x128-without-xla 120 "without XLA"
step packed-fused 240 --attention=fused $packed
step packed-plain 240 --attention=plain $packed
tests attention-scripts 400 fused
settings 32x128-autotuner-off 120 "the autotuner off"
settings 32x128-cuda-graphs 200 "CUDA graphs as XLA has it"
XLA_FLAGS="$XLA_FLAGS --xla_allow_excess_precision=true" settings 32x128-excess-precision 200 "$ours"
program gpu-check 240 gpu_check.py
program 128x128-keras-hub 150 peers/keras_hub_step.py --variant=xla --loop $large
program 128x128-model-garden 150 peers/model_garden_step.py --variant=xla --loop $large
part demo 180 $python -m bert_tf2.demo
printf '\n' && cat "$folder/head" "$folder/all" | tee "$report"  # also the parts for which no time was left
