"""Shared by tests that train on records without masks: the records, made of random text, and options."""

from __future__ import annotations

import random

from pretraining_text import LETTERS, VOCABULARY, Here, data_options

from bert_tf2.pretraining import create_pretraining_data
from bert_tf2.pretraining.options import PretrainingOptions

LENGTH, PREDICTIONS = 32, 5


def text(num_documents, seed=1):
    """Documents of sentences of words of one to three pieces."""
    rng = random.Random(seed)
    lines = []
    for _ in range(num_documents):
        for _ in range(rng.randint(2, 8)):
            words = ["".join(rng.choices(LETTERS, k=rng.choice([1, 1, 2, 3]))) for _ in range(rng.randint(3, 9))]
            lines.append(" ".join([*words, "."]))
        lines.append("")
    return "\n".join(lines) + "\n"


def make(folder, name="out", num_documents=60, seed=1, **settings) -> str:
    """Writes records; returns their path."""
    (folder / "text.txt").write_text(text(num_documents, seed))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    sizes = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, "input_file": f"{folder}/text.txt"}
    settings = {**sizes, "dynamic_masking": True, "dupe_factor": 1, **settings}
    create_pretraining_data.run(data_options(folder, name, **settings), Here())
    return f"{folder}/{name}"


def training_options(folder, name="run", **changes) -> PretrainingOptions:
    """Options to train a tiny model; `name` is its folder in `folder`."""
    from small_models import tiny_config  # late: it needs TensorFlow

    config = tiny_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH)
    (folder / "config.json").write_text(config.to_json_string())
    settings = {
        "bert_config_file": f"{folder}/config.json", "output_dir": f"{folder}/{name}", "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS, "do_train": True, "train_batch_size": 4, "num_train_steps": 2,
        "num_warmup_steps": 1, "save_checkpoints_steps": 10,
    }  # fmt: skip
    return PretrainingOptions(**{**settings, **changes})


def write(path, rows) -> str:
    """Writes rows of numbers, of any lengths, as TensorFlow does."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            example = tf.train.Example()
            for name, values in row.items():
                slot = example.features.feature[name]
                kind = slot.float_list if any(isinstance(value, float) for value in values) else slot.int64_list
                kind.value.extend(values)
            writer.write(example.SerializeToString(deterministic=True))
    return str(path)
