"""Exported models: the same answers as in Python, in every signature; bad requests; what lies in the folder.

The C program of test_c_api.py asks the same folders without Python.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import toy_data
from command_lines import CommandLines
from small_models import randomize

from bert_tf2 import checkpoint, heads, modeling, tokenization
from bert_tf2.export import run as export
from bert_tf2.export import saved_model_files, signatures
from bert_tf2.export.options import ExportOptions
from bert_tf2.finetuning import classification, ner, squad
from bert_tf2.finetuning.ner import run as finetune_ner
from bert_tf2.finetuning.ner import scores as ner_scores
from bert_tf2.finetuning.ner.options import NerOptions
from bert_tf2.finetuning.squad import run as finetune_squad
from bert_tf2.finetuning.squad.options import SquadOptions
from bert_tf2.pretraining import run as pretraining
from bert_tf2.pretraining.options import PretrainingOptions
from bert_tf2.support import outputs
from bert_tf2.support.errors import UserError
from bert_tf2.weights.labels import TAGGING_TASK, LabelMap, load_label_map, save_label_map

pytest.importorskip("tensorflow_text")

CONFIG = toy_data.config(num_hidden_layers=1)
POSITIONS = CONFIG.max_position_embeddings
LABELS = ("bad", "fair", "good")
TAGS = ("O", "B-LOC", "B-PER", "I-LOC", "I-PER")
MAKERS = {
    "features": lambda: modeling.BertModel(CONFIG),
    "classifier": lambda: heads.ClassifierModel(CONFIG, len(LABELS)),
    "squad": lambda: heads.SpanModel(CONFIG),
    "ner": lambda: heads.TaggingModel(CONFIG, len(TAGS)),
    "masked_lm": lambda: heads.PretrainingModel(CONFIG),
}
SETTINGS = {
    "features": {"max_seq_length": 24},
    "classifier": {"max_seq_length": 24},
    "squad": {"max_seq_length": 24, "max_query_length": 6, "doc_stride": 5, "max_answer_length": 4, "n_best_size": 8},
    "ner": {"max_seq_length": 24},
    "masked_lm": {"max_seq_length": 24, "top_k": 3},
}
CLS, SEP, MASK = 2, 3, 4  # in toy_data.VOCAB
CLOSE = {"atol": 1e-5, "rtol": 0}


@dataclasses.dataclass
class Exported:
    """An export and the model it was made of."""

    folder: str
    weights: pathlib.Path
    model: object
    tokenizer: tokenization.FullTokenizer
    options: ExportOptions

    @functools.cached_property
    def saved(self):
        return tf.saved_model.load(self.folder)

    def ask(self, signature: str, **inputs) -> dict[str, np.ndarray]:
        found = self.saved.signatures[signature](**{name: tf.constant(value) for name, value in inputs.items()})
        return {name: value.numpy() for name, value in found.items()}

    @property
    def info(self) -> dict:
        return json.loads(pathlib.Path(self.folder, "model_info.json").read_text())


def save_weights(folder: pathlib.Path, task: str, model) -> pathlib.Path:
    """A checkpoint of random weights with its labels."""
    randomize(model, seed=5)
    checkpoint.save(str(folder / "model.ckpt-7"), checkpoint.tf1_variables(model), 7)
    if task == "classifier":
        labels = LabelMap("stars", LABELS, False)
        save_label_map(str(folder), labels)
    if task == "ner":
        save_label_map(str(folder), LabelMap(TAGGING_TASK, TAGS, False))
    return folder / "model.ckpt-7"


def make_options(folder: pathlib.Path, task: str, weights: pathlib.Path, **changes) -> ExportOptions:
    files = toy_data.write_model(folder, num_hidden_layers=1)
    settings = {**files, **SETTINGS[task], "init_checkpoint": str(weights), "export_dir": str(folder / "export")}
    return ExportOptions(task=task, **{**settings, **changes})


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """task -> Exported, each made once."""

    @functools.cache
    def make(task: str) -> Exported:
        folder = tmp_path_factory.mktemp(task)
        model = MAKERS[task]()
        weights = save_weights(folder, task, model)
        options = make_options(folder, task, weights)
        tokenizer = tokenization.FullTokenizer(options.vocab_file)
        return Exported(export.run(options), weights, model, tokenizer, options)

    return make


def rows(lengths=(3, 17, 9, 24), seed: int = 3) -> dict[str, np.ndarray]:
    """[CLS] tokens [SEP] tokens [SEP] of several lengths, some of the tokens [MASK], with segments and padding."""
    draw = np.random.default_rng(seed)
    inputs = {name: np.zeros([len(lengths), max(lengths)], np.int32) for name in signatures.IDS}
    for row, length in enumerate(lengths):
        ids = draw.integers(MASK, len(toy_data.VOCAB), length)
        middle = length // 2
        ids[[0, middle, length - 1]] = CLS, SEP, SEP
        inputs["input_ids"][row, :length] = ids
        inputs["input_mask"][row, :length] = 1
        inputs["segment_ids"][row, middle + 1 : length] = 1
    return inputs


def expected_outputs(made: Exported, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the model says in Python, under the names of the signatures; at padding nothing is said of it."""
    task, model = made.options.task, made.model
    mask = inputs["input_mask"][..., None]
    if task == "features":
        output = model(inputs["input_ids"], inputs["input_mask"], inputs["segment_ids"])
        sequence = output.sequence_output.numpy() * mask
        pooled = {"pooled_output": output.pooled_output.numpy(), "mean_pooled": sequence.sum(1) / mask.sum(1)}
        return {"sequence_output": sequence, **pooled}
    if task == "classifier":
        probabilities = tf.nn.softmax(model(inputs)).numpy()
        return {"probabilities": probabilities, "label": np.array(LABELS)[probabilities.argmax(-1)].astype("S")}
    if task == "squad":
        start, end = (np.where(mask[..., 0], logits.numpy(), modeling.MASKED_SCORE) for logits in model(inputs))
        return {"start_logits": start, "end_logits": end}
    if task == "ner":
        probabilities = tf.nn.softmax(model(inputs)).numpy()
        labels = np.where(mask[..., 0], np.array(TAGS)[probabilities.argmax(-1)].astype("S"), b"")
        return {"label": labels, "probability": probabilities.max(-1) * mask[..., 0]}
    return expected_words(model, inputs)


