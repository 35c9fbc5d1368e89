"""Options classes: which settings they have, and which values and combinations they refuse."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence

import numpy as np
import pytest

from bert_tf2.support import settings
from bert_tf2.support.resolution import resolve
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
    only_with = (("size", "kind=b,c"), ("texts", "predict"))

    output: str = setting("A folder.", group=DATA)
    train: bool = setting("Train.", False, group=DATA)
    predict: bool = setting("Predict.", False, group=DATA)
    path: str | None = setting("A file.", None, group=DATA)
    word: str | None = setting("A word.", None, group=DATA)
    kind: str = setting("A kind.", "a", group=DATA, choices=("a", "b"))
    size: int | None = setting("A size.", None, group=DATA)
    texts: Sequence[str] | None = setting("Texts.", None, group=DATA)

    def check(self) -> None:
        if self.word == "bad":
            raise WrongSetting("--word=bad: another word is needed")


GOOD = {"output": "out", "train": True, "path": "text.txt"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"output": ""}, "--output must be given"),
        ({"output": None}, "--output must be given"),
        ({"train": False}, "nothing to do: .*--train, --predict"),
        ({"path": None}, "--train needs --path"),
        ({"patience": 3}, "--patience needs --eval_steps"),
        ({"word": "x"}, "--path and --word"),
        ({"size": 3}, "--size=3 needs --kind=b or c"),
        ({"texts": "a"}, "--texts=.* needs --predict"),
        ({"rate": 1.5}, "--rate=1.5: must be >= 0 and <= 1"),
        ({"rate": float("nan")}, "--rate=nan"),
        ({"eval_steps": -1}, "--eval_steps=-1: must be >= 0"),
        ({"kind": "c"}, "--kind=c: must be one of a, b"),
        ({"size": 2**31, "kind": "b"}, "--size=2147483648: .* 2147483647"),
        ({"train": False, "predict": True, "path": None, "word": "bad"}, "--word=bad: another"),
        ({"train": "False"}, "train='False': .*True"),
        ({"train": None}, "train=None: .*True"),
        ({"size": 8.0}, "size=8.0: .*whole"),
        ({"size": np.array(8)}, r"size=array\(8\): .*whole"),
        ({"eval_steps": True}, "eval_steps=True: .*whole"),
        ({"rate": "0.1"}, "rate='0.1': .*number"),
        ({"path": b"text.txt"}, "path=b'text.txt': .*text"),
    ],
)
def test_refused_values(given, words):
    with pytest.raises(WrongSetting) as caught:
        resolve(Task(**{**GOOD, **given}))
    assert re.match(words, str(caught.value))


def test_allowed_values_and_the_settings_of_a_class(monkeypatch):
    made = Task(**GOOD, patience=2, eval_steps=1, predict=True, texts="abc")
    assert (made.rate, made.kind, made.size, made.texts) == (0.1, "a", None, ["abc"])
    for edge in ({"rate": 0}, {"rate": 1.0}, {"eval_steps": 0}, {"size": 2**31 - 1, "kind": "b"}):
        assert Task(**GOOD, **edge)
    made = Task(
        output=pathlib.Path("out"), train=np.bool_(True), path="a", kind="b", size=np.int64(8), rate=np.float32(0.5)
    )
    assert (made.output, made.size, made.rate) == ("out", 8, 0.5) and type(made.size) is int
    assert settings.shared(made, Part) == {"rate": 0.5, "eval_steps": 0, "patience": 0}
    monkeypatch.setenv("HOME", "/home/ann")
    made = Task(output="~/out,~/b,c/~/d", train=True, path=pathlib.Path("~/a"))
    assert (made.output, made.path) == ("/home/ann/out,/home/ann/b,c/~/d", "/home/ann/a")
    assert Task(output="~", train=True, path="~x").output == "~"
    found = settings.settings_of(Task)  # those of a class come before those of its bases
    names = ["output", "train", "predict", "path", "word", "kind", "size", "texts", "rate", "eval_steps", "patience"]
    assert [*found] == names and [found[name][1] for name in ("train", "path", "size", "rate")] == [
        bool,
        str,
        int,
        float,
    ]
    assert settings.required(Task) == ["output"]
