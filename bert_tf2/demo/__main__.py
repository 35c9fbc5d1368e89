"""Pretrains a small BERT on the built-in corpus with the project's scripts, and fills in blanks with it.

    make demo        or, wherever the package is installed,        bert_tf2 demo [OUTPUT_DIR]

Every command is printed before it runs.
"""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

from bert_tf2.support import console, files, process

HERE = pathlib.Path(__file__).parent

SIZES = ("--max_seq_length=32", "--max_predictions_per_seq=5")
# Chosen for a short demonstration. A small batch updates the weights often; with Adam's bias correction and larger
# initial weights (initializer_range in bert_config.json), this small model learns in a quarter of the time that the
# defaults need.
TRAINING = (
    *("--train_batch_size=16", "--learning_rate=1.5e-3", "--adam_bias_correction"),
    *("--num_train_steps=4000", "--num_warmup_steps=100"),
)


def command(script: str, *arguments: str) -> list[str]:
    """The command line for one of the scripts, in the checkout or in the installed package."""
    path = HERE.parents[1] / script
    start = [os.path.relpath(path)] if path.exists() else ["-m", "bert_tf2", path.stem]
    return [sys.executable, *start, *arguments]


def run(script: str, *arguments: str) -> str:
    """Runs one of the scripts; its log appears on the terminal. Returns its standard output."""
    words = command(script, *arguments)
    print(f"\n$ {shlex.join(words)}", flush=True)
    done = subprocess.run(words, stdout=subprocess.PIPE, encoding="utf-8", check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def main() -> None:
    """The command `bert_tf2 demo`."""
    words, sys.argv = sys.argv[1:], ["bert_tf2 demo"]  # the name in errors
    process.begin()
    with console.in_one_line():
        if len(words) > 1 or (words and words[0].startswith("-")):
            print(__doc__)
            sys.exit(0 if "--help" in words else 2)
        demonstrate(pathlib.Path(*words or ["demo_output"]))


def demonstrate(output: pathlib.Path) -> None:
    began = time.monotonic()
    files.make_directory(str(output))
    config, vocabulary = f"--bert_config_file={HERE / 'bert_config.json'}", f"--vocab_file={HERE / 'vocab.txt'}"
    corpus, records = HERE / "corpus.txt", output / "corpus.tfrecord"
    making = ("--dupe_factor=200", "--short_seq_prob=0.3", "--verbosity=-1")
    run("create_pretraining_data.py", f"--input_file={corpus}", f"--output_file={records}", vocabulary, *SIZES, *making)
    work = (f"--output_dir={output}", "--do_train", "--do_eval")
    run("run_pretraining.py", f"--input_file={records}", config, vocabulary, *work, *SIZES, *TRAINING)
    results = (output / "eval_results.txt").read_text()
    accuracy = float(re.search(r"^masked_lm_accuracy = (.*)$", results, re.MULTILINE)[1])
    answers = run("predict_masked.py", f"--init_checkpoint={output}", f"--input_file={HERE / 'sentences.txt'}")
    print(answers, end="")
    best, right = re.findall(r"^ *1\. (\S+)", answers, re.MULTILINE), (HERE / "answers.txt").read_text().split()
    count = sum(word == answer for word, answer in zip(best, right, strict=True))
    print(f"\nmasked words of the corpus that the model gets right: {100 * accuracy:.1f} %")
    print(f"blanks whose best word is the right one: {count} of {len(right)}")
    print(f"time: {time.monotonic() - began:.0f} s; everything it wrote is in {output}/")
    print(f"next, to see how it comes to its answers: {shlex.join(command('explore.py', f'--model={output}'))}")


if __name__ == "__main__":
    main()