def expected_words(model, inputs) -> dict[str, np.ndarray]:
    places = [np.flatnonzero(row == MASK) for row in inputs["input_ids"]]
    count = max(map(len, places))
    positions = np.array([[*row, *[-1] * (count - len(row))] for row in places], np.int32)
    logits = model({**inputs, "masked_lm_positions": np.maximum(positions, 0)})
    scores, ids = (part.numpy() for part in tf.math.top_k(tf.nn.softmax(logits), 3))
    there = (positions >= 0)[..., None]
    words = np.where(there, np.array(toy_data.VOCAB)[ids].astype("S"), b"")
    return {"positions": positions, "tokens": words, "scores": np.where(there, scores, 0.0)}


def assert_outputs(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for name, value in wanted.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[name], value, err_msg=name, **CLOSE)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


# The same answers as in Python.


@pytest.mark.parametrize("task", export.TASKS)
def test_ids_are_answered_as_by_the_model(exported, task):
    made, inputs = exported(task), rows()
    assert_outputs(made.ask("serving_default", **inputs), expected_outputs(made, inputs))
    alone = {name: value[1:2, :17] for name, value in inputs.items()}
    assert_outputs(made.ask("serving_default", **alone), expected_outputs(made, alone))
    without_segments = {**inputs, "segment_ids": np.zeros_like(inputs["segment_ids"])}
    found = made.ask("serving_ids", input_ids=inputs["input_ids"])
    assert_outputs(found, expected_outputs(made, without_segments))


@pytest.mark.parametrize("task", export.TASKS)
def test_ids_may_be_as_long_as_the_model_can_read(exported, task):
    """max_seq_length is for texts only."""
    made, inputs = exported(task), rows((POSITIONS, 5))
    assert made.options.max_seq_length < POSITIONS
    assert_outputs(made.ask("serving_default", **inputs), expected_outputs(made, inputs))


TEXTS = ["Ann lives in Paris.", "film?", "the GOOD film was played, and Bob is in Oslo now", "a book " * 30, "Zoë: sad"]
SECONDS = ["where is it ?", "", "playing", "Eve is bad " * 20, "\t \n"]


def model_inputs(made: Exported, pairs) -> dict[str, np.ndarray]:
    """By the reference's way from texts to ids; [MASK] stays whole."""
    length = made.options.max_seq_length

    def tokenize(text: str) -> list[str]:
        if made.options.task != "masked_lm":
            return made.tokenizer.tokenize(text)
        parts = [made.tokenizer.tokenize(part) for part in text.split("[MASK]")]
        return [token for part in parts for token in ["[MASK]", *part]][1:]

    inputs = {name: np.zeros([len(pairs), length], np.int32) for name in signatures.IDS}
    for row, (first, second) in enumerate(pairs):
        first, second = tokenize(first), tokenize(second)
        if second:
            classification.truncate_seq_pair(first, second, length - 3)
        first = ["[CLS]", *first[: length - 2], "[SEP]"]
        tokens = [*first, *second, "[SEP]"] if second else first
        inputs["input_ids"][row, : len(tokens)] = made.tokenizer.convert_tokens_to_ids(tokens)
        inputs["input_mask"][row, : len(tokens)] = 1
        inputs["segment_ids"][row, len(first) : len(tokens)] = 1
    longest = inputs["input_mask"].sum(1).max()
    return {name: value[:, :longest] for name, value in inputs.items()}


@pytest.mark.parametrize("task", ["features", "classifier", "masked_lm"])
def test_texts_are_answered_as_by_the_scripts(exported, task):
    made = exported(task)
    blank = " [MASK] " if task == "masked_lm" else ""
    firsts = [text[:5] + blank + text[5:] for text in TEXTS]
    assert_outputs(
        made.ask("serving_text", text_a=firsts),
        expected_outputs(made, model_inputs(made, [(text, "") for text in firsts])),
    )
    pairs = list(zip(firsts, SECONDS, strict=True))
    inputs = model_inputs(made, pairs)
    found = made.ask("serving_text_pair", text_a=firsts, text_b=SECONDS)
    assert_outputs(found, expected_outputs(made, inputs))
    if task == "features":
        padding = inputs["input_mask"] == 0
        tokens = np.where(padding, b"", np.array(toy_data.VOCAB)[inputs["input_ids"]].astype("S"))
        np.testing.assert_array_equal(found["tokens"], tokens)


def test_a_regression_gives_numbers(tmp_path):
    model = heads.ClassifierModel(CONFIG, 0, regression=True)
    weights = save_weights(tmp_path, "classifier", model)
    save_label_map(str(tmp_path), LabelMap("sts-b", (), True))
    options = make_options(tmp_path, "classifier", weights)
    made = Exported(export.run(options), weights, model, tokenization.FullTokenizer(options.vocab_file), options)
    inputs = rows()
    found = made.ask("serving_default", **inputs)
    assert list(found) == ["value"]
    np.testing.assert_allclose(found["value"], model(inputs)[:, 0], **CLOSE)
    assert export.load(made.folder)("a film") == {
        "value": pytest.approx(made.ask("serving_text", text_a=["a film"])["value"][0])
    }


# SQuAD


