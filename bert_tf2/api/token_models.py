"""Keras models whose `fit`, `evaluate` and `predict` take sentences as lists of words, and questions with paragraphs.

names = bert_tf2.tagger("cased_L-12_H-768_A-12", labels=["O", "B-PER", "I-PER"])
names.fit(sentences, tags, epochs=3)
names.predict([["Ann", "lives", "here"]])       # [["B-PER", "O", "O"]]

reader = bert_tf2.answerer("uncased_L-12_H-768_A-12")
reader.fit((questions, paragraphs), answers, epochs=2)
reader.predict([("Where does Ann live?", "Ann lives in Rome.")])       # [SpanAnswer("Rome", 0.98)]
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf2 import heads
from bert_tf2.api import targets, text_rows
from bert_tf2.api.readers import Reader
from bert_tf2.api.text_models import TextModel
from bert_tf2.api.text_parts import RANDOM_SEED, Parts, span_settings
from bert_tf2.api.text_rows import Batches, Rows
from bert_tf2.api.text_steps import Answers
from bert_tf2.data.rows import INPUTS
from bert_tf2.exporting.tokenize_layer import Tokenize
from bert_tf2.finetuning import ner, squad
from bert_tf2.inference.answering import NER, SQUAD, Answerer, SpanAnswer
from bert_tf2.support import containers
from bert_tf2.support.errors import UserError, naming_arguments
from bert_tf2.support.settings import check_type
from bert_tf2.weights import task_file
from bert_tf2.weights.task_file import LabelMap


class _WindowReader(Reader):
    """Reads texts as windows, which are made as in the scripts; each has max_seq_length tokens.

    A kind has `texts`, which checks x; `answers`, which checks y; and `windows`, which makes the arrays of both; all
    return lists with an entry for each row. A `tf.data.Dataset` is read to its end, and then treated like lists.
    """

    def __init__(self, tokenize: Tokenize, settings: Mapping[str, Any]):
        super().__init__(tokenize)
        self._settings = settings

    def rows(self, x: Any, y: Any = None, sample_weight: Any = None) -> Rows:
        x = self.texts(x)
        return Rows(x, self.answers(self.needed(y), x), targets.weights_of_rows(sample_weight)).counted()

    def arrays(self, rows: Rows) -> tuple:
        """The windows of all rows: features, targets and weights."""
        if not rows.y:
            raise UserError("x: has no texts")
        return self.windows(rows.x, rows.y, np.ones(len(rows.y), np.float32) if rows.weights is None else rows.weights)

    def of_batches(self, x: Any, batch_size: int, shuffle: bool, most: int | None) -> Batches:
        if isinstance(x, tf.data.Dataset):
            return self.of_rows(self.of_dataset(x, most), batch_size, shuffle)
        return text_rows.read_batches(x, self.of_batch, shuffle, most, same_length=True)

    def of_dataset(self, data: tf.data.Dataset, most: int | None) -> Rows:
        """The rows of `most` batches of a dataset."""
        if most is None and data.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise UserError("x: is an endless dataset, which is read before the first step; give data.take(N)")
        batches = [self.rows(*self.parts(batch)) for batch in text_rows.first_batches(data, most)]
        x, y = [row for batch in batches for row in batch.x], [row for batch in batches for row in batch.y]
        weights = [batch.weights for batch in batches if batch.weights is not None]
        return Rows(x, y, np.concatenate(weights) if weights else None)

    def features(self, x: dict[str, tf.Tensor], *others: tf.Tensor) -> tuple[tuple, tf.Tensor]:
        """Removes the last columns of a batch [B, F], which are padding in all rows, unless rows have one length."""
        whole, length = x["input_mask"].shape[1], tf.reduce_max(tf.reduce_sum(x["input_mask"], 1))

        def cut(values: tf.Tensor) -> tf.Tensor:
            return values[:, :length] if whole in values.shape[1:] else values

        found = (x, *others) if self.tokenize.pad_to_max_length else tf.nest.map_structure(cut, (x, *others))
        return found, tf.zeros_like(x["input_mask"][:, 0], tf.bool)


class _WindowModel(Answers, TextModel):
    """A model whose `fit` and `evaluate` have a row for each window of a text; windows are made as in the scripts.

    A `tf.data.Dataset` has batches of x, (x, y) or (x, y, sample_weight). The dataset is read to its end before the
    first step and then treated like lists: `fit` shuffles the windows, and `batch_size` is a number of windows. Each
    batch of a PyDataset or a generator makes one step with all of its windows.
    """

    reads_no_texts = "windows of `dataset`; use `predict`"

    def compile(self, *args, **kwargs) -> None:
        super().compile(*args, **kwargs)
        self._answerer = Answerer(self.model, self.tokenize.tokenizer, self._label_map, self.name)


class _TagReader(_WindowReader):
    """Reads sentences and their tags."""

    def __init__(self, tokenize: Tokenize, settings: Mapping[str, Any], labels: Sequence[str]):
        super().__init__(tokenize, settings)
        self._labels = labels

    def texts(self, x: Any) -> list[list[str]]:
        sentences = text_rows.words_of(x)
        empty = [number for number, words in enumerate(sentences) if not words]
        containers.refuse(empty, "x", f"of {len(sentences)} sentences are empty", "leave these rows out")
        for number, words in enumerate(sentences, 1):
            if not all(isinstance(word, str) for word in words):
                raise UserError(f"sentence {number}: {words!r:.60} is not a list of words")
        return sentences

    def answers(self, y: Any, x: list[list[str]]) -> list[list[str]]:
        numbers, y = targets.numbers_of(self._labels), _without_padding(y, x)
        found = [[self._tag(number, tag) for tag in tags] for number, tags in enumerate(text_rows.words_of(y, "y"), 1)]
        targets.check_labels({tag for tags in found for tag in tags} - numbers.keys(), self._labels)
        return [[self._labels[numbers[tag]] for tag in tags] for tags in found]

    def _tag(self, number: int, tag: Any) -> str | int:
        """The name or the index of a tag, which may be a one-hot vector."""
        if isinstance(tag, str | int | float):
            return tag
        is_one_hot = isinstance(tag, list | tuple) and all(isinstance(part, int | float) for part in tag)
        if not is_one_hot or len(tag) != len(self._labels) or sorted(tag) != [0] * (len(tag) - 1) + [1]:
            raise UserError(
                f"y: sentence {number} has {tag!r:.60}; a tag for each word is needed, or its one-hot vector"
            )
        return [*tag].index(1)

    def of_dataset(self, data: tf.data.Dataset, most: int | None) -> Rows:
        rows, has_texts = super().of_dataset(data, most), tf.nest.flatten(data.element_spec)[0].shape.rank == 1
        if has_texts and rows.count > 1 and all(len(words) == 1 for words in rows.x):
            raise UserError(
                "x: each text of the dataset is a single word; batch sentences with `dataset.ragged_batch(32)`"
            )
        return rows

    def windows(self, x: list[list[str]], y: list[list[str]], weights: np.ndarray) -> tuple:
        """Features and label ids, int32 [windows, F] each, and the float32 weights of the label ids."""
        for number, (words, tags) in enumerate(zip(x, y, strict=True), 1):
            if len(words) != len(tags):
                raise UserError(f"sentence {number}: {len(words)} words, but {len(tags)} tags")
        sentences = [*map(ner.NerSentence, x, y)]
        length, stride, context = map(self._settings.get, ("max_seq_length", "doc_stride", "document_context"))
        tokenizer = self.tokenize.tokenizer
        windows = ner.convert_sentences_to_features(sentences, self._labels, length, tokenizer, stride or None, context)
        found = [*map(ner.as_record, windows)]
        features = {name: np.array([row[name] for row in found], np.int32) for name in (*INPUTS, "label_ids")}
        labels = features.pop("label_ids")
        of_windows = weights[[window.sentence for window in windows]]  # [windows]
        return features, np.maximum(labels, 0), np.where(labels > ner.IGNORED_LABEL_ID, of_windows[:, None], 0)


@keras.saving.register_keras_serializable(package="bert_tf2")
class TagModel(_WindowModel):
    """A tagger of words, made by `bert_tf2.tagger`.

    `x` has sentences: lists of words, or texts with blanks between the words. `y` has a list (or a text) of tags for
    each sentence; tags are names or indexes of labels. `sample_weight` is a number for each sentence. Long sentences
    are read in windows. `predict` returns a list of tags for each sentence.

    Arrays [N, most words] are padded with "" after the words, and with any value after the tags. In a dataset, a batch
    of sentences or tags is strings [B] with blanks, a ragged tensor [B, words], or such an array.
    """

    export_as = "ner"

    def __init__(self, model: keras.Model, tokenize: Tokenize, label_map: LabelMap, settings=None, **kwargs):
        """`settings`: the script's settings that decide an answer."""
        usual = NER | {"max_seq_length": tokenize.max_seq_length}
        super().__init__(model, tokenize, label_map, usual if settings is None else settings, **kwargs)

    def _make_reader(self, loss: Any) -> Reader:
        return _TagReader(self.tokenize, self.settings, self.labels)

    def compile(self, optimizer: Any = None, loss: Any = None, metrics: Any = None, **kwargs) -> None:
        """See TextModel.compile; only the first piece of each word has a weight other than 0."""
        if found := targets.vector_metrics([metrics, kwargs.get("weighted_metrics")]):
            raise UserError(
                f"metrics: {found[0]} compares vectors, but `y` has tags of words; compute it from `predict`"
            )
        loss = loss or keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")
        kwargs = {"weighted_metrics": ["accuracy"], **kwargs}
        super().compile(optimizer, loss, metrics or [], **kwargs)

    def _rows(self, x: Any) -> list[list[str]]:
        return text_rows.words_of(x)

    def _answers(self, x: Any, batch_size: int) -> list[list[str]]:
        return self._answerer.tag(text_rows.words_of(x), self.settings, batch_size)

    def _kept(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"task": self._label_map.task}, dict(self.settings)


