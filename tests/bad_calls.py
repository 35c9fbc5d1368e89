"""Valid and invalid files, command lines for them, and a check of the error output."""

from __future__ import annotations

import gzip
import json
import pathlib
import re

import pytest
import toy_data
from command_lines import Done

from bert_tf2 import heads
from bert_tf2.data import records
from bert_tf2.weights import checkpoint
from bert_tf2.weights.task_file import LabelMap, save_label_map

LENGTH, PREDICTIONS = 32, 4
LABELS = LabelMap("tsv", ("maybe", "no", "yes"), regression=False)
RESULTS = {
    *("eval_results.txt", "eval_metrics.json", "test_results.tsv", "predictions.tsv", "predictions.json"),
    *("nbest_predictions.json", "null_odds.json", "predictions.txt", "features.json", "features.npy", "new_vocab.txt"),
}


def save(model, folder: pathlib.Path, step: int = 7) -> None:
    checkpoint.CheckpointFolder(str(folder)).save(checkpoint.tf1_variables(model), step)


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


def write_checkpoints(folder: pathlib.Path) -> None:
    config = toy_data.config(num_hidden_layers=1)
    save(heads.PretrainingModel(config), folder / "pretrained")
    save(heads.ClassifierModel(config, num_labels=3), folder / "classifier")
    save_label_map(str(folder / "classifier"), LABELS)
    two = {"task": "tsv", "labels": ["a", "b"], "regression": False}
    (folder / "other_labels.json").write_text(json.dumps(two))
    save(heads.PretrainingModel(toy_data.config(num_hidden_layers=1, hidden_size=8)), folder / "narrow")
    encoder = checkpoint.tf1_variables(heads.PretrainingModel(config))
    encoder.pop("bert/encoder/layer_0/output/dense/kernel")
    checkpoint.save(str(folder / "incomplete" / "model.ckpt"), encoder)
    save(heads.PretrainingModel(config), folder / "corrupt")
    data = folder / "corrupt" / "model.ckpt-7.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:1000])
    save(heads.PretrainingModel(config), folder / "cased_L-12_H-768_A-12")
    release = folder / "cased_L-12_H-768_A-12"
    for ending in ("index", "data-00000-of-00001"):
        (release / f"model.ckpt-7.{ending}").rename(release / f"bert_model.ckpt.{ending}")


def write_configurations(folder: pathlib.Path) -> None:
    good = json.loads((folder / "bert_config.json").read_text())
    (folder / "not.json").write_text('{"vocab_size": 30522,\n "hidden_size" 768}')
    (folder / "lacking.json").write_text(json.dumps({"hidden_size": 16}))
    (folder / "heads.json").write_text(json.dumps({**good, "num_attention_heads": 3}))
    (folder / "few_words.json").write_text(json.dumps({**good, "vocab_size": 10}))
    (folder / "few.txt").write_text("[PAD]\n[UNK]\n[CLS]\nfilm\n")


def write_tables(folder: pathlib.Path) -> None:
    toy_data.write_tsv_task(folder / "tables")
    for name in ("torn", "unknown", "empty", "lonely"):
        toy_data.write_tsv_task(folder / name)
    train = (folder / "torn" / "train.tsv").read_text()
    (folder / "torn" / "train.tsv").write_text(train.replace("train2\t", "train2\tone\tmore\t"))
    dev = (folder / "unknown" / "dev.tsv").read_text()
    (folder / "unknown" / "dev.tsv").write_text(dev.replace("\tyes\n", "\tyess\n", 1))
    (folder / "empty" / "train.tsv").write_text("")
    (folder / "lonely" / "dev.tsv").unlink()


def write_questions(folder: pathlib.Path) -> None:
    toy_data.write_squad(folder / "squad.json", 8, 1)
    toy_data.write_squad(folder / "squad2.json", 8, 1, impossible=True)
    text = (folder / "squad.json").read_text()
    (folder / "broken.json").write_text(text[:200])
    (folder / "outside.json").write_text(re.sub(r'"answer_start": \d+', '"answer_start": 9000', text))
    (folder / "list.json").write_text("[]")
    (folder / "empty.txt").write_text("")


def write_words(folder: pathlib.Path) -> None:
    toy_data.write_conll(folder / "words.txt", 8, 1)
    text = (folder / "words.txt").read_text()
    (folder / "torn.txt").write_text(text.replace("1.0 ", "1.0 x ", 1))
    (folder / "new_tag.txt").write_text(text.replace("B-LOC", "B-NEW", 1))
    (folder / "outside.txt").write_text(text.replace("B-LOC", "O").replace("B-PER", "O"))
    (folder / "latin1.txt").write_bytes(b"a\ncaf\xe9\n")
    (folder / "blanks.txt").write_text("a [MASK]\n")


def write_senseless(folder: pathlib.Path) -> None:
    good = json.loads((folder / "bert_config.json").read_text())
    vocabulary = (folder / "vocab.txt").read_bytes()
    for name, change in {
        "deep": {"num_hidden_layers": 100_000_000},
        "one_segment": {"type_vocab_size": 1},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps({**good, **change}))
    (folder / "lower.txt").write_bytes(vocabulary.replace(b"[PAD]", b"[pad]"))
    (folder / "stub").write_bytes(b"\x1f\x8b\x08")
    write_records(folder / "nan_weights", masked_lm_weights=[float("nan"), 0.0, 0.0, 0.0])
    questions = toy_data.squad(8, 1)
    questions["data"][0]["paragraphs"][3]["qas"][0]["id"] = "q1"
    (folder / "doubled.json").write_text(json.dumps(questions))