def questions(count: int, seed: int = 11, others: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Of one window and of many; with capitals, punctuation, pieces of words, accents and several blanks."""
    draw = random.Random(seed)
    words = [
        *toy_data.PLACES,
        *toy_data.NAMES,
        *toy_data.GOOD,
        *toy_data.OTHERS[:14],
        "playing",
        "Lima?",
        "Ève",
        *others,
    ]
    found = []
    for _ in range(count):
        context = draw.choice([" ", "  ", "\t"]).join(draw.choices(words, k=draw.randrange(1, 60)))
        found.append((" ".join(draw.choices(words, k=draw.randrange(1, 12))), context.title()))
    return found


def expected_answers(made: Exported, asked: list[tuple[str, str]], version_2: bool = False, **changes) -> squad.Answers:
    """By squad.compute_predictions, from logits that the model gave for each window by itself."""
    options = dataclasses.replace(made.options, **changes)
    examples = [
        squad.SquadExample(str(number), question, re.findall("[^ \t\r\n]+", context))
        for number, (question, context) in enumerate(asked)
    ]
    features = list(
        squad.convert_examples_to_features(
            examples, made.tokenizer, options.max_seq_length, options.doc_stride, options.max_query_length, False
        )
    )
    names = ("input_ids", "input_mask", "segment_ids")
    inputs = {name: np.array([getattr(feature, name) for feature in features], np.int32) for name in names}
    logits = np.stack([part.numpy() for part in made.model(inputs)], 1)
    results = [
        squad.RawResult(feature.unique_id, *row[:, : len(feature.tokens)])
        for feature, row in zip(features, logits, strict=True)
    ]
    threshold = options.null_score_diff_threshold or 0.0
    size, length = options.n_best_size, options.max_answer_length
    return squad.compute_predictions(examples, features, results, size, length, True, version_2, threshold)


def test_answers_are_those_of_run_squad(exported):
    made, asked = exported("squad"), questions(200)
    wanted = expected_answers(made, asked, version_2=True, null_score_diff_threshold=1e9)
    found = made.ask("serving_text", question=[q for q, _ in asked], context=[c for _, c in asked])
    answers = [answer.decode() for answer in found["answer"]]
    assert sum("\t" in answer or "  " in answer for answer in answers) > 5  # where answers are of several words
    squeezed = [" ".join(answer.split()) for answer in answers]
    assert squeezed == list(wanted.predictions.values())
    np.testing.assert_allclose(found["null_odds"], list(wanted.null_odds.values()), atol=2e-5)
    best = [
        next(entry for entry in entries if entry["text"]) for entries in wanted.nbest.values() if entries[0]["text"]
    ]
    scores = [score for score, entries in zip(found["score"], wanted.nbest.values(), strict=True) if entries[0]["text"]]
    np.testing.assert_allclose(scores, [entry["start_logit"] + entry["end_logit"] for entry in best], atol=2e-5)
    for (_, context), answer, start, end in zip(asked, answers, found["start"], found["end"], strict=True):
        assert context[start:end] == answer


def test_no_answer_may_be_the_answer(exported, tmp_path):
    made, asked = exported("squad"), questions(60, seed=12)
    odds = list(expected_answers(made, asked, version_2=True).null_odds.values())
    threshold = float(np.median(odds))
    options = make_options(tmp_path, "squad", made.weights, null_score_diff_threshold=threshold)
    saved = tf.saved_model.load(export.run(options))
    inputs = {"question": [q for q, _ in asked], "context": [c for _, c in asked]}
    found = saved.signatures["serving_text"](**{name: tf.constant(value) for name, value in inputs.items()})
    wanted = expected_answers(made, asked, version_2=True, null_score_diff_threshold=threshold).predictions
    assert [" ".join(answer.decode().split()) for answer in found["answer"].numpy()] == list(wanted.values())
    none = np.array([not text for text in wanted.values()])
    assert 20 < none.sum() < 40
    assert (found["start"].numpy()[none] == -1).all() and (found["end"].numpy()[none] == -1).all()


def test_words_that_run_squad_cannot_find_again(exported):
    """Where an answer holds [UNK], run_squad.py gives the whole words it touches. The graph knows the very place."""
    made, asked = exported("squad"), questions(100, seed=13, others=("(Oslo)", "x.y", "Rome,"))
    found = made.ask("serving_text", question=[q for q, _ in asked], context=[c for _, c in asked])
    answers = [" ".join(answer.decode().split()) for answer in found["answer"]]
    # "empty" is what run_squad.py answers where no span can be an answer.
    wanted = [text if text != "empty" else "" for text in expected_answers(made, asked).predictions.values()]
    assert 1 < sum(a != b for a, b in zip(answers, wanted, strict=True)) < 40
    for answer, whole in zip(answers, wanted, strict=True):
        assert answer == whole or (answer in whole and "[UNK]" in made.tokenizer.tokenize(answer))


def test_the_best_span_of_ids(exported):
    """All pairs are tried in Python, with as many best ends as there are positions."""
    made, inputs = exported("squad"), rows((3, 17, 9, 24, 4, 8), seed=8)
    inputs["input_ids"][4, 2] = 7  # a row with one [SEP] only, at its end: no context
    found = made.ask("serving_default", **inputs)
    for row, length in enumerate(inputs["input_mask"].sum(1)):
        ids = list(inputs["input_ids"][row, :length])
        context = range(ids.index(SEP) + 1, length - 1)
        logits = [found[name][row].astype(np.float64) for name in ("start_logits", "end_logits")]
        best = [np.argsort(-part, kind="stable")[:8] for part in logits]
        spans = [(s, e) for s in best[0] for e in best[1] if s in context and e in context and 0 <= e - s < 4]
        start, end = max(spans, key=lambda span: logits[0][span[0]] + logits[1][span[1]], default=(0, 0))
        assert (found["start"][row], found["end"][row]) == (start, end)
        assert found["score"][row] == pytest.approx(logits[0][start] + logits[1][end], abs=1e-5)
    assert found["end"][4] == 0 < found["end"][3]


# Words with labels


def expected_tags(made: Exported, words: list[list[str]]) -> list[list[str]]:
    sentences = [ner.NerSentence(sentence) for sentence in words]
    features = ner.convert_sentences_to_features(sentences, TAGS, made.options.max_seq_length, made.tokenizer)
    assert len(features) == len(sentences)  # windows are run_ner.py's only
    records = [ner.as_record(feature) for feature in features]
    inputs = {name: np.array([record[name] for record in records], np.int32) for name in signatures.IDS}
    return ner.assemble_tags(sentences, features, made.model.outputs(inputs)["predictions"].numpy(), TAGS)


def test_words_and_entities_are_those_of_run_ner(exported):
    made = exported("ner")
    draw = random.Random(4)
    letters = [*toy_data.PLACES, *toy_data.NAMES, *toy_data.OTHERS[:12], "Playing", "Zoë", "北", "."]
    words = [[word.title() for word in draw.choices(letters, k=draw.randrange(1, 15))] for _ in range(80)]
    texts = [" ".join(sentence) for sentence in words]
    tags = expected_tags(made, words)
    answers = export.load(made.folder)(texts)
    assert [answer["words"] for answer in answers] == words
    assert [answer["labels"] for answer in answers] == tags
    entities = [ner_scores.entities(sentence) for sentence in tags]
    assert sum(first < last for sentence in entities for _, first, last in sentence) > 5
    assert any(tag == "O" for sentence in tags for tag in sentence)
    for text, answer, found in zip(texts, answers, entities, strict=True):
        assert [text[a:b] for a, b in zip(answer["starts"], answer["ends"], strict=True)] == answer["words"]
        spans = [(answer["starts"][first], answer["ends"][last]) for _, first, last in found]
        assert list(zip(answer["entity_starts"], answer["entity_ends"], strict=True)) == spans
        assert answer["entities"] == [text[a:b] for a, b in spans]
        assert answer["entity_labels"] == [kind for kind, _, _ in found]
        assert ((answer["probabilities"] > 1 / len(TAGS)) & (answer["probabilities"] < 1)).all()


def test_a_word_that_is_cut_keeps_its_end(exported):
    """22 pieces fit; the word of which only the first one does is there as a whole, and the next one is not."""
    answer = export.load(exported("ner").folder)("a " * 20 + "film playing now")
    assert answer["words"][-2:] == ["film", "playing"]
    assert len(answer["words"]) == 22


@pytest.mark.parametrize(
    ("labels", "tags"),
    [
        (("O", "B-X", "I-X", "E-X", "S-X", "I-Y", "S-Y"), ("O", "B-X", "I-X", "E-X", "S-X", "I-Y", "S-Y")),
        (("O", "X", "Y-Z"), ("O", "I-X", "I-Y-Z")),
    ],
)
def test_entities_are_grouped_as_for_the_scores(labels, tags):
    grouping = signatures._Grouping.of(labels)
    draw = random.Random(1)
    sentences = [draw.choices(range(len(tags)), k=draw.randrange(1, 9)) for _ in range(300)]
    labels = tf.constant([label for sentence in sentences for label in sentence])
    rows = tf.repeat(tf.range(300), [len(sentence) for sentence in sentences])
    first, last = (part.numpy().tolist() for part in grouping.entities(labels, rows))
    wanted, begin = [], 0
    for sentence in sentences:
        found = ner_scores.entities([tags[label] for label in sentence])
        wanted += [(begin + start, begin + end, kind) for kind, start, end in found]
        begin += len(sentence)
    kinds = [kind.decode() for kind in grouping.types.numpy()]
    assert [(a, b, kinds[labels[a]]) for a, b in zip(first, last, strict=True)] == wanted


# Requests that are not well-formed


def raw(made: Exported, signature: str, **inputs) -> str:
    """Runs a signature's function on tensors of any shape, as a C client can; returns the message of its error."""
    function = made.saved.signatures[signature]
    names = [argument.name.partition(":")[0] for argument in function.inputs[: len(inputs)]]
    arguments = [tf.constant(inputs[name]) for name in names]
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        tf.raw_ops.StatefulPartitionedCall(
            args=[*arguments, *function.captured_inputs],
            Tout=[tensor.dtype for tensor in function.outputs],
            f=function.function_def.signature.name,
        )
    return raised.value.message


GOOD = {"input_ids": [[2, 5, 3]], "input_mask": [[1, 1, 1]], "segment_ids": [[0, 0, 0]]}
BAD_IDS = [
    ({"input_ids": [2, 5, 3]}, "input_ids has 1 dimensions; a matrix is needed"),
    ({"input_ids": 2}, "input_ids has 0 dimensions"),
    ({"input_ids": [[[2, 5, 3]]]}, "input_ids has 3 dimensions"),
    ({"input_mask": [1, 1, 1]}, "input_mask has 1 dimensions"),
    ({"segment_ids": [[[0, 0, 0]]]}, "segment_ids has 3 dimensions"),
    ({"input_mask": [[1, 1]]}, r"input_mask has the shape \[1 2\], but input_ids the shape \[1 3\]"),
    ({"segment_ids": [[0] * 3] * 2}, r"segment_ids has the shape \[2 3\], but input_ids the shape \[1 3\]"),
    (dict.fromkeys(GOOD, np.zeros([0, 3], np.int32)), "the batch is empty: input_ids has no row"),
    (dict.fromkeys(GOOD, np.zeros([2, 0], np.int32)), "the rows of input_ids are empty; each needs a token"),
    (
        {name: [[1] * (POSITIONS + 1)] for name in GOOD},
        rf"input_ids hold {POSITIONS + 1} tokens; the model reads {POSITIONS} at most",
    ),
    ({"input_ids": [[2, CONFIG.vocab_size, 3]]}, rf"row 0 of input_ids holds {CONFIG.vocab_size}; the ids .* 0 to 36"),
    ({"input_ids": [[2, -1, 3]]}, "row 0 of input_ids holds -1"),
    ({"input_ids": [[2, -(2**31), 3]]}, "row 0 of input_ids holds -2147483648"),
    ({"input_mask": [[1, 2, 0]]}, "row 0 of input_mask holds 2; it is 1 for tokens and 0 for padding"),
    ({"input_mask": [[1, -1, 0]]}, "row 0 of input_mask holds -1"),
    ({"input_mask": [[0, 0, 0]]}, "row 0 has no token at its beginning: input_mask is 0 there"),
    ({"segment_ids": [[0, 2, 0]]}, "row 0 of segment_ids holds 2; the model knows segments 0 to 1"),
]


@pytest.mark.parametrize(("change", "message"), BAD_IDS)
def test_bad_ids(exported, change, message):
    made = exported("classifier")
    assert re.search(message, raw(made, "serving_default", **{**GOOD, **change}))


@pytest.mark.parametrize("task", export.TASKS)
def test_every_task_turns_bad_ids_away(exported, task):
    made = exported(task)
    assert "input_ids has 1 dimensions" in raw(made, "serving_ids", input_ids=[2, 3])
    assert "row 1 of input_ids holds 99" in raw(made, "serving_ids", input_ids=[[2, 3], [2, 99]])
    assert "row 1 has no token at its beginning: it begins with [PAD]" in raw(
        made, "serving_ids", input_ids=[[2, 3], [0, 0]]
    )
    assert "row 0 of input_ids holds 37" in raw(made, "serving_default", **{**GOOD, "input_ids": [[2, 37, 3]]})


BAD_TEXTS = [
    (["a", ""], "row 1 of {} is empty"),
    (["a", " \t\u200b"], "row 1 of {} is empty: it holds nothing but blanks"),
    (["a", b"caf\xe9"], "row 1 of {} is not valid UTF-8"),
    (["a", "x" * (4 * 2**20 + 1)], "row 1 of {} has 4194305 bytes; 4194304 are allowed"),
    (tf.constant([], tf.string), "the batch is empty: {} has no row"),
    ([["a"]], "{} has 2 dimensions; a vector is needed"),
    ("a", "{} has 0 dimensions"),
]


@pytest.mark.parametrize(("texts", "message"), BAD_TEXTS)
@pytest.mark.parametrize("task", export.TASKS)
def test_bad_texts(exported, task, texts, message):
    made, texts = exported(task), tf.constant(texts)
    if task != "squad":
        assert message.format("text_a") in raw(made, "serving_text", text_a=texts)
        return
    as_good = tf.fill(tf.shape(texts), "film")
    assert message.format("question") in raw(made, "serving_text", question=texts, context=as_good)
    if texts.shape == [2]:  # otherwise it is the question again that is named
        assert message.format("context") in raw(made, "serving_text", question=as_good, context=texts)


def test_pairs_must_be_pairs(exported):
    message = raw(exported("classifier"), "serving_text_pair", text_a=["a", "b"], text_b=["c"])
    assert "text_b has the shape [1], but text_a the shape [2]" in message
    message = raw(exported("classifier"), "serving_text_pair", text_a=["", "b"], text_b=["c", ""])
    assert "row 0 of text_a is empty" in message


def test_a_text_of_a_megabyte_is_cut(exported):
    made = exported("classifier")
    text = "good film " * 100_000
    assert_outputs(made.ask("serving_text", text_a=[text]), made.ask("serving_text", text_a=[text[:300]]))


def test_a_context_can_be_too_long(exported):
    message = raw(exported("squad"), "serving_text", question=["where ?"] * 2, context=["film", "film " * 2000])
    assert re.search(r"row 1 of context takes \d+ windows of the model; 64 are allowed", message)


@pytest.mark.parametrize("task", export.TASKS)
def test_padding_of_tensorflow_serving_is_padding(exported, task):
    """`pad_variable_length_inputs` fills with the first value of each tensor: [CLS], 1 and 0."""
    made, inputs = exported(task), rows((9, 9, 6))
    longer = rows((20,), seed=4)
    filled = {name: np.pad(value, [(0, 0), (0, 11)], constant_values=value[0, 0]) for name, value in inputs.items()}
    batch = {name: np.concatenate([filled[name], longer[name]]) for name in inputs}
    properly = {name: np.pad(value, [(0, 0), (0, 11)]) for name, value in inputs.items()}
    wanted = {name: np.concatenate([properly[name], longer[name]]) for name in inputs}
    assert_outputs(made.ask("serving_default", **batch), expected_outputs(made, wanted))
    assert_outputs(
        made.ask("serving_ids", input_ids=batch["input_ids"]), made.ask("serving_ids", input_ids=wanted["input_ids"])
    )


@pytest.mark.parametrize("ids", [[5, 7, 3, 2, 2], [2, 7, 7, 2, 2], [2, 2, 2, 2, 2]])
def test_other_rows_that_end_in_cls_are_left_alone(exported, ids):
    made = exported("features")
    inputs = {"input_ids": np.array([ids], np.int32)}
    inputs |= {"input_mask": np.ones_like(inputs["input_ids"]), "segment_ids": np.zeros_like(inputs["input_ids"])}
    assert_outputs(made.ask("serving_default", **inputs), expected_outputs(made, inputs))


# The folder


def test_what_lies_in_the_folder(exported):
    made = exported("ner")
    found = {str(path.relative_to(made.folder)) for path in pathlib.Path(made.folder).rglob("*") if path.is_file()}
    assert found - {"fingerprint.pb"} == {
        "saved_model.pb",
        "model_info.json",
        "assets/vocab.txt",
        "assets/label_map.json",
        "assets.extra/tf_serving_warmup_requests",
        "variables/variables.index",
        "variables/variables.data-00000-of-00001",
    }
    assert pathlib.Path(made.folder).name == "1"
    assert load_label_map(f"{made.folder}/assets").labels == TAGS
    assert pathlib.Path(made.folder, "assets/vocab.txt").read_text().split() == toy_data.VOCAB


@pytest.mark.parametrize("task", export.TASKS)
def test_model_info_says_what_it_is(exported, task):
    made = exported(task)
    info = made.info
    assert info["task"] == task
    assert info["checkpoint"]["name"] == "model.ckpt-7" and info["checkpoint"]["global_step"] == 7
    assert info["config"] == CONFIG.to_dict()
    assert (info["max_seq_length"], info["do_lower_case"], info["precision"]) == (24, True, "float32")
    assert info["versions"].keys() == {"bert_tf2", "tensorflow", "keras", "tensorflow-text"}
    assert str(made.weights.parent) not in json.dumps(info)
    assert info["signatures"].keys() == made.saved.signatures.keys()
    for name, described in info["signatures"].items():
        outputs = made.saved.signatures[name].structured_outputs
        assert described["outputs"].keys() == outputs.keys()
        for output, tensor in outputs.items():
            assert described["outputs"][output] == {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()}
            assert tensor.shape[0] is None  # the batch, for the server's batcher
    assert info["custom_ops"] and not any(hasattr(tf.raw_ops, name) for name in info["custom_ops"])


def test_the_checksum_is_of_the_weights(exported, tmp_path):
    """Not of the file, nor of what starts fresh beside them."""
    made = exported("classifier")
    save_label_map(str(tmp_path), LabelMap("stars", LABELS, False))
    checkpoint.save(str(tmp_path / "again"), checkpoint.tf1_variables(made.model))
    options = make_options(tmp_path, "classifier", tmp_path / "again", text_signatures=False)
    same = json.loads(pathlib.Path(export.run(options), "model_info.json").read_text())["checkpoint"]
    assert same["sha256"] == made.info["checkpoint"]["sha256"] and same["name"] == "again"
    changed = {**checkpoint.tf1_variables(made.model), "output_bias": tf.Variable([1.0, 2.0, 3.0])}
    checkpoint.save(str(tmp_path / "again"), changed)
    other = json.loads(pathlib.Path(export.run(options), "model_info.json").read_text())["checkpoint"]
    assert other["sha256"] != same["sha256"]


def test_without_text_signatures_there_is_no_custom_op(exported, tmp_path):
    made = exported("classifier")
    folder = export.run(make_options(tmp_path, "classifier", made.weights, text_signatures=False))
    graph = saved_model_files.read_graph(folder)
    assert saved_model_files.signature_names(graph) == ["serving_default", "serving_ids"]
    assert saved_model_files.custom_ops(graph) == []
    with pytest.raises(UserError, match="exported with --text_signatures=false"):
        export.load(folder)


@pytest.mark.parametrize("task", export.TASKS)
def test_warmup_requests_run(exported, task):
    """Read with the class that TensorFlow Serving has, of another project."""
    prediction_log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    made = exported(task)
    asked = []
    for record in tf.data.TFRecordDataset(f"{made.folder}/assets.extra/tf_serving_warmup_requests"):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        assert log.WhichOneof("log_type") == "predict_log"
        request = log.predict_log.request
        signature = made.saved.signatures[request.model_spec.signature_name]
        inputs = {name: tf.constant(tf.make_ndarray(value)) for name, value in request.inputs.items()}
        outputs = signature(**inputs)
        assert {value.shape[0] for value in outputs.values()} == {value.shape[0] for value in inputs.values()}
        asked.append(request.model_spec.signature_name)
    assert sorted(asked) == sorted([*made.saved.signatures] * 2)


def test_saved_model_cli_runs_it(exported, tmp_path):
    """As a user would, in another process. It cannot load the operations of tensorflow-text, so without these."""
    made, inputs = exported("classifier"), rows((4, 3))
    folder = export.run(make_options(tmp_path, "classifier", made.weights, text_signatures=False))
    program = pathlib.Path(sys.executable).with_name("saved_model_cli")
    if not program.exists():
        pytest.skip("TensorFlow's console scripts are not beside this Python")
    for name, value in inputs.items():
        np.save(tmp_path / f"{name}.npy", value)
    arguments = ";".join(f"{name}={tmp_path}/{name}.npy" for name in inputs)
    done = subprocess.run(
        [program, "run", "--dir", folder, "--tag_set", "serve", "--signature_def", "serving_default",
         "--inputs", arguments, "--outdir", tmp_path],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONSTARTUP": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    wanted = expected_outputs(made, inputs)
    np.testing.assert_allclose(np.load(tmp_path / "probabilities.npy"), wanted["probabilities"], **CLOSE)


def test_versions_are_counted(exported, tmp_path):
    made = exported("classifier")
    for name in ("2", "9", "x", ".12.partial"):
        (tmp_path / "export" / name).mkdir(parents=True)
    options = make_options(tmp_path, "classifier", made.weights, text_signatures=False)
    assert export.run(options) == str(tmp_path / "export" / "10")
    assert export.run(options) == str(tmp_path / "export" / "11")


def test_a_version_appears_when_it_is_complete(exported, tmp_path, monkeypatch):
    made = exported("classifier")
    target = tmp_path / "export"
    seen = []

    def look(*arguments):
        seen.append(sorted(path.name for path in target.iterdir()))
        if len(seen) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(saved_model_files, "write_warmup", look)
    options = make_options(tmp_path, "classifier", made.weights, text_signatures=False)
    with pytest.raises(KeyboardInterrupt):
        export.run(options)
    assert list(target.iterdir()) == []
    export.run(options)
    assert [path.name for path in target.iterdir()] == ["1"]
    assert [[name.isdecimal() for name in names] for names in seen] == [[False], [False]]


def test_a_number_that_is_taken_meanwhile_is_passed_over(tmp_path):
    with export._next_version(str(tmp_path)) as folder:
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "saved_model.pb").touch()
        pathlib.Path(folder.beside, "mine").touch()
    assert folder.path == str(tmp_path / "2")
    assert (tmp_path / "2" / "mine").exists() and sorted(os.listdir(tmp_path)) == ["1", "2"]


def test_what_a_killed_export_left_is_left_alone_and_named(exported, tmp_path, log_lines):
    """It may be the work of another machine or container, which can have the same process number."""
    for name in (f".{os.getpid()}.partial", "README"):
        (tmp_path / "export" / name).mkdir(parents=True)
    options = make_options(tmp_path, "classifier", exported("classifier").weights, text_signatures=False)
    assert export.run(options) == str(tmp_path / "export" / "1")
    assert sorted(os.listdir(tmp_path / "export")) == [f".{os.getpid()}.partial", "1", "README"]
    assert any(f"export: .{os.getpid()}.partial: of an export that still runs, or was killed" in x for x in log_lines)


def test_what_a_killed_export_of_this_machine_left_is_removed(tmp_path, log_lines):
    killed = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    alive = outputs.name_beside(str(tmp_path / "version-12"))
    left = pathlib.Path(alive.replace(str(os.getpid()), killed.stdout.strip()))
    left.mkdir()
    (left / "saved_model.pb").write_bytes(bytes(5000))
    with export._next_version(str(tmp_path)) as folder:
        pass
    assert os.listdir(tmp_path) == [os.path.basename(folder.path)]
    assert any(f"Removed {left} (5.0 kB)" in line for line in log_lines)


def test_two_exports_write_to_different_folders(tmp_path):
    with export._next_version(str(tmp_path)) as one, export._next_version(str(tmp_path)) as other:
        assert one.beside != other.beside
        pathlib.Path(one.beside, "one").touch()
    assert (sorted(os.listdir(tmp_path)), os.listdir(one.path)) == (["1", "2"], ["one"])


def test_a_number_that_is_taken_meanwhile_on_a_remote_file_system(monkeypatch):
    """Such a file system raises TensorFlow's exceptions, not Python's; `ram://`, which is its own, would overwrite."""
    there = f"ram://{os.getpid()}/export"
    rename = tf.io.gfile.rename

    def refuse(source, target):
        if tf.io.gfile.exists(target):
            raise tf.errors.AlreadyExistsError(None, None, target)
        rename(source, target)

    monkeypatch.setattr(tf.io.gfile, "rename", refuse)
    with export._next_version(there) as folder:
        tf.io.gfile.GFile(f"{folder.beside}/mine", "w").close()
        tf.io.gfile.makedirs(f"{there}/1")
        names = [[], ["1"]]
        monkeypatch.setattr(export.files, "list_directory", lambda path: names.pop(0))
    assert folder.path == f"{there}/2"


def test_a_full_disk(exported, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saved_model_files, "write_warmup", fail)
    options = make_options(tmp_path, "classifier", exported("classifier").weights, text_signatures=False)
    with pytest.raises(UserError, match=r"export: cannot be written: No space left on device"):
        export.run(options)
    assert os.listdir(tmp_path / "export") == []


# What cannot be exported


@pytest.mark.parametrize(
    ("task", "missing"),
    [("classifier", "output_weights, output_bias"), ("squad", "cls/squad/output_weights"), ("ner", "output_weights"),
     ("masked_lm", "cls/predictions/")],
)  # fmt: skip
def test_no_head_is_exported_that_nobody_trained(exported, tmp_path, task, missing):
    labels = exported("ner" if task == "ner" else "classifier").weights.parent / "label_map.json"
    options = make_options(tmp_path, task, exported("features").weights, label_map=str(labels))
    with pytest.raises(UserError, match=f"model.ckpt-7: cannot be exported for the task {task}, it has no .*{missing}"):
        export.run(options)
    assert not (tmp_path / "export").exists()


def test_features_without_a_pooler(exported, tmp_path, log_lines):
    made = exported("features")
    variables = {name: v for name, v in checkpoint.tf1_variables(made.model).items() if "pooler" not in name}
    checkpoint.save(str(tmp_path / "encoder.ckpt"), variables)
    folder = export.run(make_options(tmp_path, "features", tmp_path / "encoder.ckpt", text_signatures=False))
    (outputs,) = {
        tuple(s["outputs"])
        for s in json.loads(pathlib.Path(folder, "model_info.json").read_text())["signatures"].values()
    }
    assert outputs == ("mean_pooled", "sequence_output")
    assert any("has no pooler, so there will be no output pooled_output" in line for line in log_lines)
    classifier = exported("classifier")
    variables = {name: v for name, v in checkpoint.tf1_variables(classifier.model).items() if "pooler" not in name}
    checkpoint.save(str(tmp_path / "model.ckpt"), variables)
    options = make_options(tmp_path, "classifier", tmp_path / "model.ckpt", labels=LabelMap("x", LABELS, False))
    with pytest.raises(UserError, match=r"it has no bert/pooler/dense/kernel, bert/pooler/dense/bias"):
        export.run(options)


def test_labels_must_be_known_and_as_many_as_outputs(exported, tmp_path):
    made = exported("classifier")
    checkpoint.save(str(tmp_path / "model.ckpt"), checkpoint.tf1_variables(made.model))
    with pytest.raises(
        UserError, match=r'model.ckpt: no label_map.json lies beside it.* give --label_map.*"labels": \["0", "1"\]'
    ):
        export.run(make_options(tmp_path, "classifier", tmp_path / "model.ckpt"))
    two = tmp_path / "two.json"
    two.write_text('{"task": "mrpc", "labels": ["0", "1"], "regression": false}')
    with pytest.raises(UserError, match=r"two.json: names labels 0, 1, but the checkpoint .*model.ckpt has 3 outputs"):
        export.run(make_options(tmp_path, "classifier", tmp_path / "model.ckpt", label_map=str(two)))
    tags = str(exported("ner").weights.parent / "label_map.json")
    with pytest.raises(UserError, match="is for the task ner, which --task=classifier does not fit"):
        export.run(make_options(tmp_path, "classifier", tmp_path / "model.ckpt", label_map=tags))
    with pytest.raises(UserError, match=r"gone.json: no such file"):
        export.run(make_options(tmp_path, "classifier", tmp_path / "model.ckpt", label_map=str(tmp_path / "gone.json")))
    other = tmp_path / "other.json"
    other.write_text('{"task": "mine", "labels": ["x", "y", "z"], "regression": false}')
    folder = export.run(make_options(tmp_path, "classifier", tmp_path / "model.ckpt", label_map=str(other)))
    assert export.load(folder)("a film")["label"] in "xyz"


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("classifier", {"max_seq_length": POSITIONS + 1}, f"--max_seq_length={POSITIONS + 1} is more than the model"),
        ("classifier", {"max_seq_length": 2}, "--max_seq_length=2: "),
        ("squad", {"max_query_length": 22}, "--max_seq_length=24 must be greater than --max_query_length=22"),
        ("masked_lm", {"top_k": CONFIG.vocab_size + 1}, "--top_k=38: must be from 1 to 37"),
        ("sentiment", {}, "--task=sentiment: there is no such task; the tasks are features, classifier, squad"),
        ("features", {"init_checkpoint": "gone"}, "gone: no such checkpoint"),
    ],
)
def test_settings_that_do_not_fit(exported, tmp_path, task, change, message):
    known = task if task in export.TASKS else "features"
    options = make_options(tmp_path, known, exported(known).weights, **change)
    with pytest.raises(UserError, match=message):
        export.run(dataclasses.replace(options, task=task))
    assert not (tmp_path / "export").exists()


