"""Shared by the tests of pretraining: a small corpus, its vocabulary, options, shards in this process, records."""

from __future__ import annotations

import time

from bert_tf2.pretraining import shards
from bert_tf2.pretraining.options import CreatePretrainingDataOptions
from bert_tf2.tokenization import SPECIAL_TOKENS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = [*SPECIAL_TOKENS, ".", *LETTERS, *(f"##{letter}" for letter in LETTERS)]

# Three documents of one-piece words, and one whose words have three pieces each.
CORPUS = """\
a b c d e f .
g h i .
j k l m n .

o p q r .
s t u v w x y z .

a c e .
g i k m o q s u w y .
b d f .
h j l n p r t v x z .

abc def ghi .
jkl mno .
pqr stu vwx yza .
"""


SETTINGS = {"max_seq_length": 24, "max_predictions_per_seq": 4, "do_lower_case": True}


def data_options(folder, output="out", **changes) -> CreatePretrainingDataOptions:
    """Options to make examples of `corpus.txt` in a folder, with `vocab.txt` there."""
    named = {"input_file": f"{folder}/corpus.txt", "vocab_file": f"{folder}/vocab.txt"}
    return CreatePretrainingDataOptions(**{**named, "output_file": f"{folder}/{output}", **SETTINGS, **changes})


class Here:
    """Makes shards in this process, because a worker process takes a second to start.

    create_pretraining_data.run(options, Here())

    Attributes:
      made: the numbers of the shards that were made.
    """

    def __init__(self, until: int | None = None, before=lambda: None):
        """`until`: the number of a shard that is a ZeroDivisionError; `before` is called before each shard."""
        self.made: list[int] = []
        self._until, self._before = until, before

    def __call__(self, wanted, job):
        for shard in wanted:
            self._before()
            if shard.number == self._until:
                raise ZeroDivisionError
            yield shard, shards.attempt(shard, job)
            self.made.append(shard.number)


def wait_until(true) -> None:
    """Waits until a function returns true, at most a minute."""
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def rows_of(path) -> list[dict[str, list]]:
    """The features of each record, read by TensorFlow."""
    import tensorflow as tf

    rows = []
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        features = sorted(tf.train.Example.FromString(record).features.feature.items())
        rows.append({name: [*(each.int64_list.value or each.float_list.value)] for name, each in features})
    return rows
