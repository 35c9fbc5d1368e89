"""Trains with --deterministic, which concerns a whole process: python deterministic_runs.py FOLDER

Writes FOLDER/1 and FOLDER/2, the output folders of two equal trainings. Prints the kind of the devices.
"""

from __future__ import annotations

import pathlib
import sys

from pretraining_text import VOCABULARY
from small_models import tiny_config
from unmasked_data import LENGTH, PREDICTIONS, make

from bert_tf2 import commands
from bert_tf2.training.devices import computes_on, create_strategy

DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


def pretrain(folder: pathlib.Path, output_dir: str) -> None:
    config = tiny_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH, **DROPOUT)
    (folder / "config.json").write_text(config.to_json_string())
    make(folder, "records", dynamic_masking=False, seed=1)
    commands.call(
        "run_pretraining", input_file=f"{folder}/records", bert_config_file=f"{folder}/config.json",
        output_dir=output_dir, max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS, train_batch_size=4,
        learning_rate=1e-2, num_train_steps=4, num_warmup_steps=1, do_train=True, deterministic=True,
    )  # fmt: skip


def main(folder: pathlib.Path) -> None:
    for number in (1, 2):
        pretrain(folder, f"{folder}/{number}")
    print(computes_on(create_strategy()))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
