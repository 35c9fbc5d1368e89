"""The folder of a training: it is a model, its files decide the answers at every door, and other files are refused."""

from __future__ import annotations

import json
import pathlib
import random
import shutil

import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data
from google_folders import google_folder, save, write_vocab
from huggingface_folders import write_json
from refused import refuses
from small_models import randomize

import bert_tf2
from bert_tf2 import heads
from bert_tf2.commands import call
from bert_tf2.data import records
from bert_tf2.weights import checkpoint
from bert_tf2.weights.task_file import LabelMap, save_label_map

TEXTS = ["the film was good .", "playing " * 40, "the FILM was good", "ann lives in paris", "中文 good", "\u200b good"]
PAIRS = [*zip(TEXTS, ["", *TEXTS[1:]], strict=True)]
COLUMNS = {"text_a_column": "one", "text_b_column": "two", "label_column": "label"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict:
    """The settings of a cased classifier of pairs that was trained with 13 tokens; its best weights are kept."""
    path = tmp_path_factory.mktemp("trained")
    for part in ("train", "dev"):
        toy_data.write_table(path / f"{part}.tsv", "one\ttwo\tlabel", [(*p, str(i % 2)) for i, p in enumerate(PAIRS)])
    toy_data.write_table(path / "test.tsv", "one\ttwo", PAIRS)
    settings = {
        **toy_data.write_model(path, num_hidden_layers=1),
        "output_dir": str(path / "out"),
        "data_dir": str(path),
        **COLUMNS,
    }
    settings |= {"task_name": "tsv", "do_lower_case": False, "train_batch_size": np.int64(6)}
    call("run_classifier", do_train=True, eval_steps=20, max_seq_length=13, num_train_epochs=np.float32(20),
         learning_rate=1e-3, **settings)  # fmt: skip
    return settings


@pytest.fixture
def copy(trained, tmp_path) -> dict:
    """The same in a copy of the folder."""
    shutil.copytree(trained["output_dir"], tmp_path / "out", ignore=shutil.ignore_patterns("best"))
    return {**trained, "output_dir": str(tmp_path / "out")}


def rows(answers) -> np.ndarray:
    return np.array([[*answer.values()] for answer in answers])


def predicted(settings, **changes) -> np.ndarray:
    """The answers of the script."""
    call("run_classifier", **{**settings, "do_predict": True, **changes})
    return np.loadtxt(pathlib.Path({**settings, **changes}["output_dir"]) / "test_results.tsv")


@pytest.mark.parametrize("folder", ["out", "out/best"])
def test_a_training_leaves_a_model(trained, folder):
    folder = pathlib.Path(trained["output_dir"]).parent / folder
    assert (folder / "bert_config.json").read_text() == toy_data.config(num_hidden_layers=1).to_json_string()
    assert (folder / "vocab.txt").read_bytes() == pathlib.Path(trained["vocab_file"]).read_bytes()
    assert json.loads((folder / "tokenization.json").read_text()) == {"do_lower_case": False}
    content = json.loads((folder / "task.json").read_text())
    assert content["made_with"].pop("labels") == ["0", "1"] and "num_attention_heads" in content.pop("made_with")
    assert content == {"task": "tsv", "pairs": True, "settings": {"max_seq_length": 13}}
    bert = bert_tf2.load(folder)
    assert bert.tokenizer.tokenize("good Film") == ["good", "[UNK]"] and bert.labels.labels == ("0", "1")


def test_script_load_keras_and_conversions_answer_alike(trained, tmp_path, log_lines):
    script = predicted(trained)
    assert "--max_seq_length=13: as in the training, from task.json beside the weights" in log_lines
    found = predicted(trained, bert_config_file=None, vocab_file=None, do_lower_case=None)  # all beside the weights
    np.testing.assert_array_equal(found, script)
    bert, films = bert_tf2.load(trained["output_dir"]), bert_tf2.classifier(trained["output_dir"])
    np.testing.assert_allclose(rows(bert.classify(PAIRS)), script, atol=1e-6)
    np.testing.assert_allclose(films.predict(PAIRS, verbose=0), script, atol=1e-6)
    assert np.abs(rows(bert.classify(PAIRS, max_seq_length=16)) - script).max() > 1e-4  # so the length matters
    films.save_folder(tmp_path / "saved")
    np.testing.assert_allclose(predicted(trained, output_dir=str(tmp_path / "saved")), script, atol=1e-6)
    source = trained["output_dir"]
    for kind in ("keras", "hf", "tf1"):  # the last of transformers' folder, whose task has no name: the labels decide
        call("convert_checkpoint", input=str(source), to=kind, output=str(tmp_path / kind))
        source = tmp_path / kind if kind == "hf" else source
        np.testing.assert_allclose(rows(bert_tf2.load(tmp_path / kind).classify(PAIRS)), script, atol=1e-6)
    # A task.json without checkpoints beside it says nothing of the weights in use.
    (tmp_path / "new").mkdir()
    write_json(tmp_path / "new" / "task.json", {"settings": {"max_seq_length": 5}})
    new = {"init_checkpoint": str(tmp_path / "tf1"), "output_dir": str(tmp_path / "new")}
    np.testing.assert_allclose(predicted(trained, **new), script, atol=1e-6)
    exact = {"to": "tf1", "output": str(tmp_path / "exact"), "hidden_act": "gelu_erf"}
    call("convert_checkpoint", input=trained["output_dir"], **exact)
    assert bert_tf2.load(tmp_path / "exact").config.hidden_act == "gelu_erf"


@pytest.mark.slow
def test_an_export_takes_the_length_of_the_training(trained, tmp_path):
    text_operations.need()
    call("export_saved_model", task="classifier", init_checkpoint=trained["output_dir"], export_dir=str(tmp_path))
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_text_pair"]
    found = served(
        **{name: tf.constant(texts) for name, texts in zip(("text_a", "text_b"), zip(*PAIRS, strict=True), strict=True)}
    )
    np.testing.assert_allclose(found["probabilities"], predicted(trained), atol=1e-5)


@pytest.mark.extra
def test_onnx_takes_the_length_of_the_training(trained, tmp_path):
    for package in ("onnx", "onnxruntime", "tokenizers"):
        pytest.importorskip(package)
    import onnxruntime
    import tokenizers

    wanted = rows(bert_tf2.load(trained["output_dir"]).classify(PAIRS))
    onnx = {"task": "classifier", "init_checkpoint": trained["output_dir"], "format": "onnx"}
    call("export_saved_model", **onnx, export_dir=str(tmp_path))
    reader = tokenizers.Tokenizer.from_file(str(tmp_path / "1/assets/tokenizer.json"))
    reader.enable_padding()
    encoded = reader.encode_batch([pair if pair[1] else pair[0] for pair in PAIRS])
    names = {"input_ids": "ids", "input_mask": "attention_mask", "segment_ids": "type_ids"}
    batch = {ours: np.array([getattr(row, name) for row in encoded], np.int32) for ours, name in names.items()}
    films = bert_tf2.classifier(trained["output_dir"])
    films.export(tmp_path / "onnx", "onnx")
    for model, given in (("1", batch), ("onnx", {k: v.numpy() for k, v in films.tokenize(PAIRS).items()})):
        found = onnxruntime.InferenceSession(str(tmp_path / model / "model.onnx")).run(["probabilities"], given)
        np.testing.assert_allclose(found[0], wanted, atol=1e-5)


# Files and settings that contradict the training


@pytest.mark.parametrize(
    ("switch", "name", "value"),
    [
        ("do_train", "num_attention_heads", 4),
        ("do_predict", "hidden_act", "gelu_erf"),
        ("do_eval", "layer_norm_eps", 1e-5),
        ("do_export", "num_attention_heads", 4),
    ],
)
def test_another_configuration_is_refused(trained, tmp_path, switch, name, value):
    (tmp_path / "other.json").write_text(toy_data.config(num_hidden_layers=1, **{name: value}).to_json_string())
    before = {path.name for path in pathlib.Path(trained["output_dir"]).iterdir()}
    settings = {**trained, "bert_config_file": str(tmp_path / "other.json"), switch: True, "max_seq_length": 13}
    refuses(f"bert_config.json {name} --bert_config_file", call, "run_classifier", **settings, num_train_epochs=30.0)
    assert {path.name for path in pathlib.Path(trained["output_dir"]).iterdir()} == before


def test_fewer_layers_are_no_way_to_go_on(trained, tmp_path):
    """The next checkpoint would lack the others."""
    model = heads.ClassifierModel(toy_data.config(), num_labels=2)
    checkpoint.CheckpointFolder(str(tmp_path)).save(checkpoint.tf1_variables(model), 3)
    settings = {**trained, "output_dir": str(tmp_path), "do_predict": True, "max_seq_length": 13}
    save_label_map(str(tmp_path), LabelMap("tsv", ("0", "1"), regression=False))
    refuses(f"{tmp_path}/model.ckpt-3 bert/encoder/layer_1/", call, "run_classifier", **settings)


def test_another_vocabulary_or_case_is_refused(trained, tmp_path):
    other = write_vocab(tmp_path / "other.txt", [*toy_data.VOCAB[:5], *reversed(toy_data.VOCAB[5:])])
    settings = {**trained, "max_seq_length": 13}
    for switch in ("do_train", "do_predict"):
        refuses(f"{other}: 32 entries", call, "run_classifier", **{**settings, "vocab_file": other, switch: True})
    unused = write_vocab(tmp_path / "unused.txt", [*toy_data.VOCAB[:-1], "[unused1]"])
    refuses("out/vocab.txt --vocab_file", call, "run_classifier", **{**settings, "vocab_file": unused}, do_train=True)
    words = "out/tokenization.json --do_lower_case=False"
    refuses(words, call, "run_classifier", **{**trained, "do_lower_case": None}, do_predict=True)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("vocab.txt", "\n".join(toy_data.VOCAB[::-1]), "--vocab_file="),
        (
            "bert_config.json",
            toy_data.config(num_hidden_layers=1, num_attention_heads=4).to_json_string(),
            "num_attention_heads 4",
        ),
    ],
)
def test_files_of_another_model_in_the_folder_are_not_replaced(trained, tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    settings = {**trained, "output_dir": str(tmp_path), "do_train": True, "max_seq_length": 13}
    refuses(f"{tmp_path / name} {words} --output_dir", call, "run_classifier", **settings)
    assert (tmp_path / name).read_text() == content and not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("bert_config.json", {"num_attention_heads": 4}, "out/bert_config.json num_attention_heads 4 2 task.json"),
        ("label_map.json", {"labels": ["1", "0"]}, 'out/label_map.json ["1", "0"] ["0", "1"] task.json'),
        ("tokenization.json", {"do_lower_case": True}, "out/tokenization.json do_lower_case"),
        ("task.json", {"settings": [1]}, "out/task.json remove"),
        ("task.json", {"settings": {"max_seq_length": 13.5}}, "out/task.json max_seq_length=13.5 whole"),
    ],
)
def test_a_file_that_changed_since_the_training_is_refused(copy, name, change, words, tmp_path, log_lines):
    folder = pathlib.Path(copy["output_dir"])
    write_json(folder / name, json.loads((folder / name).read_text()) | change)
    settings = {**copy, "bert_config_file": str(folder / "bert_config.json"), "do_predict": True}
    if name == "tokenization.json":  # a flag counts, with a warning; without a flag, this file says how text is read
        call("run_classifier", **settings)
        assert any("--do_lower_case=False counts" in line and "out/tokenization.json" in line for line in log_lines)
        return
    export = {"task": "classifier", "init_checkpoint": str(folder), "export_dir": str(tmp_path / "export")}
    refuses(words, call, "run_classifier", **settings)
    refuses(words, call, "export_saved_model", **export)
    refuses(words, lambda: bert_tf2.load(folder).classify("a film"))


