"""One model, one answer: that of the script, of `load`, of the Keras model and of the export, for every task."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random

import keras
import numpy as np
import pytest
import text_operations
import toy_data
from export_cases import CLOSE, IDS, LABELS, SETTINGS, TAGS, Exported, make_options
from refused import refuses

import bert_tf2
from bert_tf2 import commands, exporting
from bert_tf2.exporting.run import run

text_operations.need()

TEXTS = ["the film was good .", "playing " * 30, "Zoë lives in Paris", "a", ""]
PAIRS = [("Ann lives in paris .", "where is it ?"), ("good " * 30, "bad " * 20), ("a film", "playing")]
PAIRS += [("", "a"), ("", "")]
LENGTH = {"max_seq_length": 24}


def flags(made: Exported, **more) -> dict[str, str]:
    """The flags of the files of an export's weights."""
    names = {"bert_config_file": "bert_config.json", "vocab_file": "vocab.txt", "init_checkpoint": "model.ckpt-7"}
    return {**{flag: str(made.weights.with_name(name)) for flag, name in names.items()}, **LENGTH, **more}


@pytest.mark.parametrize("kind", ["classifier", "multi_label", pytest.param("regression", marks=pytest.mark.slow)])
def test_labels_of_texts(exported, tmp_path, kind):
    made, kinds = exported(kind), {} if kind == "classifier" else {kind: True}
    toy_data.write_table(tmp_path / "test.tsv", "text\tother", PAIRS)
    label = "0.5" if kind == "regression" else LABELS[1]
    toy_data.write_table(tmp_path / "dev.tsv", "text\tother\tlabel", [(*row, label) for row in PAIRS])
    columns = {"text_a_column": "text", "text_b_column": "other", "label_column": "label"}
    how = {"data_dir": str(tmp_path), "output_dir": str(tmp_path), "do_eval": True, "do_predict": True, **kinds}
    scores = commands.call("run_classifier", task_name="tsv", **columns, **flags(made), **how)
    wanted = np.loadtxt(tmp_path / "test_results.tsv", ndmin=2)
    bert, served = bert_tf2.load(made.weights.parent), exporting.load(made.folder)
    model = bert_tf2.classifier(made.weights.parent, **LENGTH)
    assert model.labels == [*bert.labels.labels] == made.info["labels"]
    labels = [{"regression": 0.5, "multi_label": [label]}.get(kind, label)] * len(PAIRS)
    assert np.ravel(model.evaluate(PAIRS, labels, verbose=0))[0] == pytest.approx(scores["loss"], rel=1e-4)
    key = "value" if kind == "regression" else "probabilities"
    for texts in (PAIRS, TEXTS):
        found, answers = bert.classify(texts, **LENGTH, batch_size=2), served(texts, batch_size=2)
        assert {tuple(row) for row in found} == {("score",) if kind == "regression" else LABELS}
        rows = np.array([[*row.values()] for row in found])
        for others in (
            model(texts),
            [np.reshape(answer[key], [-1]) for answer in answers],
            *[wanted] * (texts is PAIRS),
        ):
            np.testing.assert_allclose(others, rows, **CLOSE)
        if kind == "classifier":
            assert [answer["label"] for answer in answers] == [LABELS[index] for index in rows.argmax(1)]
        if kind == "multi_label":
            names = [[label for label, one in zip(LABELS, row, strict=True) if one >= 0.5] for row in rows]
            assert [answer["labels"] for answer in answers] == names and any(names)
        assert [*bert.classify(texts[0], **LENGTH).values()] == pytest.approx(rows[0], abs=1e-5)
        np.testing.assert_allclose(np.reshape(served(texts[0])[key], [-1]), rows[0], **CLOSE)
    assert bert.classify([]) == served([]) == [] and len(model.predict([], verbose=0)) == 0


