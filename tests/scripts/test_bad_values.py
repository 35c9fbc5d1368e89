"""Input that can be read and makes no sense: found before the work, in one line, as in test_bad_inputs.py."""

from __future__ import annotations

import gzip
import json
import pathlib
import shutil
import socket
import types

import pytest
import toy_data
from bad_calls import arguments, check, folder, write_records

from bert_tf2.config import BertConfig
from bert_tf2.data import records
from bert_tf2.finetuning import classification, extract_features, squad
from bert_tf2.finetuning.classification import tasks as classification_tasks
from bert_tf2.support import json_text
from bert_tf2.support.errors import UserError
from bert_tf2.training.saver import Best

__all__ = ["folder"]  # the fixture


@pytest.fixture(scope="module")
def more(folder) -> pathlib.Path:
    """The files of test_bad_inputs.py, and more bad ones."""
    good = json.loads((folder / "bert_config.json").read_text())
    vocabulary = (folder / "vocab.txt").read_bytes()
    for name, change in {
        "deep": {"num_hidden_layers": 10_000_000},
        "wide": {"hidden_size": 10**7},
        "long": {"intermediate_size": 10**30},
        "deviation": {"initializer_range": 1e30},
        "one_segment": {"type_vocab_size": 1},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps({**good, **change}))
    (folder / "utf16.txt").write_bytes(vocabulary.decode().encode("utf-16"))
    (folder / "lower.txt").write_bytes(vocabulary.replace(b"[PAD]", b"[pad]"))
    (folder / "records.gz").write_bytes(gzip.compress((folder / "records").read_bytes()))
    (folder / "stub").write_bytes(b"\x1f\x8b\x08")
    for name, weight in {"nan": float("nan"), "negative": -1.0, "infinite": float("inf"), "large": 1e30}.items():
        write_records(folder / f"{name}_weights", masked_lm_weights=[weight, 0.0, 0.0, 0.0])
    questions = toy_data.squad(8, 1)
    questions["data"][0]["paragraphs"][3]["qas"][0]["id"] = "q1"
    (folder / "doubled.json").write_text(json.dumps(questions))
    toy_data.write_tsv_task(folder / "pairs")
    for part in ("train", "dev"):
        table = folder / "pairs" / f"{part}.tsv"
        rows = [line.split("\t") for line in table.read_text().splitlines()]
        table.write_text("".join("\t".join([*row, "other" if n else "second"]) + "\n" for n, row in enumerate(rows)))
    with socket.create_server(("127.0.0.1", 0)) as server:
        (folder / "port").write_text(str(server.getsockname()[1]))  # nobody listens there once it is closed
    return folder


