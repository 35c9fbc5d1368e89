"""What decides an answer is kept beside the weights: script, load and export answer alike."""

import json
import random
import shutil

import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data

import bert_tf2
from bert_tf2 import commands
from bert_tf2.exporting.options import ExportOptions
from bert_tf2.finetuning.options import ClassifierOptions
from bert_tf2.support.errors import UserError

TEXTS = ["the film was good .", "playing " * 40, "The FILM was Good", "ann lives in paris", "中文 good", "\u200b good"]
PAIRS = ["", *TEXTS[1:]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A classifier of pairs that was trained with 13 tokens, and its answers in a table."""
    path = tmp_path_factory.mktemp("kept")
    files = toy_data.write_model(path)
    rows = [
        ("one", "two", "label"),
        *((text, pair, str(i % 2)) for i, (text, pair) in enumerate(zip(TEXTS, PAIRS, strict=True))),
    ]
    for part in ("train", "dev"):
        (path / f"{part}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    (path / "test.tsv").write_text("".join("\t".join(row[:2]) + "\n" for row in rows))
    columns = {"text_a_column": "one", "text_b_column": "two", "label_column": "label"}
    model = {**files, "output_dir": str(path / "out"), "data_dir": str(path), "task_name": "tsv", **columns}
    commands.call("run_classifier", do_train=True, max_seq_length=13, num_train_epochs=20.0, train_batch_size=6,
                  learning_rate=1e-3, **model)  # fmt: skip
    return path, model


@pytest.mark.slow
def test_the_length_of_the_training_is_taken_everywhere(folder, log_lines, tmp_path):
    path, model = folder
    assert json.loads((path / "out" / "task.json").read_text())["settings"] == {"max_seq_length": 13}
    commands.call("run_classifier", do_predict=True, **model)
    assert any("--max_seq_length=13: as in the training, from task.json" in line for line in log_lines)
    script = np.loadtxt(path / "out" / "test_results.tsv")
    bert = bert_tf2.load(path / "out")
    loaded = bert.classify([*zip(TEXTS, PAIRS, strict=True)])
    np.testing.assert_allclose([[*row.values()] for row in loaded], script, atol=1e-6)
    longer = bert.classify([*zip(TEXTS, PAIRS, strict=True)], max_seq_length=16)
    assert np.abs(np.array([[*row.values()] for row in longer]) - script).max() > 1e-4  # so the length matters
    commands.call("export_saved_model", task="classifier", init_checkpoint=str(path / "out"), export_dir=str(tmp_path))
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_text_pair"]
    found = served(text_a=tf.constant(TEXTS), text_b=tf.constant(PAIRS))["probabilities"]
    np.testing.assert_allclose(found, script, atol=1e-5)


@pytest.mark.extra
def test_the_length_of_the_training_is_taken_by_onnx(folder, tmp_path):
    for package in ("onnx", "onnxruntime", "tokenizers"):
        pytest.importorskip(package)
    import onnxruntime
    import tokenizers

    path, _ = folder
    pairs = [*zip(TEXTS, PAIRS, strict=True)]
    wanted = [[*row.values()] for row in bert_tf2.load(path / "out").classify(pairs)]
    onnx = {"task": "classifier", "init_checkpoint": str(path / "out"), "format": "onnx"}
    commands.call("export_saved_model", **onnx, export_dir=str(tmp_path))
    reader = tokenizers.Tokenizer.from_file(str(tmp_path / "1/assets/tokenizer.json"))
    reader.enable_padding()
    rows = reader.encode_batch([(text, pair) if pair else text for text, pair in pairs])
    names = {"input_ids": "ids", "input_mask": "attention_mask", "segment_ids": "type_ids"}
    batch = {ours: np.array([getattr(row, name) for row in rows], np.int32) for ours, name in names.items()}
    found = onnxruntime.InferenceSession(str(tmp_path / "1/model.onnx")).run(["probabilities"], batch)
    np.testing.assert_allclose(found[0], wanted, atol=1e-5)
    films = bert_tf2.classifier(path / "out")
    films.export(tmp_path / "onnx", "onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"))
    rows = {name: values.numpy() for name, values in films.tokenize(pairs).items()}
    np.testing.assert_allclose(session.run(["probabilities"], rows)[0], wanted, atol=1e-5)


def test_the_keras_model_answers_alike(folder, tmp_path):
    """Of the script's folder: `predict`, and the script with the folder that `save_folder` writes."""
    path, model = folder
    pairs = [*zip(TEXTS, PAIRS, strict=True)]
    films = bert_tf2.classifier(path / "out")
    wanted = [[*row.values()] for row in bert_tf2.load(path / "out").classify(pairs)]
    np.testing.assert_allclose(films.predict(pairs, verbose=0), wanted, atol=1e-6)
    films.save_folder(tmp_path / "out")
    commands.call("run_classifier", do_predict=True, **{**model, "output_dir": str(tmp_path / "out")})
    np.testing.assert_allclose(np.loadtxt(tmp_path / "out" / "test_results.tsv"), wanted, atol=1e-6)


def test_another_length_is_told(folder, log_lines):
    _, model = folder
    commands.call("run_classifier", do_predict=True, max_seq_length=16, **model)
    assert any("--max_seq_length=16: the model was trained with 13; " in line for line in log_lines)


def test_answers(tmp_path):
    files = toy_data.write_model(tmp_path)
    toy_data.write_squad(tmp_path / "train.json", 12, 1, impossible=True)
    kept = {"max_seq_length": 16, "doc_stride": 4, "max_query_length": 6, "max_answer_length": 2, "n_best_size": 3,
            "null_score_diff_threshold": -100.0}  # fmt: skip
    model = {**files, "train_batch_size": 4, "output_dir": str(tmp_path / "out")}
    commands.call("run_squad", do_train=True, train_file=str(tmp_path / "train.json"), num_train_epochs=1.0,
                  version_2_with_negative=True, **model, **kept)  # fmt: skip
    assert json.loads((tmp_path / "out" / "task.json").read_text())["settings"] == kept
    bert = bert_tf2.load(tmp_path / "out")
    question, paragraph = "where does ann live ?", "ann lives in paris ."
    assert bert.answer(question, paragraph).text == ""  # the threshold, and that there may be no answer
    some = bert.answer(question, paragraph, may_be_missing=False)
    assert 0 < len(some.text.split()) <= 2
    assert bert.answer([question] * 2, [paragraph] * 2, may_be_missing=False) == [some, some]
    assert bert.answer(question, "\u200b", may_be_missing=False).text == ""
    for settings, message in (({"length": 3}, "has no setting length"), ({"n_best_size": 0}, "must be 1 or more")):
        with pytest.raises(UserError, match=message):
            bert.answer(question, paragraph, **settings)
    with pytest.raises(UserError, match="2 questions: a list with a paragraph for each"):
        bert.answer([question] * 2, paragraph)
    squad = {"task": "squad", "init_checkpoint": str(tmp_path / "out"), "export_dir": str(tmp_path / "served")}
    text_operations.need()  # an export with texts
    served = commands.call("export_saved_model", **squad)
    assert kept.items() <= json.loads((tmp_path / "served/1/model_info.json").read_text()).items()
    found = tf.saved_model.load(served).signatures["serving_text"]
    assert found(question=tf.constant([question]), context=tf.constant([paragraph]))["answer"].numpy() == [b""]


def test_tags(tmp_path, log_lines):
    """Long sentences in windows, with the sentences around them."""
    draw, path = random.Random(0), tmp_path / "words.txt"
    given = [draw.choices(toy_data.OTHERS[:11], k=length) for length in (3, 20, 2, 17, 5, 8)]
    tagged = ("".join(f"{word} {draw.choice(['O', 'B-X', 'B-Y'])}\n" for word in words) for words in given)
    path.write_text("\n".join(tagged))
    files = toy_data.write_model(tmp_path) | {"output_dir": str(tmp_path / "out")}
    words = {"train_file": str(path), "predict_file": str(path)}
    kept = {"max_seq_length": 13, "doc_stride": 3, "document_context": True}
    commands.call(
        "run_ner", do_train=True, num_train_epochs=9.0, train_batch_size=4, learning_rate=5e-3, **files, **words, **kept
    )
    commands.call("run_ner", do_predict=True, **files, **words)
    assert all(any(f"--{name}={kept[name]}: as in the training" in line for line in log_lines) for name in kept)
    tables = [part.splitlines() for part in (tmp_path / "out/predictions.txt").read_text().strip().split("\n\n")]
    script = [[line.split()[-1] for line in lines] for lines in tables]
    bert = bert_tf2.load(tmp_path / "out")
    assert bert.tag(given) == script != bert.tag(given, max_seq_length=11)
    alone = [bert.tag(sentence) for sentence in given]
    assert [bert.tag(" ".join(sentence)) for sentence in given] == alone != script  # so the sentences around count
    ner = {"task": "ner", "init_checkpoint": str(tmp_path / "out"), "export_dir": str(tmp_path / "served")}
    text_operations.need()  # an export with texts
    commands.call("export_saved_model", **ner)
    assert any("--document_context, and an export reads each text alone" in line for line in log_lines)


def test_numbers_of_numpy_are_numbers_and_inputs_are_protected(folder, tmp_path):
    _, model = folder
    with pytest.raises(UserError, match="--train_batch_size=-5: must be >= 1"):
        commands.call("run_classifier", do_train=True, train_batch_size=np.int64(-5), **model)
    with pytest.raises(UserError, match="--learning_rate=nan: a finite number"):
        commands.call("run_classifier", do_train=True, learning_rate=np.float32("nan"), **model)
    model = {**model, "output_dir": str(tmp_path / "other"), "max_seq_length": 13, "num_train_epochs": np.float32(1)}
    commands.call("run_classifier", do_train=True, train_batch_size=np.int64(6), **model)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a text\n")
    with pytest.raises(UserError, match="is also read from"):
        commands.call("build_vocab", input_file=str(corpus), vocab_file=str(corpus))
    assert corpus.read_text() == "a text\n"


def test_strings_of_other_kinds(folder):
    bert = bert_tf2.load(folder[0] / "out")
    wanted = bert.classify(["a film"])
    assert bert.classify([b"a film"]) == bert.classify(tf.constant(["a film"])) == wanted
    assert bert.classify(np.array(["a film"])) == wanted
    with pytest.raises(UserError, match="nor a pair of texts, which is a tuple"):
        bert.classify([["a film", "b"]])
    with pytest.raises(UserError, match="not UTF-8"):
        bert.classify([b"\xff"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"settings": [1]}', "is no task.json of a training"),
        ('{"settings": {"max_seq_length": 13.5}}', "task.json: max_seq_length=13.5: must be a whole number"),
    ],
)
def test_a_task_file_that_is_none(folder, tmp_path, content, message):
    shutil.copytree(folder[0] / "out", tmp_path / "out")
    (tmp_path / "out" / "task.json").write_text(content)
    model = {**folder[1], "output_dir": str(tmp_path / "out")}
    with pytest.raises(UserError, match=message):
        commands.call("run_classifier", do_predict=True, **model)
    with pytest.raises(UserError, match=r"max_seq_length|task\.json"):
        bert_tf2.load(tmp_path / "out").classify("a film")


