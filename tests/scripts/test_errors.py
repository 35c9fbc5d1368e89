"""Mistakes at the command line: each gets one line that says what, where and what to do, and leaves no result behind.

create_pretraining_data.py has such a table in its own test file.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from bad_calls import BASE, arguments, check
from command_lines import ROOT, Done, without_tensorflow

from bert_tf2 import commands
from bert_tf2.commands import COMMANDS, find
from bert_tf2.finetuning import squad
from bert_tf2.support import settings

# What is typed differently from the good command line above, and what the answer says; bounds are those of
# support/test_settings.py, the form of flags that of support/test_flags.py.
FLAGS_AT_FAULT = [
    ("run_pretraining.py", "--do_train=false", "nothing to do: give at least one of --do_train, --do_eval"),
    ("run_pretraining.py", "--precision=float8", "--precision=float8.*bfloat16"),
    ("run_pretraining.py", "--input_file= --output_dir=", "--input_file and --output_dir must be given"),
    ("run_classifier.py", "do_eval", "unexpected argument 'do_eval'"),
    ("run_classifier.py", "--task_name=mprc", "no task 'mprc'; the known ones are cola, mnli, mrpc, xnli, sst-2.*tsv"),
    (
        "run_classifier.py",
        f"--eval_batch_size={10**20}",
        rf"--eval_batch_size={10**20}: is too large; at most 21474836",
    ),
    ("run_ner.py", "--num_train_epochs=-1", "--num_train_epochs=-1"),
    ("extract_features.py", "--pooling=sum", "--pooling=sum"),
    ("predict_masked.py", "--sentence=b", "--input_file and --sentence exclude"),
    ("create_pretraining_data.py", "--num_workers=2", "--num_workers needs --num_shards"),
    *(
        (
            "create_pretraining_data.py",
            f"--num_shards=2 --dask_scheduler={address}",
            f"={address}: an address is needed",
        )
        for address in ("nonsense://x:1", "127.0.0.1:8786")
    ),
    ("create_pretraining_data.py", "--num_shards=2 --output_file=a,b", "--output_file=a,b: shards need one name"),
    ("create_pretraining_data.py", "--word_boundaries=spaces", "--word_boundaries=spaces needs --do_whole_word_mask"),
]

MODEL_AT_FAULT = [
    ("--bert_config_file=gone.json", r"gone\.json: no such file"),
    ("--bert_config_file=not.json", r"not\.json.*JSON"),
    ("--bert_config_file=lacking.json", r"lacking\.json.*vocab_size"),
    ("--bert_config_file=heads.json", r"heads\.json.*hidden_size.*num_attention_heads"),
    ("--init_checkpoint=gone", r"gone: no such checkpoint"),
    ("--init_checkpoint=corrupt", r"corrupt/model\.ckpt-7\.data-00000-of-00001: .*damaged"),
    ("--init_checkpoint=narrow", r"narrow/model\.ckpt-7: does not fit the model: .*\[37, 8\] .*\[37, 16\]"),
    ("--init_checkpoint=incomplete", r"incomplete/model\.ckpt: .*layer_0/output/dense/kernel is missing"),
    ("--max_seq_length=65", "--max_seq_length=65 .* 64"),
]
VOCABULARY_AT_FAULT = [
    ("--vocab_file=gone.txt", r"gone\.txt: no such file"),
    ("--vocab_file=few.txt", r"few\.txt.*\[SEP\]"),
    ("--bert_config_file=few_words.json", r"vocab\.txt: 37 entries, .* vocab_size 10"),
    ("--init_checkpoint=cased_L-12_H-768_A-12/bert_model.ckpt", "--do_lower_case"),
]
_OF_MODELS = MODEL_AT_FAULT[4:6] + VOCABULARY_AT_FAULT
WITH_VOCABULARY = ["run_classifier.py", "run_squad.py", "run_ner.py", "extract_features.py"]

FILES_AT_FAULT = [
    ("build_vocab.py", "--input_file=gone.txt", r"gone\.txt: no such file"),
    ("build_vocab.py", "--input_file=latin1.txt", r"latin1\.txt, line 2: not UTF-8"),
    ("run_pretraining.py", "--input_file=gone*", r"gone\*: no file matches"),
    ("run_pretraining.py", "--input_file=tables", "tables: is a folder"),
    ("run_pretraining.py", "--max_seq_length=16", "records, record 1: was made for max_seq_length 32, .* is 16 here"),
    ("run_pretraining.py", "--max_predictions_per_seq=3", "was made for max_predictions_per_seq 4, .* 3 here"),
    ("run_pretraining.py", "--input_file=cut", "cut, record 2: the file is truncated"),
    ("run_pretraining.py", "--input_file=flipped", "flipped, record 1: .* the file is corrupted"),
    ("run_pretraining.py", "--input_file=bad_ids", r"bad_ids, record 2: input_ids holds 5000, .* 0\.\.36"),
    ("run_pretraining.py", "--input_file=words.txt",
     r"words\.txt: is text, not TFRecord; create_pretraining_data\.py makes records of text"),
    ("run_pretraining.py", "--output_dir=classifier", r"classifier/model\.ckpt-7: .*cls/predictions.* is missing"),
    ("run_pretraining.py", "--output_dir=file", "Not a directory"),
    ("run_classifier.py", "--data_dir=torn", r"torn/train\.tsv, row 4: has 5 columns where 3 are expected"),
    ("run_classifier.py", "--data_dir=empty", r"empty/train\.tsv: is empty"),
    ("run_classifier.py", "--data_dir=lonely --do_eval", r"lonely/dev\.tsv: no such file .*train\.tsv"),
    ("run_classifier.py", "--data_dir=unknown --do_eval", r"dev\.tsv, row 2: unknown label 'yess'; .* no, yes"),
    ("run_classifier.py", "--text_a_column=words",
     r"train\.tsv: has no column 'words'; its header is name, text, answer"),
    ("run_classifier.py", "--text_a_column=", "tsv needs to know which column holds the text"),
    ("run_classifier.py", "--task_name=mrpc", r"train\.tsv, row 2: has 3 columns, but text_a is to come from column 4"),
    ("run_classifier.py", "--init_checkpoint=classifier",
     r"output_bias is \[3\] in the checkpoint and \[2\] in the model"),
    ("run_classifier.py", "--task_name=cola --output_dir=classifier", "a model of the task tsv .*maybe, no, yes"),
    ("run_classifier.py", "--do_train=false --do_predict --init_checkpoint=pretrained",
     "labels of the task tsv are not known: train first"),
    ("run_squad.py", "--train_file=broken.json", r"broken\.json, line 1, column \d+: not valid JSON"),
    ("run_squad.py", "--train_file=empty.txt", r"empty\.txt: the file is empty"),
    ("run_squad.py", "--train_file=list.json", r"list\.json: not in SQuAD's layout"),
    ("run_squad.py", "--train_file=outside.json", "question q0: the answer lies outside of its context"),
    ("run_squad.py", "--train_file=squad2.json", r"squad2\.json, .* question q2: .*--version_2_with_negative"),
    ("run_squad.py", "--doc_stride=29", "--doc_stride=29 is larger than the 28 pieces"),
    ("run_squad.py", "--max_query_length=29", "--max_query_length=29"),
    ("run_squad.py", "--output_dir=classifier", r"classifier/model\.ckpt-7: .*cls/squad/output_weights is missing"),
    ("run_ner.py", "--train_file=torn.txt", r"torn\.txt, line \d+: "),
    ("run_ner.py", "--train_file=outside.txt", "every word has the tag O"),
    ("run_ner.py", "--do_eval --eval_file=new_tag.txt",
     r"new_tag\.txt, line \d+: tag 'B-NEW' was not seen in training"),
    ("run_ner.py", "--eval_steps=1 --eval_file=new_tag.txt", "tag 'B-NEW' was not seen in training"),
    ("run_squad.py", "--do_eval --predict_file=squad2.json",
     "question q2 has no answer to score against; .*--version_2_with_negative missing"),
    ("run_ner.py", "--tag_column=2", r"words\.txt, line 3: column 2 would be word and tag at once"),
    ("run_ner.py", "--word_column=7", r"words\.txt, line 3: there is no column 7 among 3 columns \(the first is 1,"),
    ("run_ner.py", "--doc_stride=31", "doc_stride is 31"),
    ("run_ner.py", "--do_train=false --do_predict --init_checkpoint=pretrained", r"label_map\.json"),
    ("run_ner.py", "--output_dir=classifier", r"classifier/label_map\.json: .* trained for the task tsv, which"),
    ("extract_features.py", "--input_file=empty.txt", r"empty\.txt: the file is empty"),
    ("extract_features.py", "--layers=-3", "--layers=-3: the model has 1 layers"),
    ("extract_features.py", "--output_file=out/features.npy", "--pooling"),
    ("extract_features.py", "--output_file=tables", "tables: is a folder"),
    *(
        (script, "--do_train=false --do_eval", "there is no such folder, and no --init_checkpoint is given")
        for script in ("run_pretraining.py", *WITH_VOCABULARY[:3])
    ),
    ("run_squad.py", "--do_train=false --do_predict --init_checkpoint=pretrained",
     "pretrained/model.ckpt-7: has no cls/squad/output_weights, .* random weights"),
    ("run_pretraining.py", "--do_train=false --do_eval --init_checkpoint=classifier",
     "classifier/model.ckpt-7: has no cls/predictions/transform/dense/kernel, .* random weights"),
    *((script, "--num_train_epochs=0.01", "make not a single training step") for script in WITH_VOCABULARY[:3]),
    ("convert_checkpoint.py", "--vocab_file=words.txt", r"words\.txt: has no \[PAD\]"),
    *(("run_pretraining.py", *case) for case in MODEL_AT_FAULT),
    *(("run_classifier.py", *case) for case in _OF_MODELS),
]  # fmt: skip
ONE = "--bert_config_file=one_segment.json"
# What can be read and makes no sense.
VALUES_AT_FAULT = [
    ("run_classifier.py", "--vocab_file=lower.txt", r"lower.txt: has no \[PAD\], .* \(line 1 is '\[pad\]', not"),
    ("run_pretraining.py", "--bert_config_file=deep.json", "deep.json: .* num_hidden_layers 100000000 is more than"),
    ("run_pretraining.py", "--input_file=records,stub", "stub: the gzip archive is damaged"),
    ("run_pretraining.py", "--input_file=nan_weights", "nan_weights, record 2: masked_lm_weights holds nan"),
    ("run_squad.py", ONE, "has two texts .* type_vocab_size 1"),
    ("run_classifier.py", "--num_train_epochs=1e300", r"1e\+300 epochs make too many steps; change --num_train_epochs"),
    ("run_classifier.py", "--label_column=text", "--label_column=text: is --text_a_column as well"),
    ("run_squad.py", "--do_predict --predict_file=doubled.json", r"\[3\], .* id q1 was .* at data\[0\].par"),
]  # fmt: skip
EMPTY, FOLDER, PAGE = "the file is empty", "is a folder|Is a directory", "is an HTML page"
# At every flag that names a file: one of another kind. A row is slow whose reader others have.
KINDS_AT_FAULT = [
    ("build_vocab.py", "--input_file=wrong/pointer", "is a pointer of Git LFS"),
    ("create_pretraining_data.py", "--input_file=wrong/utf16", "is text in UTF-16"),
    ("create_pretraining_data.py", "--input_file=wrong/deep --input_format=jsonl", "line 1: is not valid JSON"),
    ("create_pretraining_data.py", "--input_file=wrong/list --input_format=jsonl", "line 1: is no JSON object"),
    ("create_pretraining_data.py", "--vocab_file=wrong/empty", "holds no entries"),
    ("create_pretraining_data.py", "--vocab_file=wrong/packed", "is a gzip archive"),
    ("inspect_records.py", "--input_file=wrong/empty", "no records in there|is empty"),
    ("inspect_records.py", "--vocab_file=wrong/empty", "wrong/empty: holds no entries"),
    ("inspect_records.py", "--vocab_file=wrong/list", "wrong/list: has no .CLS., .SEP."),
    ("run_pretraining.py", "--bert_config_file=wrong/deep", "nested too deep"),
    ("run_pretraining.py", "--input_file=wrong/empty", "wrong/empty: no records in there|is empty"),
    ("predict_masked.py", "--input_file=wrong/utf16", "is text in UTF-16"),
    ("predict_masked.py", "--input_file=wrong/folder", FOLDER),
    ("run_classifier.py", "--data_dir=wrong/text", r"wrong/text/train\.tsv"),
    ("run_squad.py", "--train_file=wrong/deep", "nested too deep"),
    ("run_ner.py", "--do_eval --eval_file=wrong/blank", "there is no word in this file"),
    ("run_ner.py", "--do_predict --predict_file=wrong/folder", FOLDER),
    ("extract_features.py", "--init_checkpoint=wrong/empty", "wrong/empty"),
    ("convert_checkpoint.py", "--input=wrong/zeros", "wrong/zeros"),
    ("convert_checkpoint.py", "--extend_vocab=wrong/empty", "wrong/empty"),
    ("explore.py", "--model=wrong/zeros", "wrong/zeros"),
    ("export_saved_model.py", "--label_map=wrong/other", "must have 'task'"),
]
SLOW_KINDS_AT_FAULT = [
    ("predict_masked.py", "--bert_config_file=wrong/list", r"an object .* is needed"),
    ("predict_masked.py", "--vocab_file=wrong/page", r"wrong/page"),
    ("run_classifier.py", "--init_checkpoint=wrong/text", "is text"),
    ("run_squad.py", "--do_predict --predict_file=wrong/packed", "is a gzip archive"),
    ("run_ner.py", "--train_file=wrong/packed", "is a gzip archive"),
    ("extract_features.py", "--input_file=wrong/folder", FOLDER),
    ("extract_features.py", "--vocab_file=wrong/utf16", "is text in UTF-16"),
    ("convert_checkpoint.py", "--bert_config_file=wrong/deep", "nested too deep"),
    ("convert_checkpoint.py", "--input= --output= --list=wrong/page", "wrong/page"),
    ("explore.py", "--bert_config_file=wrong/deep", "nested too deep"),
    ("explore.py", "--vocab_file=wrong/page", "wrong/page"),
    ("predict_masked.py", "--init_checkpoint=wrong/pointer", "wrong/pointer"),
    ("export_saved_model.py", "--init_checkpoint=wrong/loop", "wrong/loop"),
    ("export_saved_model.py", "--bert_config_file=wrong/empty", EMPTY),
]
# Where an output cannot be. Found before the work: a training that cannot write its model at the end is lost time.
OUTPUTS_AT_FAULT = [
    ("run_pretraining.py", "--do_export --vocab_file=vocab.txt --export_dir=/dev/null", "Not a directory"),
    ("run_pretraining.py", f"--output_dir={'x' * 300}", "File name too long"),
    ("run_classifier.py", f"--do_export --export_dir={'x' * 300}", "File name too long"),
    ("convert_checkpoint.py", "--output=wrong/text", "wrong/text"),
    ("export_saved_model.py", "--export_dir=wrong/text/x", "Not a directory"),
    ("create_pretraining_data.py", "--output_file=wrong/text/x", "Not a directory"),
]


@pytest.mark.parametrize(("script", "change", "message"), FLAGS_AT_FAULT)
def test_a_wrong_flag(script, change, message, folder, command_lines):
    done = command_lines.run(script, *arguments(script, change), cwd=folder)
    assert check(done, script, message, folder) == []
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("script", "change", "message"),
    [
        *(FILES_AT_FAULT + KINDS_AT_FAULT + OUTPUTS_AT_FAULT),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in VALUES_AT_FAULT + SLOW_KINDS_AT_FAULT),
    ],
)
def test_a_wrong_file(script, change, message, folder, command_lines, tmp_path):
    flags = [flag.replace("=out", f"={tmp_path}/out") for flag in BASE[script]]
    done = command_lines.run(script, *flags, *change.split(" "), cwd=folder)
    logged = check(done, script, message, folder)
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in logged if not line.startswith(" ")), logged
    assert not any("Training on" in line for line in logged)  # found before the first step
    assert not [path for path in tmp_path.rglob("*.tf_record")]


# Told in a second or two, and not after the fifteen that TensorFlow takes to load on a busy machine.
@pytest.mark.parametrize(
    ("script", "change", "message"),
    [
        ("run_pretraining.py", "--input_file=none*", r"none\*: no file matches this pattern"),
        ("run_pretraining.py", "--max_seq_length=1024", "--max_seq_length=1024 is more than the model can read"),
        ("predict_masked.py", "--input_file= --sentence=blank", r"--sentence, line \d: holds no \[MASK\]"),
        ("run_classifier.py", "--data_dir=gone", "gone"),
        ("run_squad.py", "--do_eval --predict_file=squad2.json", "has no answer to score against"),
        ("extract_features.py", "--layers=-99", "-99"),
        ("export_saved_model.py", "--init_checkpoint=pretrained", r"no label_map\.json lies beside it"),
        ("export_saved_model.py", "--label_map=other_labels.json", r"names labels a, b, but .* has 3 outputs"),
        ("export_saved_model.py", "--task=ner", "is for the task tsv, which --task=ner does not fit"),
        ("export_saved_model.py", "--task=squad", "it has no cls/squad/output_weights"),
        *(
            ("export_saved_model.py", f"--task=features {change}", message)
            for change, message in MODEL_AT_FAULT[:5] + MODEL_AT_FAULT[6:] + VOCABULARY_AT_FAULT
        ),
    ],
)
def test_told_before_tensorflow_is_loaded(script, change, message, folder, command_lines, monkeypatch):
    monkeypatch.setattr(commands, "load_tensorflow", lambda: pytest.fail("TensorFlow is loaded"))
    assert check(command_lines.run(script, *arguments(script, change), cwd=folder), script, message, folder) == []


def test_ids_of_questions_may_repeat_where_nothing_is_kept_by_them(folder):
    assert len(squad.read_squad_examples(str(folder / "doubled.json"), True)) == 8


@pytest.mark.parametrize("script", [script for script in BASE if script != "explore.py"])  # which waits for visitors
@pytest.mark.soak
def test_the_command_lines_are_good_without_the_mistake(script, folder, command_lines, tmp_path):
    """Otherwise the tests above would show little."""
    flags = [flag.replace("=out", f"={tmp_path}") for flag in BASE[script]]
    done = command_lines.run(script, *flags, cwd=folder)
    assert done.status == 0, done.stderr
    assert done.stdout or list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_process_of_its_own_says_the_same(folder):
    given = arguments("run_classifier.py", "--data_dir=gone")
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_classifier.py"), *given], cwd=folder, capture_output=True, text=True
    )
    message = r"gone/train\.tsv: no such file"
    done = Done(done.returncode, done.stdout, without_tensorflow(done.stderr))
    assert check(done, "run_classifier.py", message, folder) == []


# Flags whose rows are above, or whose reader another script shares.
ELSEWHERE = {
    *(("run_pretraining", name) for name in ("vocab_file", "eval_input_file", "init_checkpoint")),
    *(("run_classifier", name) for name in ("bert_config_file", "vocab_file")),
    *((script, name) for script in ("run_squad", "run_ner") for name in ("bert_config_file", "vocab_file")),
    *(("run_squad", "init_checkpoint"), ("run_ner", "init_checkpoint"), ("extract_features", "bert_config_file")),
    *(("convert_checkpoint", "vocab_file"), ("export_saved_model", "vocab_file")),
}


def test_every_flag_that_names_a_file_has_a_row():
    tested = {
        (script.removesuffix(".py"), name)
        for script, change, _ in KINDS_AT_FAULT + SLOW_KINDS_AT_FAULT
        for name in re.findall(r"--(\w+)=wrong", change)
    }
    for script, command in COMMANDS.items():
        stated = settings.settings_of(find(command.options))
        reads = {(script, name) for name, (setting, _, _) in stated.items() if setting.reads}
        assert reads <= tested | ELSEWHERE
    assert not tested & ELSEWHERE
