"""A user's mistake gets one line, which names the file or the flag and the cure, and leaves no result behind.

A value that a flag alone refuses is in support/test_settings.py and support/test_flags.py.
"""

from __future__ import annotations

import re

import command_lines as lines
import pytest
from bad_calls import BASE, flags
from refused import message_of

from bert_tf2.commands import COMMANDS, find
from bert_tf2.support import settings

_MODEL = [
    ("--bert_config_file=not.json", r"not\.json.*JSON"),
    ("--bert_config_file=lacking.json", r"lacking\.json.*vocab_size"),
    ("--bert_config_file=few_words.json", r"vocab\.txt.* vocab_size 10"),
    ("--vocab_file=few.txt", r"few\.txt.*\[SEP\]"),
    ("--init_checkpoint=gone", r"gone: no such"),
    ("--init_checkpoint=narrow", r"narrow/model\.ckpt-7: .*\[37, 8\] .*\[37, 16\]"),
    ("--max_seq_length=65", "--max_seq_length=65 .* 64"),
]
# Found without TensorFlow, whose import takes seconds: at once.
AT_ONCE = [
    ("run_pretraining.py", "--do_train=false", "--do_train, --do_eval"),
    ("run_pretraining.py", "--input_file= --output_dir=", "--input_file and --output_dir"),
    ("run_pretraining.py", "--input_file=none*", r"none\*: no file"),
    ("run_pretraining.py", "--max_seq_length=1024", "--max_seq_length=1024"),
    ("run_pretraining.py", f"--output_dir={'x' * 300}", "--output_dir.*name too long"),
    ("run_classifier.py", "--task_name=mprc", "mprc.* mrpc, .*tsv"),
    ("run_classifier.py", "--data_dir=gone", r"gone/train\.tsv: no such"),
    ("run_classifier.py", "--text_a_column=words", r"tables/train\.tsv: .*'words'.*'text'"),
    ("run_classifier.py", "--label_column=", "--task_name=tsv needs --label_column"),
    ("run_classifier.py", "--do_train=yes", "--do_train=yes: true or false"),
    ("run_squad.py", "--bert_config_file=vocab.txt", r"vocab\.txt, line 1.*the right file for --bert_config_file\?"),
    ("run_squad.py", "--bert_config_file=cut.json", r"cut\.json, line 1.*complete\?"),
    *((f"run_{name}.py", change, words) for name in ("classifier", "squad", "ner") for change, words in _MODEL[2:4]),
    ("run_squad.py", "--do_eval --predict_file=squad2.json", r"squad2\.json.* q2 .*--version_2_with_negative"),
    ("predict_masked.py", "--input_file= --sentence=blank", r"--sentence, line \d: .*\[MASK\]"),
    ("extract_features.py", "--layers=-99", "-99"),
    ("create_pretraining_data.py", "--num_workers=2", "--num_workers needs --num_shards"),
    ("create_pretraining_data.py", "--num_shards=2 --dask_scheduler=127.0.0.1:8786", "--dask_scheduler.*address"),
    ("create_pretraining_data.py", "--output_file=wrong/text/x", "--output_file.*Not a directory"),
    ("build_vocab.py", "--input_file=latin1.txt", r"latin1\.txt, line 2: .*UTF-8"),
    ("inspect_records.py", "--input_file=wrong/empty", "wrong/empty.*(no records|empty)"),
    ("convert_checkpoint.py", "--vocab_file=words.txt", r"words\.txt.*\[PAD\]"),
    ("export_saved_model.py", "--init_checkpoint=pretrained", "pretrained/.* classifier.*output_weights"),
    ("export_saved_model.py", "--task=squad --max_seq_length=32", "classifier/.* squad.*cls/squad"),
    ("export_saved_model.py", "--init_checkpoint=unlabeled", r"label_map\.json"),
    ("export_saved_model.py", "--label_map=other_labels.json", "a, b, .* 3"),
    ("export_saved_model.py", "--task=ner", "task tsv.*--task=ner"),
    *(("export_saved_model.py", f"--task=features {change}", words) for change, words in _MODEL),
    ("plot_training.py", "", "--output_dir"),
]
# Found before the first step.
LATER = [
    ("run_pretraining.py", "--max_seq_length=16", "records, record 1: .*max_seq_length 32"),
    ("run_pretraining.py", "--input_file=cut", "cut, record 2: .*truncated"),
    ("run_pretraining.py", "--input_file=flipped", "flipped, record 1: .*corrupted"),
    ("run_pretraining.py", "--input_file=words.txt", r"words\.txt.* create_pretraining_data\.py"),
    ("run_pretraining.py", "--bert_config_file=deep.json", r"deep\.json: .*num_hidden_layers"),
    ("run_pretraining.py", "--output_dir=classifier", r"classifier/model\.ckpt-7: .*cls/predictions"),
    ("run_pretraining.py", "--output_dir=file", "Not a directory"),
    ("run_pretraining.py", "--do_train=false --do_eval --init_checkpoint=classifier", "cls/predictions.*random"),
    ("run_classifier.py", "--data_dir=torn", r"torn/train\.tsv, row 4: .*5 columns"),
    ("run_classifier.py", "--data_dir=unknown --do_eval", r"dev\.tsv, row 2: .*'yess'.* no, yes"),
    ("run_classifier.py", "--label_column=text", "--label_column=text.*--text_a_column"),
    ("run_classifier.py", "--init_checkpoint=classifier", r"output_bias .*\[3\].*\[2\]"),
    ("run_classifier.py", "--do_train=false --do_predict --init_checkpoint=pretrained", "labels of the task tsv"),
    ("run_classifier.py", "--num_train_epochs=0.01", "make not a single.*more --num_train_epochs.*--train_batch_size"),
    ("run_squad.py", "--train_file=wrong/list", "wrong/list.*SQuAD"),
    ("run_squad.py", "--version_2_with_negative", r"squad\.json.* q0: .*leave out --version_2_with_negative"),
    ("run_squad.py", "--do_predict --predict_file=doubled.json", r"\[3\], .* id q1 .* data\[0\]"),
    ("run_squad.py", "--do_train=false --do_predict --init_checkpoint=pretrained", "cls/squad/output_weights.*random"),
    ("run_ner.py", "--train_file=untagged.txt", "tag O"),
    ("run_ner.py", "--train_file=table.tsv", r"table\.tsv: 200 words .* 200 tags.*--tag_column"),
    ("extract_features.py", "--layers=-3", "--layers=-3: .*1"),
    ("extract_features.py", "--output_file=OUT/features.npy", "--pooling"),
    ("extract_features.py", "--output_file=tables", "tables: is a folder"),
    ("convert_checkpoint.py", "--extend_vocab=wrong/empty", "wrong/empty"),
]