def test_an_export_dir_that_cannot_be_written(exported, tmp_path):
    (tmp_path / "file").touch()
    options = make_options(tmp_path, "features", exported("features").weights, export_dir=str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot make the folder"):
        export.run(options)


def test_default_lengths(exported, tmp_path):
    made = exported("features")
    folder = export.run(make_options(tmp_path, "features", made.weights, max_seq_length=None, text_signatures=False))
    assert json.loads(pathlib.Path(folder, "model_info.json").read_text())["max_seq_length"] == POSITIONS < 128


# In bfloat16


@pytest.mark.parametrize(("task", "output"), [("classifier", "probabilities"), ("masked_lm", "scores")])
def test_bfloat16(exported, tmp_path, task, output):
    made, inputs = exported(task), rows()
    folder = export.run(make_options(tmp_path, task, made.weights, precision="bfloat16", text_signatures=False))
    assert json.loads(pathlib.Path(folder, "model_info.json").read_text())["precision"] == "bfloat16"
    saved = tf.saved_model.load(folder)
    found = saved.signatures["serving_default"](**{name: tf.constant(value) for name, value in inputs.items()})
    assert found[output].dtype == tf.float32
    np.testing.assert_allclose(found[output], expected_outputs(made, inputs)[output], atol=0.05)

    def size(folder: str) -> int:
        return sum(path.stat().st_size for path in pathlib.Path(folder, "variables").glob("*.data*"))

    assert size(folder) < 0.75 * size(made.folder)


# Back into Python


def test_load_answers_texts(exported):
    made = exported("classifier")
    for path in (made.folder, str(pathlib.Path(made.folder).parent)):
        model = export.load(path)
    found = made.ask("serving_text_pair", text_a=TEXTS, text_b=SECONDS)
    answers = model(list(zip(TEXTS, SECONDS, strict=True)), batch_size=2)
    assert [answer["label"] for answer in answers] == [label.decode() for label in found["label"]]
    np.testing.assert_allclose([answer["probabilities"] for answer in answers], found["probabilities"], **CLOSE)
    single = model(TEXTS[0])
    np.testing.assert_allclose(
        single["probabilities"], made.ask("serving_text", text_a=TEXTS[:1])["probabilities"][0], **CLOSE
    )
    mixed = model([TEXTS[0], (TEXTS[1], "bad")])
    np.testing.assert_allclose(mixed[0]["probabilities"], single["probabilities"], **CLOSE)
    pair = model(TEXTS[1], "bad")
    np.testing.assert_allclose(mixed[1]["probabilities"], pair["probabilities"], **CLOSE)
    np.testing.assert_allclose(model((TEXTS[1], "bad"))["probabilities"], pair["probabilities"], **CLOSE)
    assert model([]) == []


def test_load_leaves_filling_out(exported):
    features = export.load(exported("features").folder)(["film", "the film was good"])
    assert [answer["tokens"] for answer in features] == [
        ["[CLS]", "film", "[SEP]"],
        ["[CLS]", *"the film was good".split(), "[SEP]"],
    ]
    assert [answer["sequence_output"].shape for answer in features] == [(3, 16), (6, 16)]
    words = export.load(exported("masked_lm").folder)(["a [MASK]", "[MASK] is [MASK]", "none"])
    assert [answer["positions"] for answer in words] == [[2], [1, 3], []]
    assert [len(answer["tokens"]) for answer in words] == [1, 2, 0]
    assert all(
        len(row) == 3 and abs(scores.sum()) <= 1
        for answer in words
        for row, scores in zip(answer["tokens"], answer["scores"], strict=True)
    )
    answer = export.load(exported("squad").folder)("where ?", "Bob is in Oslo")
    assert "Bob is in Oslo"[answer["start"] : answer["end"]] == answer["answer"]


@pytest.mark.parametrize(
    ("task", "texts", "message"),
    [
        ("classifier", ["a", ""], "row 1 of text_a is empty"),
        ("classifier", ["a"] * 40 + [" "], "row 40 of text_a is empty"),
        ("classifier", [("a", "b", "c")], r"row 0 is \('a', 'b', 'c'\); .*classifier takes a text or a pair of texts"),
        ("classifier", ["a", 7], "row 1 is 7"),
        ("classifier", b"a film", "^b'a film' is given; a model of the task classifier takes a text or a pair"),
        ("classifier", {"text_a": "a film"}, "^{'text_a': 'a film'} is given; "),
        ("classifier", None, "^None is given; "),
        ("classifier", "\ud800", "half a character, U\\+D800"),
        ("ner", ("a", "b"), "a model of the task ner takes a text$"),
        ("squad", "a", r"squad takes a pair \(question, context\)"),
        ("squad", ("a", ""), "row 0 of context is empty"),
    ],
)
def test_load_explains_bad_texts(exported, task, texts, message):
    with pytest.raises(UserError, match=message):
        export.load(exported(task).folder)(texts)


def test_load_knows_an_export(exported, tmp_path):
    for path in (tmp_path, tmp_path / "gone", exported("ner").weights.parent):
        with pytest.raises(UserError, match=r"is no export \(there is no model_info.json\)"):
            export.load(str(path))
    shutil.copytree(exported("ner").folder, tmp_path / "export/1")
    assert export.load(tmp_path / "export")("Bob")["words"] == ["Bob"]
    (tmp_path / "export/2").mkdir()
    with pytest.raises(UserError, match=r"export/2: is no export"):  # and a server would take that one too
        export.load(tmp_path / "export")
    with pytest.raises(ValueError, match="batch_size is -1"):
        export.load(tmp_path / "export/1")(["Bob"], batch_size=-1)


def shorten(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("model_info.json", shorten),
        ("model_info.json", lambda path: path.write_text("[1]")),
        ("model_info.json", lambda path: path.write_text("{}")),
        ("model_info.json", lambda path: path.write_text('{"text_signatures": true}')),
        ("saved_model.pb", shorten),
        ("saved_model.pb", lambda path: path.write_bytes(b"")),
        ("saved_model.pb", pathlib.Path.unlink),
        ("variables/variables.index", shorten),
        ("variables/variables.data-00000-of-00001", shorten),
        ("variables/variables.data-00000-of-00001", pathlib.Path.unlink),
    ],
)
def test_load_says_that_an_export_is_damaged(exported, tmp_path, file, damage):
    shutil.copytree(exported("ner").folder, tmp_path / "1")
    damage(tmp_path / "1" / file)
    with pytest.raises(UserError, match=r"is damaged|is the file complete\?|is needed in this JSON file") as raised:
        export.load(tmp_path)
    assert "\n" not in str(raised.value)