def test_another_length_and_a_guessed_case_are_logged(copy, log_lines):
    predicted(copy, max_seq_length=16)
    assert any("--max_seq_length=16: the model was trained with 13" in line for line in log_lines)
    (pathlib.Path(copy["output_dir"]) / "tokenization.json").unlink()
    predicted(copy, bert_config_file=None, vocab_file=None, do_lower_case=None)
    assert any("--do_lower_case=True: guessed from the vocabulary" in line for line in log_lines)


# Questions and tags


def test_the_settings_of_questions(tmp_path):
    files = toy_data.write_model(tmp_path)
    toy_data.write_squad(tmp_path / "train.json", 12, 1, impossible=True)
    kept = {"max_seq_length": 16, "doc_stride": 4, "max_query_length": 6, "max_answer_length": 2, "n_best_size": 3,
            "null_score_diff_threshold": -100.0}  # fmt: skip
    model = {**files, "train_batch_size": 4, "output_dir": str(tmp_path / "out")}
    call("run_squad", do_train=True, train_file=str(tmp_path / "train.json"), num_train_epochs=1.0,
         version_2_with_negative=True, **model, **kept)  # fmt: skip
    assert json.loads((tmp_path / "out" / "task.json").read_text())["settings"] == kept
    bert = bert_tf2.load(tmp_path / "out")
    question, paragraph = "where does ann live ?", "ann lives in paris ."
    assert bert.answer(question, paragraph).text == ""  # the threshold, and that there may be no answer
    some = bert.answer(question, paragraph, may_be_missing=False)
    assert 0 < len(some.text.split()) <= 2
    assert bert.answer([question] * 2, [paragraph] * 2, may_be_missing=False) == [some, some]
    assert bert.answer(question, "\u200b", may_be_missing=False).text == ""
    refuses("length", bert.answer, question, paragraph, length=3)
    refuses("n_best_size 1", bert.answer, question, paragraph, n_best_size=0)
    refuses("2 questions paragraph", bert.answer, [question] * 2, paragraph)
    squad = {"task": "squad", "init_checkpoint": str(tmp_path / "out"), "export_dir": str(tmp_path / "served")}
    call("export_saved_model", **squad, text_signatures=False)
    assert kept.items() <= json.loads((tmp_path / "served/1/model_info.json").read_text()).items()


