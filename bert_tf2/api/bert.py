"""The main entry point in Python: loads weights of any kind with their configuration and vocabulary."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from bert_tf2 import modeling
from bert_tf2.api import data_warnings, targets, text_rows
from bert_tf2.api.text_parts import Parts, kept_settings, path_of, row_of, span_settings
from bert_tf2.api.vectors import Vectors
from bert_tf2.data.rows import padded
from bert_tf2.finetuning.options import checked_length
from bert_tf2.inference import answering, predict_masked, scoring
from bert_tf2.support import containers, files, hub
from bert_tf2.support.containers import Text
from bert_tf2.support.errors import UserError, naming_arguments
from bert_tf2.support.settings import check_type
from bert_tf2.training.devices import build_model, create_strategy
from bert_tf2.training.options import PRECISIONS, DeviceOptions
from bert_tf2.weights import checkpoint, model_folder, names, sentence_vectors, task_file
from bert_tf2.weights.sentence_vectors import Prompts, SentenceVectors
from bert_tf2.weights.task_file import LabelMap


class Bert(Vectors):
    """A model with its tokenizer, returned by `load`.

    Attributes:
      path: the path of the weights.
      config: the model's configuration.
      tokenizer: a FullTokenizer with the model's vocabulary.
      model: the encoder with the heads that the weights contain: a modeling.BertModel, or a model of `heads`.
      labels: the labels of a classifier or a tagger; None for other models, or if no file has the labels.
    """

    def __init__(self, parts: Parts, model: keras.Model, labels: LabelMap | None):
        self.path = parts.source.path
        self.config, self.tokenizer = parts.config, parts.tokenizer
        self.model = model
        self.labels = labels
        self._variables = frozenset(parts.source.shapes)
        folder = parts.source.folder
        self._folder = folder if files.is_remote(folder) else os.path.abspath(folder)
        # Read now, because the folder may be removed later. An error is raised by the calls that need the file.
        for name in ("_task", "_kept", "_stated_vectors", "_prompts"):
            with contextlib.suppress(UserError):
                getattr(self, name)

    def __repr__(self) -> str:
        config = self.config
        return (
            f"<Bert {self.path}: {type(self.model).__name__}, {config.num_hidden_layers} layers, hidden_size"
            f" {config.hidden_size}, {config.num_attention_heads} heads, {config.vocab_size} entries>"
        )

    @property
    def encoder(self) -> modeling.BertModel:
        """The model without its heads: (input_ids, input_mask, token_type_ids), int [B, F] each -> BertOutput."""
        return self.model if isinstance(self.model, modeling.BertModel) else self.model.bert

    @functools.cached_property
    def _task(self) -> dict[str, Any]:
        return task_file.read(self._folder)

    @functools.cached_property
    def _stated_vectors(self) -> SentenceVectors | None:
        return sentence_vectors.read(self._folder)

    @functools.cached_property
    def _sentence_vectors(self) -> SentenceVectors:
        if found := self._stated_vectors:
            logging.info("%s: vectors as sentence-transformers makes them, %s", self._folder, found)
        return found or SentenceVectors()

    @functools.cached_property
    def _prompts(self) -> Prompts:
        return sentence_vectors.read_prompts(self._folder)

    def fill_mask(
        self, texts: str | Iterable[str], top_k: int = 5, *, batch_size: int = 8, max_seq_length: int | None = None
    ) -> predict_masked.Answer | list[predict_masked.Answer]:
        """Returns the most probable words for every `[MASK]`, as predict_masked.py does.

        Args:
          texts: sentences with `[MASK]`, or a single sentence; ` ||| ` separates two segments.
          top_k: the number of words for each `[MASK]`.
          batch_size: number of sentences per batch.
          max_seq_length: the maximum number of tokens of a sentence (longer sentences raise UserError); defaults to
            max_position_embeddings.

        Returns:
          An Answer for each sentence: `.filled` is the sentence with the best words, `.masks[0].predictions[0]` has
          `.token` and `.probability` of the best word for the first `[MASK]`. A single sentence returns one Answer.

        Raises:
          UserError: the weights have no masked-LM head, a sentence has no `[MASK]` or too many tokens; or see `embed`.
        """
        predict_masked.check_head(self.path, self._variables)
        how = {"max_seq_length": max_seq_length, "batch_size": batch_size}
        return predict_masked.fill_mask(self.model, self.tokenizer, texts, top_k, **how)

    @naming_arguments()
    def score(
        self, texts: Text | Iterable[Text], *, batch_size: int = 32, max_seq_length: int | None = None
    ) -> scoring.Score | list[scoring.Score]:
        """How probable the model finds texts: their pseudo-log-likelihood (Salazar et al., 2020).

        Each token is masked in turn, so a text of T tokens takes T rows of the model. Scores compare texts of one
        model: a sentence with a wrong word has a lower `.total` than the right sentence.

        Args:
          texts, batch_size: see `embed`; a batch has rows, not texts.
          max_seq_length: the maximum number of tokens of a text (longer texts raise UserError); defaults to
            max_position_embeddings.

        Returns:
          A Score for each text, with `.total`, `.tokens` and `.log_probabilities`. A single text returns one Score.

        Raises:
          UserError: the weights have no masked-LM head, or a text has too many tokens; or see `embed`.
        """
        predict_masked.check_head(self.path, self._variables)
        given, alone = containers.texts(texts)
        check_type("batch_size", batch_size, int, low=1)
        length = self._checked_length(max_seq_length)
        found = list(scoring.score(self.model, self.tokenizer, _named("text", given), length, batch_size))
        return found[0] if alone else found

    @naming_arguments()
    def next_sentence(
        self, pairs: Text | Iterable[Text], *, batch_size: int = 32, max_seq_length: int | None = None
    ) -> float | list[float]:
        """The probability that the second text of a pair follows the first, as pretraining learned it.

        Args:
          pairs: tuples (first text, second text), or two columns; see `embed`. A single tuple returns one float.
          batch_size, max_seq_length: see `score`.

        Raises:
          UserError: the weights have no next-sentence head, a text is not a pair, or a pair has too many tokens.
        """
        if missing := names.missing(names.NEXT_SENTENCE, self._variables):
            raise UserError(f"{self.path}: has no next-sentence head ({missing[0]} is missing); load weights with one")
        given, alone = containers.texts(pairs, "pairs")
        for number, pair in enumerate(given, 1):
            if isinstance(pair, str):
                raise UserError(f"pairs: row {number} is a single text, {pair!r:.40}; give (first text, second text)")
        check_type("batch_size", batch_size, int, low=1)
        length = self._checked_length(max_seq_length)
        found = list(scoring.next_sentence(self.model, self.tokenizer, _named("pair", given), length, batch_size))
        return found[0] if alone else found

    def tokenize(self, texts: Text | Iterable[Text], max_seq_length: int | None = None) -> dict[str, np.ndarray]:
        """The inputs of `model`: `input_ids`, `input_mask` and `segment_ids`, int32 [N, F], F of the longest text.

        See `embed` for arguments and errors; `texts` may be a tuple of two lists (first texts, second texts).
        """
        length = self._checked_length(max_seq_length)
        return padded(answering.pack(self.tokenizer, containers.texts(texts)[0], length))

    def classify(
        self,
        texts: Text | Iterable[Text],
        *,
        batch_size: int = 32,
        max_seq_length: int | None = None,
        window: int | None = None,
        stride: int | None = None,
        pooling: str | None = None,
    ) -> dict[str, float] | list[dict[str, float]]:
        """The probability of each label, for a model of run_classifier.py.

        Args:
          texts, batch_size: see `embed`.
          max_seq_length: see `embed`; defaults to the length of the training, from task.json.
          window, stride, pooling: how long texts are read in windows; see `classifier`. Default to the windows of the
            training, from task.json; stride=0 cuts long texts.

        Returns:
          A dict label -> probability for each text, or one dict for a single text, in the order of the labels; for a
          regression {"score": number}.

        Raises:
          UserError: the weights are not a classifier; or see `embed`.
        """
        given, alone = containers.texts(texts)
        data_warnings.of_pairs(given, self.labels.labels if self.labels else ())
        checked = functools.partial(self._checked_length, kept=True)
        length, windows = row_of(self._kept, checked, max_seq_length, window, stride, pooling)
        found = self._answerer.classify(given, length, batch_size, windows)
        return found[0] if alone else found

    def tag(
        self,
        sentences: Sequence[str] | Iterable[Sequence[str]],
        *,
        batch_size: int = 32,
        max_seq_length: int | None = None,
        stride: int | None = None,
    ) -> list[str] | list[list[str]]:
        """A tag for each word, for a model of run_ner.py.

        `sentences` are lists of words, or texts of words with blanks between them, in any container; or a single text,
        or a single list of words without blanks. Long sentences are read in windows of `max_seq_length` tokens, which
        begin `stride` tokens apart; by default as in the training, also with its `document_context`. Raises UserError
        if the weights are not a tagger, or a sentence is not a list of words.
        """
        given, alone = _sentences(sentences)
        stride = check_type("stride", stride, int, low=1, optional=True)
        settings = {"max_seq_length": self._checked_length(max_seq_length, kept=True)}
        settings |= {} if stride is None else {"doc_stride": stride}
        found = self._answerer.tag(given, answering.NER | self._kept | settings, batch_size)
        return found[0] if alone else found

    @naming_arguments()
    def answer(
        self,
        question: str | Sequence[str],
        paragraph: str | Sequence[str],
        *,
        may_be_missing: bool | None = None,
        batch_size: int = 8,
        **settings: float,
    ) -> answering.SpanAnswer | list[answering.SpanAnswer]:
        """The words of a paragraph that answer a question, for a model of run_squad.py, as with its --answer_offsets.

        Args:
          question, paragraph: texts of any length; or a list of questions and a list with a paragraph for each
            question, which return a list of answers.
          may_be_missing: whether the paragraph may have no answer, as in SQuAD 2.0; the text of a missing answer is "".
            Defaults to the setting of the training.
          batch_size: number of windows per batch.
          **settings: run_squad.py's `max_seq_length`, `doc_stride`, `max_query_length`, `n_best_size`,
            `max_answer_length`, `null_score_diff_threshold`; default to the settings of the training, from task.json.

        Raises:
          UserError: the weights are not from run_squad.py, a text is empty, or a setting is unknown or wrong.
        """
        stated = span_settings("answer", self._kept, self._task, settings, may_be_missing)
        alone = isinstance(question, str)
        questions, paragraphs = [question], [paragraph]
        if not alone:
            questions = containers.texts(question, "question", pairs=False)[0]
            if not isinstance(paragraph, str):
                paragraphs = containers.texts(paragraph, "paragraph", pairs=False)[0]
            if isinstance(paragraph, str) or len(questions) != len(paragraphs):
                raise UserError(f"{len(questions)} questions: a list with a paragraph for each is needed")
        longest = self.config.max_position_embeddings
        found = self._answerer.answer(questions, paragraphs, stated, longest, batch_size)
        return found[0] if alone else found

    def save_folder(self, output_dir: str | os.PathLike[str]) -> None:
        """Writes the weights as a checkpoint, with the files that `load` and the scripts need.

        Weights of sentence-transformers become another such folder, from which `embed` makes the same vectors. Raises
        UserError if the folder holds another model, or is not writable; or as `embed`, if the vectors are not known.
        """
        folder = path_of("output_dir", output_dir)
        if self._stated_vectors:
            model_folder.save_vectors(folder, self.model, self.tokenizer, self._sentence_vectors, self._prompts)
            return
        model_folder.save(folder, self.model, 0, self.tokenizer, self.labels, self._task or None)

    @functools.cached_property
    def _kept(self) -> dict[str, Any]:
        return kept_settings(self._folder)

    @functools.cached_property
    def _answerer(self) -> answering.Answerer:
        return answering.Answerer(self.model, self.tokenizer, self.labels, self.path)

    def _checked_length(self, given: int | None, kept: bool = False, name: str = "max_seq_length") -> int:
        """The length of a call; if `kept`, defaults to the length of the training."""
        given = self._kept.get("max_seq_length") if given is None and kept else given
        return checked_length(given, self.config.max_position_embeddings, name)


def _named(name: str, given: Iterable[Text]) -> dict[str, Text]:
    """The rows by the names that errors give them: "text 1", "text 2", ..."""
    return {f"{name} {number}": row for number, row in enumerate(given, 1)}


def _sentences(given: Any) -> tuple[list[list[str]], bool]:
    """The words of sentences, and whether a single sentence was given."""
    if containers.is_dataset(given):
        batches = containers.batches(given, "sentences")
        return [words for batch in batches for words in text_rows.words_of(batch, "sentences")], False
    if containers.table(given) is None and not isinstance(given, str):
        found, _ = targets.read(given, "sentences")
        if found and all(isinstance(word, str) and " " not in word for word in found):
            return [found], True
        given = found if hasattr(given, "__next__") else given
    return text_rows.words_of(given, "sentences"), isinstance(given, str)


@naming_arguments()
def load(
    path: str | os.PathLike[str],
    *,
    bert_config_file: str | os.PathLike[str] | None = None,
    vocab_file: str | os.PathLike[str] | None = None,
    do_lower_case: bool | None = None,
    precision: str | None = None,
) -> Bert:
    """Loads weights of any kind, with the configuration and the vocabulary beside them.

    Example:
      bert = bert_tf2.load("uncased_L-12_H-768_A-12")
      vectors = bert.embed(["a text", "another"])         # [2, 768]

    Args:
      path: a folder or a file with weights: a TensorFlow 1 checkpoint (its prefix, folder or one of its files), a
        Hugging Face folder, a checkpoint or SavedModel of Model Garden's encoder, a .keras file; or a name at Hugging
        Face's hub, google-bert/bert-base-uncased or with @REVISION, for which huggingface_hub must be installed.
      bert_config_file, vocab_file: default to the files in the weights or beside them.
      do_lower_case: whether to lower-case text; defaults to the value in the files beside the weights, otherwise to
        False if the vocabulary has entries with capital letters.
      precision: the type of the computations, a key of training.options.PRECISIONS; defaults to Keras' policy. It does
        not change TensorFlow's setting for TensorFloat-32.

    Raises:
      UserError: the weights do not exist; the configuration or the vocabulary is missing or does not fit the weights;
        a file is damaged; an argument has another type; or this process is a fork of one that has used TensorFlow.
    """
    path = hub.fetched(path_of("path", path))
    if precision is None:
        policy = keras.config.dtype_policy().name
        precision = next((name for name, kind in PRECISIONS.items() if kind.policy == policy), None)
        if precision is None:
            raise UserError(f"Keras' policy is {policy}; give a precision: {', '.join(PRECISIONS)}")
    if precision not in PRECISIONS:
        raise UserError(f"precision={precision!r}: must be one of {', '.join(PRECISIONS)}")

    found = Parts(path, (bert_config_file, vocab_file, do_lower_case), name="path")
    labels, dtype = task_file.label_map_of(found.source), PRECISIONS[precision].policy
    model = build_model(
        create_strategy(DeviceOptions(precision=precision), several=False),
        lambda: checkpoint.make_model(found.source, found.config, labels, dtype=dtype),
        random_seed=0,  # for variables that the weights lack, such as a pooler
    )
    logging.info(checkpoint.initialize(model, found.source))
    return Bert(found, model, labels)
