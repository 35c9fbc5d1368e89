"""SQuAD questions and paragraphs: from the JSON file to words and ranges of words, as the reference's run_squad.py."""

from __future__ import annotations

import bisect
import dataclasses
import random
import re
from collections.abc import Iterable, Iterator
from typing import Any

from absl import logging

from bert_tf2 import tokenization
from bert_tf2.support import files
from bert_tf2.support.errors import UserError

_SHUFFLE_SEED = 12345

# A word ends at one of five blanks. Other blanks, such as a no-break space, stay inside it for the tokenizer.
_WORD = re.compile("[^ \t\r\n\u202f]+")


@dataclasses.dataclass
class SquadExample:
    """One question about one paragraph."""

    qas_id: str  # the id of the question in the file
    question_text: str  # the question
    doc_tokens: list[str]  # the words of the paragraph; the questions of a paragraph share the list
    orig_answer_text: str | None = None  # for training, the annotated answer, or ""
    # start_position, end_position: for training, the first and the last word of the answer, or -1
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool = False  # for training on version 2, whether the paragraph does not contain an answer
    context: str = ""  # the paragraph, from which answers may be cut; "" if it is the words with single blanks


_JSON_NAMES = {list: "a list", str: "text", int: "a whole number", (str, int): "text", (bool, int): "true or false"}


def field(node: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """`node[key]`, where `node` is a part of a parsed SQuAD file; `where` is its place in the file, for messages."""
    if not isinstance(node, dict) or key not in node:
        raise UserError(f"{where}: not in SQuAD's layout: no object is here, or its key {key!r} is missing")
    if not isinstance(node[key], kind):
        raise UserError(f"{where}: not in SQuAD's layout: {key!r} must be {_JSON_NAMES[kind]}")
    return node[key]


def paragraphs(dataset: Any, name: str) -> Iterator[tuple[dict, str]]:
    """Yields each paragraph of a parsed SQuAD file and its place in the file `name`, for messages."""
    for i, article in enumerate(field(dataset, "data", list, name)):
        for j, paragraph in enumerate(field(article, "paragraphs", list, f"{name}, data[{i}]")):
            yield paragraph, f"{name}, data[{i}].paragraphs[{j}]"


def questions(paragraph: dict, where: str) -> Iterator[tuple[str, dict, str]]:
    """Yields the id, the JSON object and the place of each question of a paragraph."""
    for k, question in enumerate(field(paragraph, "qas", list, where)):
        # In some data sets the ids are numbers; in the files that the reference writes they are strings.
        qas_id = str(field(question, "id", (str, int), f"{where}.qas[{k}]"))
        yield qas_id, question, f"{where}, question {qas_id}"


def split_words(context: str) -> list[str]:
    """The words of a paragraph, as `SquadExample.doc_tokens` has them."""
    return _WORD.findall(context)


def read_squad_examples(
    input_file: str, is_training: bool, version_2_with_negative: bool = False
) -> list[SquadExample]:
    """Reads the questions of a SQuAD file (the function of this name of the reference).

    Answers are read only for training. A question is skipped, with one warning, if its answer is not found in the words
    at its position, mostly because of unusual blanks. An answer without a word is skipped as well, whereas the
    reference trains on the words at its position.
    """
    return examples_of(files.read_json(input_file, kind=None), input_file, is_training, version_2_with_negative)


def examples_of(
    dataset: Any, input_file: str, is_training: bool, version_2_with_negative: bool = False
) -> list[SquadExample]:
    """The questions of a parsed SQuAD file; see `read_squad_examples`."""
    examples: list[SquadExample] = []
    unaligned: list[str] = []
    impossible: list[str] = []
    places: dict[str, str] = {}
    for paragraph, where in paragraphs(dataset, input_file):
        context = field(paragraph, "context", str, where)
        found = list(_WORD.finditer(context))
        words, starts = [match.group() for match in found], [match.start() for match in found]
        for qas_id, question, place in questions(paragraph, where):
            if places.setdefault(qas_id, place) is not place and not is_training:
                raise UserError(
                    f"{place}: the id {qas_id} was there before, at {places[qas_id].removeprefix(f'{input_file}, ')};"
                    " predictions are kept by id, so give each question one of its own"
                )
            example = SquadExample(qas_id, field(question, "question", str, place), words, context=context)
            if is_training and not _add_answer(example, question, context, starts, version_2_with_negative, place):
                unaligned.append(qas_id)
            else:
                examples.append(example)
                if question.get("is_impossible") and not version_2_with_negative:
                    impossible.append(qas_id)
    if unaligned:
        what = (
            f"{input_file}: {len(unaligned)} of {len(unaligned) + len(examples)} answers do not stand in the words of"
            f" their context, the first is that of question {unaligned[0]}"
        )
        if not examples:
            raise UserError(f"{what}; nothing is left to train on (is answer_start right?)")
        logging.warning("%s; these questions are left out of training", what)
    if not examples:
        raise UserError(f"{input_file}: there is no question in this file")
    if impossible:
        logging.warning(
            "%s: %d of %d questions are marked as impossible, and are taken like the others; is"
            " --version_2_with_negative missing? The first is %s",
            input_file, len(impossible), len(examples), impossible[0],
        )  # fmt: skip
    return examples


def _add_answer(
    example: SquadExample, question: dict, context: str, starts: list[int], version_2: bool, where: str
) -> bool:
    """Sets the answer of an example; returns whether it is found in the words of the context, which are at `starts`."""
    if version_2 and field(question, "is_impossible", (bool, int), where):
        example.orig_answer_text, example.start_position, example.end_position = "", -1, -1
        example.is_impossible = True
        return True
    answers = field(question, "answers", list, where)
    if len(answers) != 1:
        hint = " (is --version_2_with_negative=true missing?)" if not answers and not version_2 else ""
        raise UserError(f"{where}: training needs exactly 1 answer to each question, here are {len(answers)}{hint}")
    text = field(answers[0], "text", str, where)
    start = field(answers[0], "answer_start", int, where)
    if start < 0 or start + len(text) > len(context):
        raise UserError(
            f"{where}: the answer lies outside of its context: characters {start} to {start + len(text)} of"
            f" {len(context)}; correct its answer_start"
        )
    example.orig_answer_text = text
    # The words that contain its ends or precede them; -1 in blanks at the start.
    example.start_position = bisect.bisect_right(starts, start) - 1
    example.end_position = bisect.bisect_right(starts, start + len(text) - 1) - 1
    words = " ".join(example.doc_tokens[example.start_position : example.end_position + 1])
    wanted = " ".join(tokenization.whitespace_tokenize(text))
    return bool(wanted) and wanted in words


def shuffled_for_training(examples: Iterable[SquadExample]) -> list[SquadExample]:
    """The examples in the order in which the reference writes them to train.tf_record."""
    shuffled = list(examples)
    random.Random(_SHUFFLE_SEED).shuffle(shuffled)
    return shuffled