def _without_padding(tags: Any, sentences: list[list[str]]) -> Any:
    """The tags of sentences; a row of an array [N, most words, ...] may have any values after its tags."""
    is_array = hasattr(tags, "dtype") and len(tags.shape) > 1 and not isinstance(tags, tf.RaggedTensor)
    if not is_array or tags.shape[1] == 1:  # [N, 1] may have texts
        return tags
    text_rows.check_count("y", tags, len(sentences))
    return [row[: len(words)] for row, words in zip(targets.read(tags, "y")[0], sentences, strict=True)]


def tagger(
    weights: str | os.PathLike[str],
    labels: Sequence[str] | None = None,
    *,
    other_task: bool = False,
    max_seq_length: int | None = None,
    stride: int | None = None,
    bert_config_file: str | os.PathLike[str] | None = None,
    vocab_file: str | os.PathLike[str] | None = None,
    do_lower_case: bool | None = None,
    init_from_layers: Sequence[int] | None = None,
    random_seed: int = RANDOM_SEED,
) -> TagModel:
    """A tagger of words as a Keras model, compiled with the reference's recipe; see `classifier` for the arguments.

    Long sentences are read in windows of `max_seq_length` tokens, which begin `stride` tokens apart; by default as in
    the weights' training, else half a window.

    Raises:
      UserError: as `classifier`.
    """
    found = Parts(weights, (bert_config_file, vocab_file, do_lower_case), init_from_layers)
    tokenize = Tokenize(found.tokenizer, found.length(max_seq_length))
    label_map = found.label_map(labels, other_task, tags=True)
    stride = check_type("stride", stride, int, low=1, optional=True)
    kept = found.kept if "document_context" in found.kept else {}  # else the folder is not a tagger's
    settings = {name: kept.get(name, usual) for name, usual in NER.items()}
    settings["max_seq_length"] = tokenize.max_seq_length
    settings["doc_stride"] = settings["doc_stride"] if stride is None else stride
    model = found.model(heads.TaggingModel, len(label_map.labels), seed=random_seed)
    return TagModel(model, tokenize, label_map, settings)