def test_the_settings_of_tags(tmp_path, log_lines):
    """Long sentences in windows, with the sentences around them."""
    draw, path = random.Random(0), tmp_path / "words.txt"
    given = [draw.choices(toy_data.OTHERS[:11], k=length) for length in (3, 20, 2, 17, 5, 8)]
    tagged = ("".join(f"{word} {draw.choice(['O', 'B-X', 'B-Y'])}\n" for word in words) for words in given)
    path.write_text("\n".join(tagged))
    files = {**toy_data.write_model(tmp_path, num_hidden_layers=1), "output_dir": str(tmp_path / "out")}
    files |= {"train_file": str(path), "predict_file": str(path)}
    kept = {"max_seq_length": 13, "doc_stride": 3, "document_context": True}
    training = {"do_train": True, "num_train_epochs": 9.0, "train_batch_size": 4, "learning_rate": 5e-3}
    call("run_ner", **files, **kept, **training)
    call("run_ner", do_predict=True, **files)
    assert all(any(f"--{name}={kept[name]}: as in the training" in line for line in log_lines) for name in kept)
    tables = [part.splitlines() for part in (tmp_path / "out/predictions.txt").read_text().strip().split("\n\n")]
    script = [[line.split()[-1] for line in lines] for lines in tables]
    bert = bert_tf2.load(tmp_path / "out")
    assert bert.tag(given) == script != bert.tag(given, max_seq_length=11)
    alone = [bert.tag(sentence) for sentence in given]
    assert [bert.tag(" ".join(sentence)) for sentence in given] == alone != script  # so the sentences around count
    ner = {"task": "ner", "init_checkpoint": str(tmp_path / "out"), "export_dir": str(tmp_path / "served")}
    call("export_saved_model", **ner, text_signatures=False)
    assert any("--document_context" in line and "export" in line for line in log_lines)