def write_other_kinds(folder: pathlib.Path) -> None:
    place = folder / "wrong"
    place.mkdir()
    (place / "folder").mkdir()
    for name, content in {
        "empty": b"",
        "blank": b"\n\n\n",
        "utf16": "words\n".encode("utf-16"),
        "packed": gzip.compress(b"words\n"),
        "page": b"<!DOCTYPE html><html><body>404: not found</body></html>",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12\n",
        "zeros": bytes(5000),
        "deep": b"[" * 10_000,
        "list": b"[1, 2]",
        "other": json.dumps({"task": "tsv", "labels": "yes", "regression": False}).encode(),
        "text": b"a text\nof two lines\n",
    }.items():
        (place / name).write_bytes(content)
    (place / "loop").symlink_to("loop")


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> pathlib.Path:
    """Valid and invalid files of every kind."""
    path = tmp_path_factory.mktemp("files")
    toy_data.write_model(path, num_hidden_layers=1)
    write_configurations(path)
    write_checkpoints(path)
    write_tables(path)
    write_questions(path)
    write_words(path)
    write_records(path / "records")
    write_records(path / "bad_ids", input_ids=[2, 5000, 3] + [0] * (LENGTH - 3))
    whole = (path / "records").read_bytes()
    (path / "cut").write_bytes(whole[: len(whole) * 3 // 4])
    (path / "flipped").write_bytes(whole[:40] + bytes([whole[40] ^ 255]) + whole[41:])
    (path / "file").write_text("in the way")
    write_senseless(path)
    write_other_kinds(path)
    return path


MODEL = ["--bert_config_file=bert_config.json", "--vocab_file=vocab.txt", "--output_dir=out"]
BASE = {
    "build_vocab.py": ["--input_file=words.txt", "--vocab_file=out/new_vocab.txt"],
    "run_pretraining.py": [
        *("--input_file=records", "--bert_config_file=bert_config.json", "--output_dir=out", "--train_batch_size=2"),
        *("--do_train", f"--max_seq_length={LENGTH}", f"--max_predictions_per_seq={PREDICTIONS}"),
        *("--num_train_steps=2", "--num_warmup_steps=1"),
    ],
    "run_classifier.py": [
        *(*MODEL, "--data_dir=tables", "--task_name=tsv", "--do_train", f"--max_seq_length={LENGTH}"),
        "--num_train_epochs=1",
        *(f"--{name}={value}" for name, value in toy_data.TSV_COLUMNS.items()),
    ],
    "run_squad.py": [
        *(*MODEL, "--do_train", "--train_file=squad.json", "--predict_file=squad.json", f"--max_seq_length={LENGTH}"),
        *("--doc_stride=8", "--max_query_length=8", "--train_batch_size=8", "--num_train_epochs=1"),
    ],
    "run_ner.py": [
        *(*MODEL, "--do_train", "--train_file=words.txt", "--eval_file=words.txt", "--predict_file=words.txt"),
        *("--word_column=2", f"--max_seq_length={LENGTH}", "--train_batch_size=8", "--num_train_epochs=1"),
    ],
    "extract_features.py": [
        *("--input_file=words.txt", "--output_file=out/features.json", "--bert_config_file=bert_config.json"),
        *("--vocab_file=vocab.txt", "--init_checkpoint=pretrained", "--layers=-1", f"--max_seq_length={LENGTH}"),
    ],
    "create_pretraining_data.py": [
        *("--input_file=words.txt", "--vocab_file=vocab.txt", "--output_file=out/x.tfrecord", "--max_seq_length=32"),
    ],
    "inspect_records.py": ["--input_file=records", "--vocab_file=vocab.txt"],
    "predict_masked.py": [*MODEL[:2], "--init_checkpoint=pretrained", "--input_file=blanks.txt"],
    "convert_checkpoint.py": [*MODEL[:2], "--input=pretrained", "--output=out/converted", "--to=tf1"],
    "explore.py": [*MODEL[:2], "--model=pretrained", "--port=0"],
    "export_saved_model.py": [
        *(*MODEL[:2], "--task=classifier", "--init_checkpoint=classifier", "--export_dir=out/exported"),
        "--text_signatures=false",
    ],
}


def arguments(script: str, change: str) -> list[str]:
    """The command line of a script with a change; the last flag of the same name counts."""
    return [*BASE[script], *change.split(" ")]


def check(done: Done, script: str, message: str, folder: pathlib.Path) -> list[str]:
    """Checks the error message; returns the lines logged before it."""
    *logged, last = done.stderr.splitlines()
    assert done.status not in (0, -9), done
    assert done.stdout == ""
    assert last.startswith(f"{script}: error: "), done.stderr
    assert re.search(message, last), last
    assert "Traceback" not in done.stderr and done.stderr.count("error: ") == 1
    left = {path.name for path in folder.rglob("*")}
    assert not left & RESULTS
    assert not [name for name in left if name.endswith(".partial")]
    return logged