class _SpanReader(_WindowReader):
    """Reads questions with paragraphs, and their answers."""

    def parts(self, batch: Any) -> tuple:
        """As in the base; a tuple of two columns is x."""
        is_x = isinstance(batch, tuple) and len(batch) == 2 and len(getattr(batch[0], "shape", ())) == 1
        return super().parts((batch,) if is_x else batch)

    def answers(self, y: Any, x: Any) -> list[tuple[str, int | None]]:
        """(answer, the index of its first character or None) for each question."""
        if isinstance(y, tuple) and len(y) == 2 and not any(isinstance(part, str | tuple) for part in y):
            y = [*zip(*(targets.read(part)[0] for part in y), strict=True)]
        found = []
        for number, row in enumerate(targets.read(y)[0], 1):
            row = row[0] if isinstance(row, list) and len(row) == 1 else row  # of an array [N, 1]
            row = (row, None) if isinstance(row, str) else row
            is_good = isinstance(row, tuple | list) and [isinstance(part, str) for part in row] == [True, False]
            if is_good and row[1] is not None:
                is_good = isinstance(row[1], numbers.Real) and float(row[1]).is_integer()
            if not is_good:
                raise UserError(f"y: question {number} has {row!r:.60}; an answer is a text, or a tuple (text, start)")
            found.append((row[0], None if row[1] is None else int(row[1])))
        return found

    def texts(self, x: Any) -> list[tuple[str, str]]:
        pairs = _pairs(x)
        text_rows.refuse_blank(pairs)
        return pairs

    def windows(self, x: Any, y: list[tuple[str, int | None]], weights: np.ndarray) -> tuple:
        """Features, int32 [windows, F] each; the first and last token of the answer, int32 [windows, 2]; weights."""
        found, version_2 = [], self._settings["version_2_with_negative"]
        for number, ((question, context), (text, start)) in enumerate(zip(x, y, strict=True), 1):
            start = context.find(text) if start is None else start
            if text and start + len(text) > len(context):
                raise UserError(f"y: question {number} has {text!r:.60} at {start}, after the end of its paragraph")
            if text and start < 0:
                raise UserError(f"y: the paragraph of question {number} does not have the words {text!r:.60}")
            if not text and not version_2:
                raise UserError(f'y: question {number} has the answer ""; give answerer(..., may_be_missing=True)')
            answer = {"is_impossible": not text, "answers": [{"text": text, "answer_start": start}]}
            found.append({"context": context, "qas": [{"id": number, "question": question, **answer}]})
        examples = squad.examples_of({"data": [{"paragraphs": found}]}, "the questions", True, version_2)
        sizes = (self._settings[name] for name in ("max_seq_length", "doc_stride", "max_query_length"))
        rows = list(squad.convert_examples_to_features(examples, self.tokenize.tokenizer, *sizes, True))
        features = {name: np.array([getattr(row, name) for row in rows], np.int32) for name in INPUTS}
        answers = np.array([(row.start_position, row.end_position) for row in rows], np.int32)
        return features, answers, weights[[row.example_index for row in rows]][:, None]