@pytest.mark.parametrize("pooling", ["max", pytest.param("mean", marks=pytest.mark.slow)])
def test_windows_of_long_texts(exported, tmp_path, log_lines, pooling):
    """A long text has the mean or the maximum over its parts; a pair keeps its first text in each of them."""
    made = exported("classifier")
    changes = {"stride": 3, "max_seq_length": 6, "pooling": pooling}
    served = exporting.load(run(make_options(tmp_path, "classifier", made.weights, **changes)))
    bert, windows = bert_tf2.load(made.weights.parent), {"window": 6, "stride": 3, "pooling": pooling}
    words = "the film was good and bad or lovely in paris".split()
    parts = [" ".join(words[start : start + 4]) for start in (0, 3, 6)]  # windows of 6 tokens, 4 of them words
    pairs = [("film", " ".join(words[start : start + 2])) for start in (0, 2, 4, 6, 8)]
    for text, divided, stride in ((" ".join(words), parts, 3), (("film", " ".join(words)), pairs, 9)):
        rows = np.array([[*row.values()] for row in bert.classify(divided)])
        found = bert.classify([text, "good"], **{**windows, "stride": stride}, batch_size=2)
        np.testing.assert_allclose([*found[0].values()], getattr(rows, pooling)(0), **CLOSE)
        assert found[1] == pytest.approx(bert.classify("good"))
    for texts in ([" ".join(words), "good", ""], [(" ".join(words), "bad"), ("a", "bad " * 9), ("", "bad")]):
        wanted = [[*row.values()] for row in bert.classify(texts, **windows)]
        np.testing.assert_allclose([answer["probabilities"] for answer in served(texts)], wanted, **CLOSE)
    assert not any("were cut" in line for line in log_lines)
    bert.classify(TEXTS, max_seq_length=6)
    assert "2 of 5 texts" in log_lines[-1] and "were cut" in log_lines[-1]


def test_texts_whose_words_the_vocabulary_lacks(opened, log_lines):
    """As the scripts warn of them."""
    calls = (
        lambda text: opened["words"].embed([text]),
        lambda text: opened["films"].classify(text),
        lambda text: opened["names"].tag(text),
        lambda text: opened["reader"].answer(text, text),
    )
    for call in calls:
        for text, warns in (("a good film", False), ("\u0434\u043e\u043c \u0434\u043e\u043c", True)):
            log_lines.clear()
            call(text)
            assert any("100% of its" in line and "[UNK]" in line for line in log_lines) == warns


def test_words_with_tags(exported, tmp_path, log_lines):
    made, draw = exported("ner"), random.Random(4)
    known = [*toy_data.PLACES, *toy_data.NAMES, *toy_data.OTHERS[:12], "Playing", "Zoë", "北", "."]
    sentences = [[word.title() for word in draw.choices(known, k=draw.randrange(1, 11))] for _ in range(30)]
    sentences.append([draw.choice(known) for _ in range(50)])  # in windows
    (tmp_path / "words.txt").write_text("\n\n".join("\n".join(words) for words in sentences) + "\n")
    places = {"predict_file": str(tmp_path / "words.txt"), "output_dir": str(tmp_path)}
    commands.call("run_ner", do_predict=True, doc_stride=5, **places, **flags(made))
    written = (tmp_path / "predictions.txt").read_text().strip().split("\n\n")
    wanted = [[line.split()[1] for line in lines.splitlines()] for lines in written]
    assert [*map(len, wanted)] == [*map(len, sentences)] and {*itertools.chain(*wanted)} <= {*TAGS}
    bert = bert_tf2.load(made.weights.parent)
    assert bert.tag(sentences, **LENGTH, stride=5, batch_size=2) == wanted != bert.tag(sentences, **LENGTH)
    assert bert.tag(sentences[0], **LENGTH) == bert.tag(" ".join(sentences[0]), **LENGTH) == wanted[0]
    assert bert.tag([*"北京"], **LENGTH) and not any("list(text)" in line for line in log_lines)
    assert len(bert.tag("北京北京北京北京北京", **LENGTH)) == 1 and any("list(text)" in line for line in log_lines)
    model = bert_tf2.tagger(made.weights.parent, **LENGTH, stride=5)
    assert model.predict(sentences) == wanted
    model.export(tmp_path / "served")  # with the stride, by task.json
    served, texts = exporting.load(tmp_path / "served"), [" ".join(words) for words in sentences]
    for text, words, tags, answer in zip(texts, sentences, wanted, served(texts), strict=True):
        assert (answer["words"], answer["labels"]) == (words, tags)
        assert [text[a:b] for a, b in zip(answer["starts"], answer["ends"], strict=True)] == words
        assert ((answer["probabilities"] > 1 / len(TAGS)) & (answer["probabilities"] < 1)).all()
    for blank in (["", " \t\u3000"], ["", texts[0], " "]):
        words = [answer["labels"] for answer in served(blank)]
        assert words == [*map(bert.tag, blank)] and sum(map(bool, words)) == len(blank) - 2


