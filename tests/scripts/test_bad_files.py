"""Another file than the one that is needed, at every flag of every script that names one.

The rows are what a script reads, the columns what may be there instead. Mistakes within files of the right kind are in
test_bad_inputs.py and test_bad_values.py.
"""

from __future__ import annotations

import gzip
import json
import pathlib
import re
import zipfile

import pytest
from bad_calls import BASE, MODEL, check, folder

from bert_tf2.commands import COMMANDS, find
from bert_tf2.support import settings

__all__ = ["folder"]  # the fixture

CALLS = {
    **BASE,
    "create_pretraining_data.py": [
        *("--input_file=words.txt", "--vocab_file=vocab.txt", "--output_file=out/x.tfrecord", "--max_seq_length=32"),
    ],
    "inspect_records.py": ["--input_file=records", "--vocab_file=vocab.txt"],
    "predict_masked.py": [*MODEL[:2], "--init_checkpoint=pretrained", "--input_file=words.txt"],
    "convert_checkpoint.py": [*MODEL[:2], "--input=pretrained", "--output=out/converted", "--to=tf1"],
    "explore.py": [*MODEL[:2], "--model=pretrained", "--port=0"],
    "export_saved_model.py": [
        *(*MODEL[:2], "--task=classifier", "--init_checkpoint=classifier", "--export_dir=out/exported"),
        "--text_signatures=false",
    ],
}


@pytest.fixture(scope="module")
def wrong(folder) -> pathlib.Path:
    """The files of bad_calls.py, and in `wrong/` those of other kinds."""
    place = folder / "wrong"
    place.mkdir()
    (place / "folder").mkdir()
    for name, content in {
        "empty": b"",
        "blank": b"\n\n\n",
        "utf16": "words\n".encode("utf-16"),
        "packed": gzip.compress(b"words\n"),
        "pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj",
        "page": b"<!DOCTYPE html><html><body>404: not found</body></html>",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12\n",
        "zeros": bytes(5000),
        "deep": b"[" * 10_000,
        "list": b"[1, 2]",
        "other": json.dumps({"task": "tsv", "labels": "yes", "regression": False}).encode(),
        "text": b"a text\nof two lines\n",
    }.items():
        (place / name).write_bytes(content)
    with zipfile.ZipFile(place / "zip", "w") as archive:
        archive.writestr("a", "b")
    (place / "dangling").symlink_to("nothing")
    (place / "loop").symlink_to("loop")
    return folder