# Pretraining


@pytest.mark.slow
def test_pretraining_writes_files_of_the_vocabulary_that_was_named(tmp_path):
    pretrained, out = google_folder(tmp_path / "google"), tmp_path / "out"
    row = {
        "input_ids": [2, 5, 3, 0, 0],
        "input_mask": [1, 1, 1, 0, 0],
        "segment_ids": [0] * 5,
        "masked_lm_positions": [1],
    }
    row |= {"masked_lm_ids": [7], "masked_lm_weights": [1.0], "next_sentence_labels": [0]}
    records.write_records(str(tmp_path / "records"), records.PRETRAINING, [row] * 4)
    settings = {"bert_config_file": f"{pretrained}/bert_config.json", "input_file": str(tmp_path / "records")}
    settings |= {"max_seq_length": 5, "max_predictions_per_seq": 1, "eval_batch_size": 2, "max_eval_steps": 2}
    training = {"do_train": True, "num_train_steps": 1, "num_warmup_steps": 1, "train_batch_size": 2}
    names = {"tokenization.json", "vocab.txt"}
    call("run_pretraining", **settings, **training, output_dir=str(out))
    assert (out / "bert_config.json").is_file() and not names & {path.name for path in out.iterdir()}
    call("run_pretraining", **settings, **training, output_dir=str(out), vocab_file=f"{pretrained}/vocab.txt")
    assert json.loads((out / "tokenization.json").read_text()) == {"do_lower_case": True}
    assert (out / "vocab.txt").read_bytes() == pathlib.Path(pretrained, "vocab.txt").read_bytes()
    call("predict_masked", init_checkpoint=str(out), sentence=["the [MASK]"])
    # A model of masked words only is evaluated as such: no numbers of a random head are among the results.
    randomize(model := heads.PretrainingModel(toy_data.config(num_hidden_layers=1)))
    evaluation = {**settings, "do_eval": True, "output_dir": str(tmp_path / "new")}
    whole = call("run_pretraining", **evaluation, init_checkpoint=save(model, tmp_path / "whole"))
    others = ("bert/pooler/", "cls/seq_relationship/")
    kept = {name: v for name, v in checkpoint.tf1_variables(model).items() if not name.startswith(others)}
    checkpoint.save(str(tmp_path / "words" / "bert_model.ckpt"), kept)
    words = {"init_checkpoint": str(tmp_path / "words")}
    refuses("words/bert_model.ckpt --objective=mlm", call, "run_pretraining", **evaluation, **words)
    found = call("run_pretraining", **evaluation, **words, objective="mlm")
    assert found["masked_lm_loss"] == pytest.approx(whole["masked_lm_loss"], rel=1e-6)
    assert "next_sentence" not in (tmp_path / "new" / "eval_results.txt").read_text()