def test_load_says_nothing_on_success(exported, log_lines):
    folder = exported("masked_lm").folder
    log_lines.clear()  # of what the export itself said, if it was made just now
    export.load(folder)
    assert log_lines == []


# From the command line


def test_do_export_without_weights(tmp_path):
    files = toy_data.write_model(tmp_path)
    options = SquadOptions(**files, **SETTINGS["squad"], output_dir=str(tmp_path), do_export=True)
    with pytest.raises(UserError, match="holds no checkpoint, and no --init_checkpoint is given"):
        finetune_squad.run(options)


@pytest.mark.parametrize("task", ["squad", "ner", "masked_lm"])
def test_do_export_alone(exported, tmp_path, task):
    """The other scripts, with nothing to train: the weights are those of --init_checkpoint."""
    made = exported(task)
    files = toy_data.write_model(tmp_path, num_hidden_layers=1)
    shared = {**files, "output_dir": str(tmp_path / "out"), "init_checkpoint": str(made.weights), "do_export": True}
    if task == "squad":
        options = SquadOptions(**shared, **SETTINGS[task], version_2_with_negative=True)
        finetune_squad.run(options)
    elif task == "ner":
        finetune_ner.run(NerOptions(**shared, **SETTINGS[task], export_dir=str(tmp_path / "out/export")))
    else:
        pretraining.run(PretrainingOptions(**shared, input_file="not read", max_seq_length=24))
    info = json.loads((tmp_path / "out/export/1/model_info.json").read_text())
    expected = {"squad": {"null_score_diff_threshold": 0.0}, "ner": {}, "masked_lm": {"top_k": 5}}[task]
    wanted = {**made.info, **expected}
    assert info.pop("signatures").keys() == wanted.pop("signatures").keys()
    assert info == wanted