def questions(count: int) -> list[tuple[str, str]]:
    """With contexts of one window and of many: capitals, punctuation, pieces of words, accents and several blanks."""
    draw = random.Random(11)
    known = [*toy_data.PLACES, *toy_data.NAMES, *toy_data.GOOD, *toy_data.OTHERS[:14]]
    words, found = [*known, "playing", "Lima?", "Ève", "(Oslo)", "x.y", "Rome,"], []
    for _ in range(count):
        context = draw.choice([" ", "  ", "\t"]).join(draw.choices(words, k=draw.randrange(1, 60)))
        found.append((" ".join(draw.choices(words, k=draw.randrange(1, 12))), context.title()))
    return found


@pytest.mark.parametrize("may_be_missing", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_questions_with_answers(exported, tmp_path, may_be_missing):
    made, asked = exported("squad"), questions(120 if may_be_missing else 40)
    paragraphs = [
        {"context": context, "qas": [{"id": str(number), "question": question, "answers": []}]}
        for number, (question, context) in enumerate(asked)
    ]
    (tmp_path / "dev.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    places = {"predict_file": str(tmp_path / "dev.json"), "output_dir": str(tmp_path / "out"), "predict_batch_size": 1}
    how = {**SETTINGS["squad"]}

    def written(name: str, **more) -> list:
        files = flags(made, **{**how, **places, **more})
        commands.call("run_squad", do_predict=True, pad_to_max_length=False, answer_offsets=True, **files)
        return [*json.loads((tmp_path / "out" / name).read_text()).values()]

    folder = made.folder
    if may_be_missing:
        odds = written("null_odds.json", version_2_with_negative=True)
        how["null_score_diff_threshold"] = float(np.median(odds))
        folder = run(make_options(tmp_path, "squad", made.weights, **how))
    wanted = written("predictions.json", version_2_with_negative=may_be_missing)
    wanted = [answer.replace("empty", "") for answer in wanted]  # which the reference writes for no span at all
    columns = [[*column] for column in zip(*asked, strict=True)]
    found = bert_tf2.load(made.weights.parent).answer(*columns, may_be_missing=may_be_missing, **how)
    words = [" ".join(answer.split()) for answer in wanted]
    assert [answer.text for answer in found] == words
    for texts, name in ((("\u200b", "a"), "question"), (("a", " "), "paragraph")):
        refuses(f"{name} words", bert_tf2.load(made.weights.parent).answer, *texts)
    best = json.loads((tmp_path / "out" / "nbest_predictions.json").read_text()).values()
    for (_, context), row, text, answer in zip(asked, best, wanted, found, strict=True):
        likely = next(one["probability"] for one in row if one["text"] in (text, "empty"))
        if context == " ".join(context.split()):  # texts that differ in blanks alone are one answer of `answer`
            assert answer.probability == pytest.approx(likely, abs=1e-5)
    reader = bert_tf2.answerer(made.weights.parent, may_be_missing=may_be_missing, **how)
    assert [answer.text for answer in reader.predict(asked)] == words
    served = exporting.load(folder)(asked)
    assert [answer["answer"] for answer in served] == wanted
    for (_, context), answer in zip(asked, served, strict=True):
        place = (answer["start"], answer["end"])
        assert context[slice(*place)] == answer["answer"] if answer["answer"] else place == (-1, -1)
    assert not may_be_missing or 20 < wanted.count("") < 100
    assert may_be_missing or sum("\t" in answer["answer"] or "  " in answer["answer"] for answer in served) > 1


def test_words_for_blanks(exported, capsys):
    made = exported("masked_lm")
    sentences = ["the film was [MASK] .", "[MASK] lives in [MASK] ||| where ?", "[MASK]"]
    settings = {"sentence": sentences, "top_k": 3, "output_format": "json"}
    commands.call("predict_masked", **flags(made, **settings))
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    bert = bert_tf2.load(made.weights.parent)
    found = bert.fill_mask(sentences, top_k=3)
    assert bert_tf2.masked_lm(made.weights.parent).fill_mask(sentences, top_k=3) == found
    answers = exporting.load(made.folder)([tuple(text.split(" ||| ")) for text in sentences])
    for text, line, answer, served in zip(sentences, printed, found, answers, strict=True):
        masks = [dataclasses.asdict(mask) for mask in answer.masks]
        assert (line["text"], line["filled"]) == (text, answer.filled) and len(line["masks"]) == len(masks)
        words = [[one["token"] for one in mask["predictions"]] for mask in masks]
        numbers = [[one["probability"] for one in mask["predictions"]] for mask in masks]
        assert served["tokens"] == words and served["positions"] == [mask["position"] for mask in masks]
        np.testing.assert_allclose(served["scores"], numbers, **CLOSE)
        assert [[one["token"] for one in mask["predictions"]] for mask in line["masks"]] == words
        assert all(row == sorted(row, reverse=True) for row in numbers)
        for best, *_ in words:
            text = text.replace("[MASK]", best, 1)
        assert answer.filled == text
    alone = bert.fill_mask(sentences[0])
    assert len(alone.masks[0].predictions) == 5 and alone.filled == found[0].filled and bert.fill_mask([]) == []
    ids = bert.tokenizer.convert_tokens_to_ids("[CLS] the film was [MASK] . [SEP]".split())
    logits = bert.model({"input_ids": np.array([ids]), "masked_lm_positions": np.array([[4]])}).numpy()[0, 0]
    assert alone.masks[0].predictions[0].token == toy_data.VOCAB[logits.argmax()]


def test_vectors_of_texts(exported, tmp_path):
    made, given = exported("features"), [*TEXTS, PAIRS[0]]
    lines = [text if isinstance(text, str) else " ||| ".join(text) for text in given]
    (tmp_path / "texts.txt").write_text("\n".join(lines) + "\n")
    places = {"input_file": str(tmp_path / "texts.txt"), "output_file": str(tmp_path / "vectors.npy")}
    commands.call("extract_features", layers="-1", pooling="mean", batch_size=2, **places, **flags(made))
    wanted = np.load(tmp_path / "vectors.npy")
    bert = bert_tf2.load(made.weights.parent)
    np.testing.assert_array_equal(bert.embed(given, batch_size=2, **LENGTH), wanted)
    answers = exporting.load(made.folder)(given)
    assert all([*answer] == sorted(answer) for answer in answers)  # not in another order in each process
    np.testing.assert_allclose([answer["mean_pooled"] for answer in answers], wanted, **CLOSE)
    inputs = {name: keras.Input([None], dtype="int32", name=name) for name in IDS}
    mean = keras.layers.GlobalAveragePooling1D()(bert.encoder(inputs).get_sequence_output())
    ids = bert.tokenize(given, 24)
    np.testing.assert_allclose(keras.Model(inputs, mean)(ids), wanted, **CLOSE)
    pooled = bert.encoder(ids).get_pooled_output()
    np.testing.assert_allclose([answer["pooled_output"] for answer in answers], pooled, **CLOSE)
    for answer, tokens, row in zip(answers, bert.embed(given, "none", **LENGTH), ids["input_ids"], strict=True):
        np.testing.assert_allclose(answer["sequence_output"], tokens, **CLOSE)
        assert answer["tokens"] == bert.tokenizer.convert_ids_to_tokens([one for one in row.tolist() if one])