@keras.saving.register_keras_serializable(package="bert_tf2")
class SpanTextModel(_WindowModel):
    """A model that finds answers in paragraphs, made by `bert_tf2.answerer`.

    `x` has pairs (question, paragraph), or is a tuple of both columns. `y` has for each question an answer, the first
    place in the paragraph with these words; or (answer, start) as in SQuAD; or "" if the paragraph has no answer.
    `sample_weight` is a number for each question. `predict` returns a SpanAnswer for each question: the answer with
    its probability, "" if the paragraph has no answer.

    In a dataset, elements are ((question, paragraph), answer) or ((question, paragraph), (answer, start)): strings [B],
    and the start int [B].
    """

    export_as = "squad"
    answered_at_once = 8

    def _make_reader(self, loss: Any) -> Reader:
        return _SpanReader(self.tokenize, self.settings)

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """The rows of `dataset` -> logits of the first and the last token of the answer, float32 [B, 2, F]."""
        return tf.stack(self.model(inputs, training=training), axis=1)

    def compile(self, optimizer: Any = None, loss: Any = None, metrics: Any = None, **kwargs) -> None:
        """See TextModel.compile; the loss is the mean of the two cross-entropies."""
        loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        super().compile(optimizer, loss, ["accuracy"] if metrics is None else metrics, **kwargs)

    def _rows(self, x: Any) -> list[tuple[str, str]]:
        return _pairs(x)

    def _answers(self, x: Any, batch_size: int) -> list[SpanAnswer]:
        questions, paragraphs = ([pair[place] for pair in _pairs(x)] for place in (0, 1))
        longest = self.model.config.max_position_embeddings
        return self._answerer.answer(questions, paragraphs, self.settings, longest, batch_size)

    def _kept(self) -> tuple[dict[str, Any], dict[str, Any]]:
        kept = dict(self.settings)
        return {"task": "squad", "version_2_with_negative": kept.pop("version_2_with_negative")}, kept