ONE = "--bert_config_file=one_segment.json"
CASES = [
    ("run_classifier.py", "--vocab_file=utf16.txt", "utf16.txt: is text in UTF-16, .* iconv -f UTF-16 -t UTF-8 "),
    ("run_classifier.py", "--vocab_file=lower.txt", r"lower.txt: has no \[PAD\], .* \(line 1 is '\[pad\]', not"),
    ("run_classifier.py", "--vocab_file=empty.txt", r"empty.txt: holds no entries; give the vocab.txt"),
    ("run_pretraining.py", "--bert_config_file=deep.json", "deep.json: .* num_hidden_layers 10000000 is more than any"),
    ("run_pretraining.py", "--bert_config_file=wide.json", "wide.json: .* parameters are more than any model has"),
    ("run_pretraining.py", "--bert_config_file=long.json", "long.json: .* intermediate_size 10+ is more than any"),
    ("run_pretraining.py", "--input_file=squad.json", r"squad.json: is text, not TFRecord"),
    ("run_pretraining.py", "--input_file=records,stub", "stub, record 1 .*: the gzip archive is damaged"),
    ("run_pretraining.py", "--bert_config_file=deviation.json", "initializer_range must be a number from 0 to 1"),
    ("run_pretraining.py", "--input_file=nan_weights", "nan_weights, record 2: masked_lm_weights holds nan"),
    ("run_pretraining.py", "--input_file=negative_weights", "record 2: masked_lm_weights holds -1.0"),
    ("run_pretraining.py", "--input_file=infinite_weights", "record 2: masked_lm_weights holds inf"),
    ("run_pretraining.py", "--input_file=large_weights", "record 2: masked_lm_weights holds 1"),
    ("run_pretraining.py", "--train_batch_size=2147483647", "a batch of 2147483647 examples .* lower the batch size"),
    ("run_pretraining.py", "--use_tpu --tpu_name=grpc://127.0.0.1:PORT", "no TPU can be reached .no gRPC server"),
    ("run_squad.py", ONE, "has two texts .* type_vocab_size 1"),
    ("run_classifier.py", f"{ONE} --data_dir=pairs --text_b_column=second", "the task tsv: has two texts"),
    ("run_classifier.py", "--num_train_epochs=1e300", r"make 2e\+300 training steps; lower --num_train_epochs"),
    ("run_classifier.py", "--label_column=text", "train.tsv: column 2 would be text_a and label at once"),
    ("run_classifier.py", "--text_b_column=2", "train.tsv: column 2 would be text_a and text_b at once"),
    ("run_classifier.py", "--id_column=answer", "train.tsv: column 3 would be label and id at once"),
    ("run_squad.py", "--do_predict --predict_file=doubled.json", r"\[3\], .* id q1 was .* at data\[0\].par"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("script", "change", "message"), CASES)
def test_it_is_found(script, change, message, more, command_lines, tmp_path):
    change = change.replace("PORT", (more / "port").read_text())
    done = command_lines.run(script, *arguments(script, f"{change} --output_dir={tmp_path}"), cwd=more)
    check(done, script, message, more)
    assert "learning_rate" not in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("script", ["run_classifier.py", "run_squad.py", "run_ner.py"])
def test_too_few_examples_are_found_before_anything_is_written(script, more, command_lines, tmp_path):
    change = f"--num_train_epochs=0.01 --output_dir={tmp_path}/out"
    done = command_lines.run(script, *arguments(script, change), cwd=more)
    check(done, script, "make not a single training step", more)
    assert not list(tmp_path.rglob("*.tf_record"))


@pytest.mark.parametrize("flag", ["eval_batch_size", "train_batch_size", "save_checkpoints_steps", "max_seq_length"])
def test_numbers_that_no_computer_counts_with(flag, more, command_lines):
    done = command_lines.run("run_classifier.py", *arguments("run_classifier.py", f"--{flag}={10**20}"), cwd=more)
    assert check(done, "run_classifier.py", rf"--{flag}={10**20}: is too large; at most 2147483647", more) == []


@pytest.mark.slow
def test_large_batches_are_no_mistake(more, command_lines, tmp_path):
    change = f"--do_eval --eval_batch_size={2**31 - 1} --output_dir={tmp_path}"
    done = command_lines.run("run_classifier.py", *arguments("run_classifier.py", change), cwd=more)
    assert done.status == 0, done.stderr


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ("empty.txt", "empty.txt: holds no entries"),
        ("words.txt", r"words.txt: has no \[PAD\]"),
        ("records.gz", "records.gz: is a gzip archive"),
    ],
)
def test_a_conversion_with_another_vocabulary(vocabulary, message, more, command_lines, tmp_path):
    flags = ["--input=pretrained", f"--output={tmp_path}/out", "--to=tf1", "--bert_config_file=bert_config.json"]
    done = command_lines.run("convert_checkpoint.py", *flags, f"--vocab_file={vocabulary}", cwd=more)
    check(done, "convert_checkpoint.py", message, more)
    assert not (tmp_path / "out").exists()


# What the best weights are.

SEEN = {"measure": "f1", "value": 0.5, "step": 4, "last_step": 4, "evaluations_since": 0}