def test_the_task_file_is_that_of_the_weights_in_use(folder, tmp_path):
    """An output_dir without checkpoints has none, whatever else lies there."""
    (tmp_path / "task.json").write_text('{"settings": {"max_seq_length": 5}}')
    model = {**folder[1], "output_dir": str(tmp_path), "init_checkpoint": str(folder[0] / "out")}
    assert ClassifierOptions(do_predict=True, **model).max_seq_length == 13
    assert ClassifierOptions(do_train=True, **model).max_seq_length == 128


def test_a_guess_is_called_one(folder, log_lines, tmp_path):
    shutil.copytree(folder[0] / "out", tmp_path / "out")
    (tmp_path / "out" / "tokenization.json").unlink()
    ExportOptions(task="classifier", init_checkpoint=str(tmp_path / "out"), export_dir="x")
    assert any("--do_lower_case=True: guessed from the vocabulary" in line for line in log_lines)


@pytest.mark.parametrize(
    "name, change, told",
    [
        ("bert_config.json", {"num_attention_heads": 4}, "says num_attention_heads 4, and .* were trained with 2"),
        ("label_map.json", {"labels": ["1", "0"]}, r'says labels \["1", "0"\], and .* were trained with \["0", "1"\]'),
        ("tokenization.json", {"do_lower_case": False}, "give --do_lower_case=False"),
    ],
)
def test_a_file_beside_the_weights_that_changed_is_told(folder, name, change, told, tmp_path):
    path, model = folder
    out = tmp_path / "out"
    shutil.copytree(path / "out", out)
    (out / name).write_text(json.dumps(json.loads((out / name).read_text()) | change))
    inside = {flag: str(out / value) for flag, value in {"bert_config_file": "bert_config.json"}.items()}
    with pytest.raises(UserError, match=told):
        commands.call("run_classifier", do_predict=True, **{**model, **inside, "output_dir": str(out)})
    if name != "tokenization.json":  # which says how text is read, where no flag does
        with pytest.raises(UserError, match=told):
            commands.call(
                "export_saved_model", task="classifier", init_checkpoint=str(out), export_dir=str(tmp_path / "export")
            )
        with pytest.raises(UserError, match=told):
            bert_tf2.load(out)


def test_converted_weights_keep_their_settings(folder, tmp_path):
    path, _ = folder
    expected = bert_tf2.load(path / "out").classify(TEXTS)
    for kind in ("tf1", "hf", "keras"):
        output = tmp_path / kind
        commands.call("convert_checkpoint", input=str(path / "out"), to=kind, output=str(output))
        found = bert_tf2.load(output).classify(TEXTS)
        np.testing.assert_allclose(*([[*row.values()] for row in rows] for rows in (found, expected)), atol=1e-6)
    how = {"input": str(path / "out"), "to": "tf1", "output": str(tmp_path / "exact"), "hidden_act": "gelu_erf"}
    commands.call("convert_checkpoint", **how)
    assert bert_tf2.load(tmp_path / "exact").config.hidden_act == "gelu_erf"  # which the configuration says now
