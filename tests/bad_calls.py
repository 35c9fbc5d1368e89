"""Valid and damaged files of every kind in one folder, and for each script a command line that is right."""

from __future__ import annotations

import json
import pathlib

import toy_data

from bert_tf2 import heads
from bert_tf2.data import records
from bert_tf2.weights import bundle, checkpoint
from bert_tf2.weights.task_file import LabelMap, save_label_map

LENGTH, PREDICTIONS = 32, 4
LABELS = LabelMap("tsv", ("bad", "fine", "good"), regression=False)


def save(model, folder: pathlib.Path, step: int = 7) -> None:
    bundle.CheckpointFolder(str(folder)).save(checkpoint.tf1_variables(model), step)


def write_records(path: pathlib.Path, **changes) -> None:
    row = {
        "input_ids": [2, 5, 3] + [0] * (LENGTH - 3),
        "input_mask": [1] * 3 + [0] * (LENGTH - 3),
        "segment_ids": [0] * LENGTH,
        "masked_lm_positions": [1] + [0] * (PREDICTIONS - 1),
        "masked_lm_ids": [7] + [0] * (PREDICTIONS - 1),
        "masked_lm_weights": [1.0] + [0.0] * (PREDICTIONS - 1),
        "next_sentence_labels": [0],
    }
    records.write_records(str(path), records.PRETRAINING, [row, {**row, **changes}])


def _write_checkpoints(folder: pathlib.Path) -> None:
    config = toy_data.config(num_hidden_layers=1)
    model = heads.PretrainingModel(config)
    save(model, folder / "pretrained")
    checkpoint.save(str(folder / "google" / "bert_model.ckpt"), checkpoint.tf1_variables(model))
    save(heads.PretrainingModel(toy_data.config(num_hidden_layers=1, hidden_size=8)), folder / "narrow")
    save(heads.ClassifierModel(config, num_labels=3), folder / "classifier")
    save_label_map(str(folder / "classifier"), LABELS)
    save(heads.ClassifierModel(config, num_labels=3), folder / "unlabeled")


def _write_tables(folder: pathlib.Path) -> None:
    for name in ("tables", "torn", "unknown"):
        toy_data.write_tsv_task(folder / name)
    train = (folder / "torn" / "train.tsv").read_text()
    (folder / "torn" / "train.tsv").write_text(train.replace("train2\t", "train2\tone\tmore\t"))
    dev = (folder / "unknown" / "dev.tsv").read_text()
    (folder / "unknown" / "dev.tsv").write_text(dev.replace("\tyes\n", "\tyess\n", 1))


def _contents() -> dict[str, str | bytes]:
    """What else is in the folder; in `wrong/`, files that are of no use to any script."""
    config = json.loads(toy_data.config(num_hidden_layers=1).to_json_string())
    words, doubled = toy_data.conll(8, 1), toy_data.squad(8, 1)
    doubled["data"][0]["paragraphs"][3]["qas"][0]["id"] = "q1"
    return {
        "not.json": '{"vocab_size": 30522,\n "hidden_size" 768}',
        "cut.json": '{"vocab_size": 30522, "hidd',
        "lacking.json": json.dumps({"hidden_size": 16}),
        "few_words.json": json.dumps({**config, "vocab_size": 10}),
        "deep.json": json.dumps({**config, "num_hidden_layers": 100_000_000}),
        "few.txt": "[PAD]\n[UNK]\n[CLS]\nfilm\n",
        "other_labels.json": json.dumps({"task": "tsv", "labels": ["a", "b"], "regression": False}),
        "squad.json": json.dumps(toy_data.squad(8, 1)),
        "squad2.json": json.dumps(toy_data.squad(8, 1, impossible=True)),
        "doubled.json": json.dumps(doubled),
        "words.txt": words,
        "table.tsv": "".join(f"0\tword\ttext {number}\n" for number in range(200)),
        "untagged.txt": words.replace("B-LOC", "O").replace("B-PER", "O"),
        "latin1.txt": b"a\ncaf\xe9\n",
        "blanks.txt": "a [MASK]\n",
        "text.txt": "".join(f"{text} [MASK]\n" for text, _ in toy_data.sentences(200, 1)),
        "file": "in the way",
        "wrong/empty": b"",
        "wrong/utf16": "words\n".encode("utf-16"),
        "wrong/list": "[1, 2]",
        "wrong/text": "a text\nof two lines\n",
    }


def write_files(path: pathlib.Path) -> None:
    """Writes valid and damaged files of every kind into a folder."""
    toy_data.write_model(path, num_hidden_layers=1)
    _write_checkpoints(path)
    _write_tables(path)
    (path / "wrong").mkdir()
    for name, content in _contents().items():
        (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    write_records(path / "records")
    whole = (path / "records").read_bytes()
    (path / "cut").write_bytes(whole[: len(whole) * 3 // 4])
    (path / "flipped").write_bytes(whole[:40] + bytes([whole[40] ^ 255]) + whole[41:])


_MODEL = ["--bert_config_file=bert_config.json", "--vocab_file=vocab.txt"]
_SIZE = f"--max_seq_length={LENGTH}"
_TASK = [*_MODEL, "--output_dir=OUT/out", "--do_train", _SIZE, "--train_batch_size=8", "--num_train_epochs=1"]
# OUT in front of an output stands for a folder of the test.
BASE = {
    "build_vocab.py": ["--input_file=text.txt", "--vocab_file=OUT/new_vocab.txt"],
    "run_pretraining.py": [
        *("--input_file=records", _MODEL[0], "--output_dir=OUT/out", "--do_train", "--train_batch_size=2", _SIZE),
        *(f"--max_predictions_per_seq={PREDICTIONS}", "--num_train_steps=2", "--num_warmup_steps=1"),
    ],
    "run_classifier.py": [
        *(*_TASK, "--data_dir=tables", "--task_name=tsv"),
        *(f"--{name}={value}" for name, value in toy_data.TSV_COLUMNS.items()),
    ],
    "run_squad.py": [
        *(*_TASK, "--train_file=squad.json", "--predict_file=squad.json", "--doc_stride=8", "--max_query_length=8"),
    ],
    "run_ner.py": [
        *(*_TASK, "--train_file=words.txt", "--eval_file=words.txt", "--predict_file=words.txt", "--word_column=2"),
    ],
    "extract_features.py": [
        *("--input_file=text.txt", "--output_file=OUT/features.json", *_MODEL, "--init_checkpoint=pretrained"),
        *("--layers=-1", _SIZE),
    ],
    "create_pretraining_data.py": ["--input_file=text.txt", _MODEL[1], "--output_file=OUT/x.tfrecord", _SIZE],
    "inspect_records.py": ["--input_file=records", "--vocab_file=vocab.txt"],
    "predict_masked.py": [*_MODEL, "--init_checkpoint=pretrained", "--input_file=blanks.txt"],
    "convert_checkpoint.py": [*_MODEL, "--input=pretrained", "--output=OUT/converted", "--to=tf1"],
    "explore.py": [*_MODEL, "--model=pretrained", "--port=0"],
    "export_saved_model.py": [
        *(*_MODEL, "--task=classifier", "--init_checkpoint=classifier", "--export_dir=OUT/exported"),
        "--text_signatures=false",
    ],
}


def flags(script: str, change: str, out: pathlib.Path) -> list[str]:
    """The command line of a script with a change; the last flag of a name counts."""
    return [flag.replace("OUT", str(out)) for flag in (*BASE[script], *change.split())]
