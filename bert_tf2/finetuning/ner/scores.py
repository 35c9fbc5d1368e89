"""Entities in tag sequences, and their precision, recall and F1 as the CoNLL script `conlleval` computes them.

A tag is O, or one of B, I, E, S, a hyphen and a type. An entity is a run of words whose tags have the same type. A new
entity begins at a tag other than O if

    the tag is B or S,                             as in IOB2 and IOBES
    or the previous tag is O, or there is none,    so that I alone is an entity, as in IOB1
    or the previous tag is E or S,
    or the previous tag has another type,

and ends at the last word before O, before the next entity, or of the sentence. These rules apply to every sequence:
predicted tags are often not well-formed.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bert_tf2.finetuning.ner.examples import OUTSIDE, TAG
from bert_tf2.finetuning.tables import aligned


class Entity(NamedTuple):
    """An entity: its type, and the indexes of its first and its last word."""

    type: str
    first: int
    last: int


@functools.lru_cache(maxsize=1024)
def split_tag(tag: str) -> tuple[str, str]:
    """The letter and the type of a tag: ("B", "PER"), or ("O", ""); a label that is no tag is the type of an I."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    return (tag[0], tag[2:]) if TAG.fullmatch(tag) else ("I", tag)


def begins(tag: str, before: str = OUTSIDE) -> bool:
    """Whether an entity begins at a word with `tag`; `before` is the tag of the word before it."""
    (letter, kind), (letter_before, kind_before) = split_tag(tag), split_tag(before)
    return letter != "O" and (letter in "BS" or letter_before in "OES" or kind != kind_before)


def entities(tags: Iterable[str]) -> list[Entity]:
    """The entities of one sentence, in order."""
    found: list[Entity] = []
    before = OUTSIDE
    for index, tag in enumerate(tags):
        if begins(tag, before):
            found.append(Entity(split_tag(tag)[1], index, index))
        elif tag != OUTSIDE:
            found[-1] = found[-1]._replace(last=index)
        before = tag
    return found


def score(true_tags: Sequence[Sequence[str]], predicted_tags: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Precision, recall and F1 of entities, as `conlleval` counts them (but in fractions of 1), from tags of sentences.

    Returns:
      A dictionary for JSON: `precision`, `recall`, `f1`, `true_entities`, `predicted_entities`, `correct_entities`,
      the same under `types` for each type, and over words `accuracy` and `words`.
    """
    # by type; the names are in the order of the arguments of _measures
    counts = {name: collections.Counter() for name in ("true", "predicted", "correct")}
    words = right = 0
    for true, predicted in zip(true_tags, predicted_tags, strict=True):
        right += sum(a == b for a, b in zip(true, predicted, strict=True))
        words += len(true)
        true_entities, predicted_entities = set(entities(true)), set(entities(predicted))
        counts["true"].update(entity.type for entity in true_entities)
        counts["predicted"].update(entity.type for entity in predicted_entities)
        counts["correct"].update(entity.type for entity in true_entities & predicted_entities)
    types = sorted(counts["true"] | counts["predicted"])
    return {
        **_measures(*(counter.total() for counter in counts.values())),
        "accuracy": _ratio(right, words),
        "words": words,
        "types": {name: _measures(*(counter[name] for counter in counts.values())) for name in types},
    }


def _measures(true: int, predicted: int, correct: int) -> dict[str, float]:
    return {
        "precision": _ratio(correct, predicted),
        "recall": _ratio(correct, true),
        "f1": _ratio(2 * correct, true + predicted),
        "true_entities": true,
        "predicted_entities": predicted,
        "correct_entities": correct,
    }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def score_table(scores: Mapping[str, Any]) -> str:
    """The result of `score` as text: one line per type, one for all types, one for the words."""
    shares, counts = ("precision", "recall", "f1"), ("true", "predicted", "correct")
    rows = [
        (name, *(f"{row[share]:.4f}" for share in shares), *(str(row[f"{count}_entities"]) for count in counts))
        for name, row in [*scores["types"].items(), ("all", scores)]
    ]
    words = f"  {scores['accuracy']:.4f} of {scores['words']} words have the right tag"
    return "\n".join(["Scores by entity:", aligned([("type", *shares, *counts), *rows]), words])
