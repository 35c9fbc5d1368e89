"""Runs the scripts and `fit` in small, and keeps their numbers: python whole_runs.py FOLDER [xla | plain | fused].

test_gpu.py compares the numbers of two runs. "plain" and "fused" are values of --attention: then the programs are
compiled, compute in bfloat16 and have no dropout of attention; only some of the scripts run.
"""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import sys

import numpy as np
import toy_data
from pretraining_text import VOCABULARY
from small_models import tiny_config
from small_trainings import saved
from unmasked_data import LENGTH, PREDICTIONS, make

LENGTH_OF_TEXTS = 24


def numbers(value) -> list[float]:
    """The floats in nested lists and dicts, in their order."""
    if isinstance(value, dict | list):
        return [number for one in (value.values() if isinstance(value, dict) else value) for number in numbers(one)]
    return [float(value)] if isinstance(value, float | np.floating) else []


def trained(script: str, output_dir: pathlib.Path, **settings) -> dict[str, list[float]]:
    """Adam's moments, which are sums of the gradients of the steps, and the numbers of an evaluation."""
    from bert_tf2 import commands

    both = {"do_train": True, "do_eval": True, "train_batch_size": 8, "learning_rate": 1e-3}
    given = {**both, "output_dir": output_dir, **settings}
    given = {name: str(value) if isinstance(value, pathlib.Path) else value for name, value in given.items()}
    found = commands.call(script, **{name: value for name, value in given.items() if value is not None})
    state = saved(output_dir)
    moments = np.concatenate([state[name].ravel() for name in sorted(state) if name.endswith("/adam_m")])
    return {
        f"{output_dir.name}, gradients": moments,
        **({f"{output_dir.name}, scores": numbers(found)} if found else {}),
    }


def pretrained(folder: pathlib.Path, layers: int, dropout: float, **settings) -> dict[str, list[float]]:
    """Dropout is the same on all devices."""
    folder.mkdir()
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    sizes = {
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": layers,
        "max_position_embeddings": LENGTH,
    }
    config = tiny_config(vocab_size=len(VOCABULARY), num_hidden_layers=layers, **sizes, **rates)
    (folder / "config.json").write_text(config.to_json_string())
    sizes = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS}
    sizes |= {"num_train_steps": 3, "num_warmup_steps": 1}
    files = {"input_file": make(folder, "records", dynamic_masking=False), "bert_config_file": folder / "config.json"}
    return trained("run_pretraining", folder.with_name(f"{folder.name}_run"), **files, **sizes, **settings)


def answered(script: str, **settings) -> list[float]:
    """The numbers that a script prints, or writes into its output_file, as lines of JSON."""
    from bert_tf2 import commands

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        commands.call(script, **settings)
    text = pathlib.Path(settings["output_file"]).read_text() if "output_file" in settings else printed.getvalue()
    return numbers([json.loads(line) for line in text.splitlines()])


def fitted(encoder: pathlib.Path, jit_compile) -> list[float]:
    import keras
    import tensorflow as tf

    import bert_tf2

    keras.utils.set_random_seed(1)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    texts, labels = map(list, zip(*toy_data.sentences(32, 1), strict=True))
    model = bert_tf2.classifier(str(encoder), labels=["no", "yes"], max_seq_length=16)
    model.model.head_dropout = 0.0  # Keras draws seeds in another way in a program
    model.compile(1e-3, jit_compile=jit_compile)
    history = model.fit(texts, labels, batch_size=8, epochs=2, verbose=0).history
    return [*history["loss"], *np.ravel(model.predict(texts, verbose=0))]


def main(folder: pathlib.Path, way: str | None) -> dict[str, list[float]]:
    from bert_tf2 import heads

    how: dict = {"xla": way == "xla"}
    layers, dropout = 1, 0.1
    if way in ("plain", "fused"):
        how = {"xla": True, "precision": "bfloat16", "attention": way}
        layers, dropout = 2, 0.0  # the last block always has plain attention
    config = toy_data.config(num_hidden_layers=layers)
    weights = toy_data.write_trained(folder / "start", heads.PretrainingModel(config))

    names = {"bert_config_file": "bert_config.json", "vocab_file": "vocab.txt", "init_checkpoint": weights.name}
    model = {name: str(folder / "start" / file) for name, file in names.items()}
    tuned = {**model, "num_train_epochs": 1.0, "max_seq_length": LENGTH_OF_TEXTS, **how}
    toy_data.write_tsv_task(folder / "tsv", 32)
    table = {"task_name": "tsv", "data_dir": folder / "tsv", **toy_data.TSV_COLUMNS, "do_predict": True}
    table["pad_to_max_length"] = "attention" in how
    questions = {"train_file": toy_data.write_squad(folder / "squad", 24, 1), "do_eval": None, "do_predict": True}
    questions |= {"predict_file": questions["train_file"], "max_query_length": 8, "doc_stride": 8}
    words = {
        "train_file": toy_data.write_conll(folder / "train.conll", 24, 1),
        "word_column": 2,
        "pad_to_max_length": True,
    }
    words["eval_file"] = words["train_file"]  # padded, because the dropout of a head depends on the width of a batch
    (folder / "texts").write_text("\n".join(text for text, _ in toy_data.sentences(9, 3)))
    answers = {**model, "input_file": str(folder / "texts"), "max_seq_length": LENGTH_OF_TEXTS, **how}
    found = {
        **pretrained(folder / "words", layers, dropout, **how),
        **pretrained(folder / "packed_words", layers, dropout, pack_rows=True, **how),
        **trained("run_classifier", folder / "classifier", **tuned, **table),
        "extract_features": answered("extract_features", output_file=str(folder / "states"), layers="-1", **answers),
        "predict_masked": answered("predict_masked", score=True, output_format="json", **answers),
    }
    if "attention" not in how:
        found |= {
            **trained("run_squad", folder / "answers", **tuned, **questions),
            **trained("run_ner", folder / "tags", **tuned, **words),
            "fit": fitted(folder / "start", how["xla"] or "auto"),
        }
    return found


if __name__ == "__main__":
    place = pathlib.Path(sys.argv[1])
    numbers_of = main(place, *(sys.argv[2:] or [None]))
    np.savez(place / "numbers.npz", **{name: np.array(values) for name, values in numbers_of.items()})
    import tensorflow as tf

    print("GPU" if tf.config.list_logical_devices("GPU") else "CPU")