def best(out: pathlib.Path, text: str) -> Best:
    (out / "best").mkdir(parents=True, exist_ok=True)
    (out / "best" / "measure.json").write_text(text)
    return Best(str(out), begun=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("{", "not valid JSON"),
        ("[]", "an object"),
        ("[" * 10000, "nested too deep"),
        ("{}", "its measure is missing"),
        (json.dumps({**SEEN, "value": "much"}), "its value is missing or makes no sense"),
        (json.dumps({**SEEN, "value": float("nan")}), "its value is missing or makes no sense"),
        (json.dumps({**SEEN, "value": 10**400}), "its value is missing or makes no sense"),
        (json.dumps({**SEEN, "last_step": -1}), "its last_step is missing or makes no sense"),
        (json.dumps({**SEEN, "step": True}), "its step is missing or makes no sense"),
        (json.dumps(SEEN), "it tells of weights of step 4, which are not in"),
        (json.dumps({**json_text.with_checksum(SEEN), "value": 0.9}), "it does not match its checksum"),
        (json.dumps(json_text.with_checksum(SEEN)), "it tells of weights of step 4, which are not in"),
    ],
)
def test_a_broken_measure_says_how_to_go_on_without_loss(text, reason, tmp_path):
    with pytest.raises(UserError) as caught:
        best(tmp_path, text)
    assert reason in str(caught.value) and str(caught.value).startswith(f"{tmp_path}/best/measure.json: ")
    assert f"mv {tmp_path}/best {tmp_path}/best.old" in str(caught.value)
    shutil.move(tmp_path / "best", tmp_path / "best.old")
    assert not Best(str(tmp_path), begun=True).found


def test_no_evaluation_gave_a_number(tmp_path):
    for value in (None, float("-inf")):  # the second was written until now
        assert not best(tmp_path, json.dumps({**SEEN, "measure": None, "value": value})).found
    seen = Best(str(tmp_path), begun=True)
    seen.update(None, 6, "f1", float("nan"))
    assert json.loads((tmp_path / "best" / "measure.json").read_text(), parse_constant=pytest.fail)["value"] is None


# Others.


def test_ids_may_repeat_where_nothing_is_kept_by_them(more):
    assert len(squad.read_squad_examples(str(more / "doubled.json"), True)) == 8


def test_rows_may_be_named_by_their_text(more):
    layout = classification_tasks.TsvLayout(text_a="text", label="answer", id="text")
    rows = classification.get_processor("tsv", tsv=layout).get_train_examples(str(more / "tables"))
    assert rows[0].guid == rows[0].text_a


def test_a_regression_score_that_no_square_has(tmp_path):
    path = str(tmp_path / "records")
    row = {name: [0] for name in records.REGRESSION.features}
    for score, fits in ((-3.5, True), (1e30, False), (float("nan"), False)):
        records.write_records(path, records.REGRESSION, [{**row, "label_ids": [score]}])
        sizes = {"max_seq_length": 1, "vocab_size": 5, "type_vocab_size": 2}
        assert (records.find_fault([path], records.REGRESSION, sizes) is None) == fits


def test_weights_between_0_and_1_are_fine(tmp_path):
    write_records(tmp_path / "records", masked_lm_weights=[0.25, 1.0, 3.0, 0.0])
    sizes = {"max_seq_length": 32, "max_predictions_per_seq": 4, "vocab_size": 37, "type_vocab_size": 2}
    data = records.read_records([str(tmp_path / "records")], records.PRETRAINING, sizes, 2)
    assert [batch["masked_lm_weights"].shape for batch in data] == [(2, 4)]


def test_pairs_need_two_segments(tmp_path):
    config = toy_data.config(type_vocab_size=1)
    with pytest.raises(UserError, match="a pair: has two texts"):
        config.check_pairs("a pair")
    (tmp_path / "file.txt").write_text("one\ntwo ||| three\n")
    options = types.SimpleNamespace(text_a_column=None, input_file=str(tmp_path / "file.txt"))
    examples = [extract_features.InputExample(0, "one", None), extract_features.InputExample(1, "two", "three")]
    assert list(extract_features._read(options, toy_data.config())) == examples
    with pytest.raises(UserError, match=r"file\.txt, line 2: has two texts"):
        list(extract_features._read(options, config))
    BertConfig(vocab_size=30522, num_hidden_layers=96, hidden_size=1024, num_attention_heads=16).check_pairs("a pair")