def test_do_export_and_export_saved_model(tmp_path):
    """A classifier is trained, evaluated and exported in one call; the export predicts what the script predicted."""
    toy_data.write_tsv_task(tmp_path / "tables")
    files = toy_data.write_model(tmp_path, num_hidden_layers=1)
    shared = [f"--{name}={value}" for name, value in files.items()]
    flags = {
        "data_dir": "tables",
        "task_name": "tsv",
        "output_dir": "out",
        "max_seq_length": 32,
        **toy_data.TSV_COLUMNS,
    }
    flags |= {"train_batch_size": 16, "learning_rate": 5e-3, "num_train_epochs": 5.0}
    with CommandLines() as command_lines:
        arguments = [*shared, *(f"--{name}={value}" for name, value in flags.items())]
        done = command_lines.run(
            "run_classifier.py", *arguments, "--do_train", "--do_predict", "--do_export", cwd=tmp_path
        )
        assert done.status == 0, done.stderr
        arguments = ["--task=classifier", "--init_checkpoint=out", "--export_dir=out/export", "--max_seq_length=32"]
        again = command_lines.run("export_saved_model.py", *shared, *arguments, cwd=tmp_path)
        assert (again.status, again.stdout) == (0, "out/export/2\n"), again.stderr
    predictions = [line.split("\t") for line in (tmp_path / "out/predictions.tsv").read_text().splitlines()[1:]]
    texts = [line.split("\t")[1] for line in (tmp_path / "tables/test.tsv").read_text().splitlines()[1:]]
    for version in ("1", "2"):
        answers = export.load(str(tmp_path / "out/export" / version))(texts)
        assert [answer["label"] for answer in answers] == [row[1] for row in predictions]
        np.testing.assert_allclose(
            [answer["probabilities"].max() for answer in answers], [float(row[2]) for row in predictions], **CLOSE
        )
    info = [json.loads((tmp_path / "out/export" / v / "model_info.json").read_text()) for v in ("1", "2")]
    assert info[0] == info[1]
