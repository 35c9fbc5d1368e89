"""The answers of fine-tuned models to texts from Python: of run_classifier.py, run_ner.py and run_squad.py.

texts -> rows of ids -> `logits` of a row, in batches of like length -> probabilities, tags, or a span
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2 import heads, tokenization
from bert_tf2.data import rows
from bert_tf2.data.rows import Row
from bert_tf2.finetuning import ner, squad
from bert_tf2.finetuning.options import ClassifierOptions, NerOptions, SquadOptions
from bert_tf2.finetuning.tables import shortened
from bert_tf2.inference.extract_features import as_example, convert_examples_to_features
from bert_tf2.long_texts import Windows
from bert_tf2.support.containers import Text
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import check_type, settings_of
from bert_tf2.training import forward
from bert_tf2.training.programs import filling_for
from bert_tf2.weights import text_rules
from bert_tf2.weights.task_file import LabelMap, numbered

# The defaults of the settings of run_squad.py, run_ner.py and run_classifier.py that decide an answer.
SQUAD, NER, CLASSIFIER = (
    {name: stated.flag_default for name, (stated, _, _) in settings_of(cls).items() if stated.kept}
    for cls in (SquadOptions, NerOptions, ClassifierOptions)
)
KEPT = {**CLASSIFIER, **NER, **SQUAD}
_CHINESE_SENTENCE = re.compile("[\u4e00-\u9fff]{8}")  # no word is as long
_MOST_TOKENS = 1 << 16  # the maximum number of tokens of rows that are sorted by length together
_MOST_QUESTIONS = 1 << 10  # the maximum number of questions whose logits are in memory together


class SpanAnswer(NamedTuple):
    """The answer to a question."""

    text: str  # words of the paragraph; "" if the paragraph has no answer
    probability: float  # the probability among the best answers, as in nbest_predictions.json


def pack(tokenizer: tokenization.FullTokenizer, texts: Sequence[Text], max_seq_length: int | None) -> list[Row]:
    """Makes `[CLS] a [SEP]` of a text, `[CLS] a [SEP] b [SEP]` of a pair; cuts long texts, unless None is given.

    Raises UserError.
    """
    found = convert_examples_to_features(map(as_example, itertools.count(), texts), max_seq_length, tokenizer)
    return [Row(one.input_ids[: len(one.tokens)], one.input_type_ids[: len(one.tokens)]) for one in found]


@forward.graph_of
def _logits(model, windows: tuple[Any, ...] | None, batch: heads.Batch) -> Any:
    """The logits of a model of `heads`. `windows`: the fields of Windows; each object would have a graph of its own."""
    return model.of_texts(batch, Windows(*windows)) if windows else model(batch)


class Answerer:
    """A fine-tuned model with its tokenizer; `api.bert.Bert` has its methods for users."""

    def __init__(self, model, tokenizer: tokenization.FullTokenizer, labels: LabelMap | None, path: str):
        self._model = model
        self._tokenizer = tokenizer
        self._labels = labels
        self._path = path

    def classify(
        self, texts: Sequence[Text], max_seq_length: int, batch_size: int, windows: Windows | None
    ) -> list[dict[str, float]]:
        """The probability of each label; for a regression {"score": number}. With `windows`, no text is cut."""
        model = self._of_kind(heads.ClassifierModel, "classify", "classifier", "run_classifier.py")
        packed = pack(self._tokenizer, texts, None if windows else max_seq_length)
        names: Sequence[str] = ["score"]
        if not model.regression:
            names = self._labels.labels if self._labels else numbered(model.num_labels)
            if self._labels:
                self._labels.check_unique(self._path)
        found = (model.probabilities(logits, windows) for logits in self._logits(packed, batch_size, windows))
        if self._labels and self._labels.activation:
            found = map(getattr(tf, self._labels.activation), found)
        return [dict(zip(names, np.asarray(row).tolist(), strict=True)) for row in found]

    def tag(self, sentences: Sequence[Sequence[str]], settings: Mapping[str, Any], batch_size: int) -> list[list[str]]:
        """A tag for each word; the keys of `settings` are the keys of NER."""
        model = self._of_kind(heads.TaggingModel, "tag", "tagger", "run_ner.py")
        for number, words in enumerate(sentences, 1):
            if not isinstance(words, list | tuple) or not all(isinstance(word, str) and word for word in words):
                raise UserError(f"sentence {number}: {words!r:.60} is not a list of words")
        if unsplit := next((word for words in sentences for word in words if _CHINESE_SENTENCE.search(word)), None):
            what = "%r has no blanks, so it is one word with one tag; give list(text) to tag each character"
            logging.warning(what, shortened(unsplit, 30))
        names = self._labels.labels if self._labels else numbered(model.num_labels)
        given = [ner.NerSentence([*words]) for words in sentences]
        length, stride, context = (settings[name] for name in ("max_seq_length", "doc_stride", "document_context"))
        windows = ner.convert_sentences_to_features(given, names, length, self._tokenizer, stride or None, context)
        found = self._logits([Row(w.input_ids, [0] * len(w.input_ids)) for w in windows], batch_size)
        return ner.assemble_tags(given, windows, (logits.argmax(-1) for logits in found), names)

    def answer(
        self,
        questions: Sequence[str],
        paragraphs: Sequence[str],
        settings: Mapping[str, Any],
        longest: int,
        batch_size: int,
    ) -> list[SpanAnswer]:
        """The best span of the paragraph of each question.

        The keys of `settings` are the keys of SQUAD, and `version_2_with_negative`.
        """
        self._of_kind(heads.SpanModel, "answer", "answerer", "run_squad.py")
        for texts in zip(questions, paragraphs, strict=True):
            for name, text in zip(("question", "paragraph"), texts, strict=True):
                # A letter has a token; of other texts, such as U+200B, perhaps nothing is left.
                if not isinstance(text, str) or not (any(map(str.isalnum, text)) or self._tokenizer.tokenize(text)):
                    raise UserError(f"{name}={text!r:.60}: must be a text with words")
        length = min(settings["max_seq_length"], longest)
        limits = {"max_seq_length": length, "max_query_length": length // 2, "doc_stride": length // 4}
        is_cut = length < settings["max_seq_length"]  # the model has fewer positions than the setting
        sizes = {name: min(settings[name], limit) if is_cut else settings[name] for name, limit in limits.items()}
        squad.check_lengths(sizes["max_seq_length"], sizes["max_query_length"], sizes["doc_stride"])
        examples = [
            squad.SquadExample(str(number), question, squad.split_words(paragraph))
            for number, (question, paragraph) in enumerate(zip(questions, paragraphs, strict=True))
        ]
        groups = (examples[start : start + _MOST_QUESTIONS] for start in range(0, len(examples), _MOST_QUESTIONS))
        return [answer for group in groups for answer in self._spans(group, settings, sizes, batch_size)]

    def _spans(
        self,
        examples: Sequence[squad.SquadExample],
        settings: Mapping[str, Any],
        sizes: Mapping[str, int],
        batch_size: int,
    ) -> Iterator[SpanAnswer]:
        windows = list(squad.convert_examples_to_features(examples, self._tokenizer, **sizes, is_training=False))
        packed = [Row(w.input_ids[: len(w.tokens)], w.segment_ids[: len(w.tokens)]) for w in windows]
        results = [
            squad.RawResult(window.unique_id, *logits.T)
            for window, logits in zip(windows, self._logits(packed, batch_size), strict=True)
        ]
        lower = self._tokenizer.basic_tokenizer.do_lower_case
        found = squad.compute_predictions(
            examples, windows, results, settings["n_best_size"], settings["max_answer_length"], lower,
            settings["version_2_with_negative"], settings["null_score_diff_threshold"], answer_offsets=True,
        )  # fmt: skip
        for example in examples:
            text = found.predictions[example.qas_id]
            probability = next(one["probability"] for one in found.nbest[example.qas_id] if one["text"] == text)
            is_empty = example.qas_id in found.empty  # the files of the reference have the text "empty"
            yield SpanAnswer("" if is_empty else text, probability)

    def _of_kind(self, kind: type, method: str, maker: str, script: str):
        if not isinstance(self._model, kind):
            raise UserError(
                f"{self._path}: has no output layer for {method}(); train one with bert_tf2.{maker} or {script},"
                " and load its folder"
            )
        return self._model

    def _logits(self, packed: Sequence[Row], batch_size: int, windows: Windows | None = None) -> Iterator[np.ndarray]:
        """The logits of each row: [L], or [tokens, L] if each token has logits; for spans, L is start and end.

        Warns if the vocabulary lacks many of the words.
        """
        check_type("batch_size", batch_size, int, low=1)
        text_rules.check_unknown_ids("texts", [id for row in packed for id in row.input_ids], self._tokenizer)
        longest = max((len(row.input_ids) for row in packed), default=1)
        filling = None if windows else filling_for(self._model.distribute_strategy, len(packed), batch_size, longest)
        fields = dataclasses.astuple(windows) if windows else None
        run = forward.on_batches(_logits, self._model, fields, names=rows.INPUTS, filling=filling)

        def compute(chosen: Sequence[Row]) -> Iterator[np.ndarray]:
            found = run(rows.padded(chosen))
            found = np.stack([one.numpy() for one in found], -1) if isinstance(found, tuple) else found.numpy()
            of_tokens = found.ndim > 2  # [B, F, L] or [B, L]
            for row, values in zip(chosen, found, strict=False):
                yield values[: len(row.input_ids)] if of_tokens else values

        return forward.in_order(packed, lambda row: len(row.input_ids), compute, batch_size, _MOST_TOKENS)
