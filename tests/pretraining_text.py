"""Shared by the tests of pretraining: a small corpus, its vocabulary, options, and predefined random numbers."""

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


class Script:
    """Replaces random.Random and returns the predefined numbers of a test."""

    def __init__(self, randoms=(), integers=()):
        self._randoms, self._integers = list(randoms), list(integers)

    def random(self):
        return self._randoms.pop(0)

    def randint(self, low, high):
        value = self._integers.pop(0)
        assert low <= value <= high
        return value

    def shuffle(self, items):
        """Leaves them in order."""

    @property
    def used_up(self):
        return not self._randoms and not self._integers


def document(*sentences):
    return [sentence.split() for sentence in sentences]