def _pairs(x: Any) -> list[tuple[str, str]]:
    found, _ = containers.texts(x, "x")
    if not all(isinstance(row, tuple) for row in found):
        raise UserError("x: has single texts; each row must be a tuple (question, paragraph)")
    return found


@naming_arguments()
def answerer(
    weights: str | os.PathLike[str],
    *,
    may_be_missing: bool | None = None,
    max_seq_length: int | None = None,
    bert_config_file: str | os.PathLike[str] | None = None,
    vocab_file: str | os.PathLike[str] | None = None,
    do_lower_case: bool | None = None,
    random_seed: int = RANDOM_SEED,
    **settings: Any,
) -> SpanTextModel:
    """Finds the answers to questions in paragraphs: a Keras model, compiled with the reference's recipe.

    Args:
      weights, max_seq_length, bert_config_file, vocab_file, do_lower_case, random_seed: see `classifier`.
      may_be_missing: whether a paragraph may have no answer, as in SQuAD 2.0; defaults to the setting of the weights'
        training, else to False.
      **settings: run_squad.py's `doc_stride`, `max_query_length`, `n_best_size`, `max_answer_length`,
        `null_score_diff_threshold`; default to the settings of the weights' training, else to the script's defaults.

    Raises:
      UserError: as `classifier`, or a setting is unknown or wrong.
    """
    found = Parts(weights, (bert_config_file, vocab_file, do_lower_case))
    found.config.check_pairs("a question and its paragraph")
    length = found.length(max_seq_length, SQUAD["max_seq_length"])
    usual = {"max_query_length": length // 2, "doc_stride": length // 4} if length < SQUAD["max_seq_length"] else {}
    usual = {name: min(SQUAD[name], most) for name, most in usual.items()}
    task = task_file.read(found.source.folder)
    stated = span_settings("answerer", found.kept, task, settings, may_be_missing, **usual)
    stated["max_seq_length"] = length
    squad.check_lengths(length, stated["max_query_length"], stated["doc_stride"])
    model = found.model(heads.SpanModel, seed=random_seed)
    return SpanTextModel(model, Tokenize(found.tokenizer, length), settings=stated)
