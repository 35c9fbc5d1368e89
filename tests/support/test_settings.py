"""Options classes: which settings they have, and which values and combinations they refuse."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np
import pytest

from bert_tf2.support import settings
from bert_tf2.support.settings import DATA, TRAINING, Options, WrongSetting, options, setting


@options
class Part(Options):
    needs = (("patience", "eval_steps"),)

    rate: float = setting("A rate.", 0.1, group=TRAINING, low=0.0, high=1.0)
    eval_steps: int = setting("Steps.", 0, group=TRAINING, low=0)
    patience: int = setting("Patience.", 0, group=TRAINING, low=0)


@options
class Task(Part):
    any_of = ("train", "predict")
    needs = (("train", "path"),)
    not_both = (("path", "word"),)

    output: str = setting("A folder.", group=DATA)
    train: bool = setting("Train.", False, group=DATA)
    predict: bool = setting("Predict.", False, group=DATA)
    path: str | None = setting("A file.", None, group=DATA)
    word: str | None = setting("A word.", None, group=DATA)
    kind: str = setting("A kind.", "a", group=DATA, choices=("a", "b"))
    size: int | None = setting("A size.", None, group=DATA)
    seed: int = setting("A seed.", 1, group=DATA, low=0, high=2**31 - 1)
    shift: int = setting("A shift.", 0, group=DATA, high=0)

    def check(self) -> None:
        if self.word == "bad":
            raise WrongSetting("--word=bad: another word is needed")


@options
class Lists(Options):
    texts: Sequence[str] | None = setting("Texts.", None, group=DATA)


def test_a_text_is_no_list_of_letters():
    assert Lists(texts="abc").texts == Lists(texts=["abc"]).texts == ["abc"]


def test_what_is_allowed():
    made = Task(output="out", train=True, path="text.txt", patience=2, eval_steps=1)
    assert (made.rate, made.kind, made.size) == (0.1, "a", None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"output": ""}, "--output must be given"),
        ({"output": None}, "--output must be given"),
        ({"train": False}, "nothing to do: give at least one of --train, --predict"),
        ({"path": None}, "--train needs --path"),
        ({"patience": 3}, "--patience needs --eval_steps"),
        ({"word": "x"}, "--path and --word exclude each other"),
        ({"rate": 1.5}, "--rate=1.5: must be >= 0 and <= 1"),
        ({"rate": float("nan")}, "--rate=nan: a finite number is needed"),
        ({"eval_steps": -1}, "--eval_steps=-1: must be >= 0"),
        ({"seed": -1}, "--seed=-1: must be >= 0 and <= 2147483647"),
        ({"shift": 1}, "--shift=1: must be <= 0"),
        ({"kind": "c"}, "--kind=c: must be one of a, b"),
        ({"size": 2**31}, "--size=2147483648: is too large; at most 2147483647 is possible"),
        ({"train": False, "predict": True, "path": None, "word": "bad"}, "--word=bad: another word is needed"),
    ],
)
def test_what_is_refused(given, message):
    with pytest.raises(WrongSetting, match=message):
        Task(**{"output": "out", "train": True, "path": "text.txt", **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train": "False"}, "train='False': must be True or False"),
        ({"train": 1}, "train=1: must be True or False"),
        ({"train": None}, "train=None: must be True or False"),
        ({"size": "8"}, "size='8': must be a whole number"),
        ({"size": 8.0}, "size=8.0: must be a whole number"),
        ({"size": np.array(8)}, r"size=array\(8\): must be a whole number"),
        ({"seed": True}, "seed=True: must be a whole number"),
        ({"rate": "0.1"}, "rate='0.1': must be a number"),
        ({"path": b"text.txt"}, "path=b'text.txt': must be a text"),
        ({"kind": ["a"]}, r"kind=\['a'\]: must be a text"),
    ],
)
def test_values_of_another_type_are_refused(given, message):
    with pytest.raises(WrongSetting, match=f"^{message}$"):
        Task(**{"output": "out", "train": True, "path": "text.txt", **given})


def test_numbers_of_numpy_and_paths_are_accepted():
    made = Task(output=pathlib.Path("out"), train=np.bool_(True), path="a", size=np.int64(8), rate=np.float32(0.5))
    assert (made.output, made.size, made.rate) == ("out", 8, 0.5)


def test_a_tilde_is_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    made = Task(output="~/out,~/b,c/~/d", train=True, path=pathlib.Path("~/a"), kind="a")
    assert (made.output, made.path) == ("/home/ann/out,/home/ann/b,c/~/d", "/home/ann/a")
    assert Task(output="~", train=True, path="~x").output == "~"


def test_all_missing_settings_are_named():
    @options
    class Two(Options):
        first: str = setting("One.", group=DATA)
        second: str = setting("Two.", group=DATA)

    with pytest.raises(WrongSetting, match=r"^--first and --second must be given$"):
        Two(first=None, second="")


def test_settings_of_a_class_come_before_those_of_its_parts():
    found = settings.settings_of(Task)
    assert [*found] == [
        *("output", "train", "predict", "path", "word", "kind", "size", "seed", "shift"),
        *("rate", "eval_steps", "patience"),
    ]
    assert [kind for _, kind, _ in found.values()] == [str, bool, bool, str, str, str, int, int, int, float, int, int]
    assert settings.required(Task) == ["output"]


def test_what_two_classes_share():
    made = Task(output="out", predict=True, rate=0.5)
    assert settings.shared(made, Part) == {"rate": 0.5, "eval_steps": 0, "patience": 0}