EMPTY, FOLDER, PAGE, ZIP = "the file is empty", "is a folder|Is a directory", "is an HTML page", "is a zip archive"
CASES = [
    ("build_vocab.py", "--input_file=wrong/pdf", "is a PDF"),
    ("create_pretraining_data.py", "--input_file=wrong/utf16", "is text in UTF-16"),
    ("create_pretraining_data.py", "--input_file=wrong/zeros --num_shards=2", "wrong/zeros"),
    ("create_pretraining_data.py", "--input_file=wrong/deep --input_format=jsonl", "line 1: is not valid JSON"),
    ("create_pretraining_data.py", "--input_file=wrong/list --input_format=jsonl", "line 1: is a list"),
    ("create_pretraining_data.py", "--vocab_file=wrong/empty", "holds no entries"),
    ("create_pretraining_data.py", "--vocab_file=wrong/packed", "is a gzip archive"),
    ("inspect_records.py", "--input_file=wrong/empty", "no records in there|is empty"),
    ("inspect_records.py", "--input_file=wrong/zeros", "is a file of zeros"),
    ("inspect_records.py", "--vocab_file=wrong/empty", "wrong/empty: holds no entries"),
    ("inspect_records.py", "--vocab_file=wrong/list", "wrong/list: has no .CLS., .SEP."),
    ("run_pretraining.py", "--bert_config_file=wrong/deep", "nested too deep"),
    ("run_pretraining.py", "--input_file=wrong/empty", "wrong/empty: no records in there|is empty"),
    ("predict_masked.py", "--input_file=wrong/pdf", "is a PDF"),
    ("predict_masked.py", "--input_file=wrong/folder", FOLDER),
    ("run_classifier.py", "--data_dir=wrong/text", r"wrong/text/train\.tsv"),
    ("run_classifier.py", "--class_weights=wrong/deep", "nested too deep"),
    ("run_squad.py", "--train_file=wrong/deep", "nested too deep"),
    ("run_ner.py", "--do_eval --eval_file=wrong/blank", "there is no word in this file"),
    ("run_ner.py", "--do_predict --predict_file=wrong/folder", FOLDER),
    ("extract_features.py", "--init_checkpoint=wrong/empty", "wrong/empty"),
    ("convert_checkpoint.py", "--input=wrong/zeros", "wrong/zeros"),
    ("convert_checkpoint.py", "--extend_vocab=wrong/empty", "wrong/empty"),
    ("explore.py", "--model=wrong/zeros", "wrong/zeros"),
    ("explore.py", "--compare_with=wrong/text", "wrong/text"),
    ("export_saved_model.py", "--label_map=wrong/other", "must have 'task'"),
]
SLOW_CASES = [
    ("build_vocab.py", "--input_file=wrong/empty", "no words to learn a vocabulary from; look at --input_file"),
    ("build_vocab.py", "--input_file=wrong/folder", FOLDER),
    ("create_pretraining_data.py", "--input_file=wrong/zip", ZIP),
    ("create_pretraining_data.py", "--input_file=wrong/loop", "no such file|symbolic links"),
    ("create_pretraining_data.py", "--vocab_file=wrong/folder", FOLDER),
    ("inspect_records.py", "--input_file=wrong/page", PAGE),
    ("inspect_records.py", "--vocab_file=wrong/dangling", "no such file"),
    ("run_pretraining.py", "--bert_config_file=wrong/folder", FOLDER),
    ("run_pretraining.py", "--bert_config_file=wrong/page", PAGE),
    ("run_pretraining.py", "--init_checkpoint=wrong/folder", "holds no checkpoint"),
    ("predict_masked.py", "--bert_config_file=wrong/list", r"an object .* is needed"),
    ("predict_masked.py", "--vocab_file=wrong/page", r"wrong/page"),
    ("predict_masked.py", "--init_checkpoint=wrong/zip", ZIP),
    ("predict_masked.py", "--init_checkpoint=wrong/pointer", "wrong/pointer"),
    ("run_classifier.py", "--class_weights=wrong/list", "an object .* is needed"),
    ("run_classifier.py", "--init_checkpoint=wrong/text", "is text"),
    ("run_squad.py", "--train_file=wrong/page", PAGE),
    ("run_squad.py", "--do_predict --predict_file=wrong/zip", ZIP),
    ("run_squad.py", "--do_predict --predict_file=wrong/folder", FOLDER),
    ("run_ner.py", "--train_file=wrong/packed", "is a gzip archive"),
    ("extract_features.py", "--input_file=wrong/folder", FOLDER),
    ("extract_features.py", "--vocab_file=wrong/utf16", "is text in UTF-16"),
    ("convert_checkpoint.py", "--bert_config_file=wrong/deep", "nested too deep"),
    ("convert_checkpoint.py", "--extend_vocab=wrong/folder", FOLDER),
    ("convert_checkpoint.py", "--input= --output= --list=wrong/page", "wrong/page"),
    ("explore.py", "--bert_config_file=wrong/deep", "nested too deep"),
    ("explore.py", "--vocab_file=wrong/page", "wrong/page"),
    ("export_saved_model.py", "--label_map=wrong/deep", "nested too deep"),
    ("export_saved_model.py", "--init_checkpoint=wrong/loop", "wrong/loop"),
    ("export_saved_model.py", "--bert_config_file=wrong/empty", EMPTY),
]
# Where an output cannot be. Found before the work: a training that cannot write its model at the end is lost time.
OUTPUTS = [
    ("run_pretraining.py", "--do_export --vocab_file=vocab.txt --export_dir=/dev/null", "/dev/null is a file"),
    ("run_pretraining.py", f"--output_dir={'x' * 300}", "File name too long"),
    ("run_classifier.py", f"--do_export --export_dir={'x' * 300}", "File name too long"),
    ("convert_checkpoint.py", "--output=wrong/text", "wrong/text"),
    ("export_saved_model.py", "--export_dir=wrong/text/x", "wrong/text is a file"),
    ("create_pretraining_data.py", "--output_file=wrong/text/x", "wrong/text is a file"),
]


@pytest.mark.parametrize(
    ("script", "change", "message"),
    [*CASES, *OUTPUTS, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
)
def test_a_file_of_another_kind(script, change, message, wrong, command_lines, tmp_path):
    flags = [flag.replace("=out", f"={tmp_path}/out") for flag in CALLS[script]]
    done = command_lines.run(script, *flags, *change.split(" "), cwd=wrong)
    check(done, script, message, wrong)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


# Flags whose rows are in test_bad_inputs.py, or whose reader another script shares.
ELSEWHERE = {
    *(("run_pretraining", name) for name in ("vocab_file", "eval_input_file")),
    *(("run_classifier", name) for name in ("bert_config_file", "vocab_file")),
    *((script, name) for script in ("run_squad", "run_ner") for name in ("bert_config_file", "vocab_file")),
    *(("run_squad", "init_checkpoint"), ("run_ner", "init_checkpoint"), ("extract_features", "bert_config_file")),
    *(("convert_checkpoint", "vocab_file"), ("export_saved_model", "vocab_file")),
}


def test_every_flag_that_names_a_file_has_a_row():
    tested = {
        (script.removesuffix(".py"), name)
        for script, change, _ in CASES + SLOW_CASES
        for name in re.findall(r"--(\w+)=wrong", change)
    }
    for script, command in COMMANDS.items():
        stated = settings.settings_of(find(command.options))
        reads = {(script, name) for name, (setting, _, _) in stated.items() if setting.reads}
        assert reads <= tested | ELSEWHERE
    assert not tested & ELSEWHERE