def left(folder) -> list[str]:
    """The files in a folder, also partial ones."""
    return [path.name for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(("script", "change", "words"), AT_ONCE)
def test_a_mistake_found_at_once(script, change, words, bad_files, quick_lines, tmp_path):
    given = flags(script, change, tmp_path) if script in BASE else []
    done = quick_lines.run(script, *given, cwd=bad_files)
    *logged, last = done.stderr.splitlines()
    assert done.status in (1, 2) and done.stdout == "" and not left(tmp_path), done
    assert last.startswith(f"{script}: error: ") and re.search(words, last), done.stderr
    assert all(re.match(r"\d\d:\d\d:\d\d |  ", line) for line in logged), logged


@pytest.mark.parametrize(("script", "change", "words"), LATER)
def test_a_mistake_found_before_the_work(script, change, words, bad_files, tmp_path, monkeypatch, capsys, log_lines):
    monkeypatch.chdir(bad_files)
    before = left(bad_files)
    found = message_of(lines.call, script, *flags(script, change, tmp_path))
    assert re.search(words, found), found
    assert capsys.readouterr().out == "" and not any("Training on" in line for line in log_lines)
    assert left(bad_files) == before and not [name for name in left(tmp_path) if "model.ckpt" in name or "part" in name]


READ = [
    (script, flag)
    for script, command in COMMANDS.items()
    for flag, (stated, *_) in settings.settings_of(find(command.options)).items()
    if stated.reads
]


@pytest.mark.parametrize(("script", "flag"), READ)
def test_a_file_of_another_kind_is_named_by_every_flag_that_reads_one(script, flag, bad_files, tmp_path, monkeypatch):
    monkeypatch.chdir(bad_files)
    more = {
        "list": "--input= --output=",
        "eval_input_file": "--do_eval",
        "eval_file": "--do_eval",
        "predict_file": "--do_predict",
    }.get(flag, "")
    given = flags(f"{script}.py", f"{more} --{flag}=wrong/utf16", tmp_path)
    assert "wrong/utf16" in message_of(lines.call, f"{script}.py", *given) and "model.ckpt" not in str(left(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("script", [script for script in BASE if script != "explore.py"])  # which waits for visitors
def test_the_command_lines_are_right_without_the_mistake(script, bad_files, command_lines, tmp_path):
    """Otherwise the tests above would show little."""
    done = command_lines.run(script, *flags(script, "", tmp_path), cwd=bad_files)
    assert done.status == 0, done.stderr
    assert done.stdout or left(tmp_path)
