"""Shared by the tests of token classification: a small vocabulary, files and sentences."""

from bert_tf2.finetuning import ner
from bert_tf2.tokenization import FullTokenizer

CONLL_2003 = """\
-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- -X- O

London NNP B-NP B-LOC
"""


def make_tokenizer(folder):
    """A tokenizer that splits words of the letters a to f into letters, so that pieces are easy to count."""
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef", *(f"##{letter}" for letter in "abcdef")]
    path = folder / "vocab.txt"
    path.write_text("\n".join(vocab) + "\n")
    return FullTokenizer(vocab_file=str(path), do_lower_case=True)


def write_to(folder, text: str | bytes) -> str:
    path = folder / "data.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def sentence(*words, tags=None, document=0):
    return ner.NerSentence(words=list(words), tags=tags, document=document)


def random_sentences(rng):
    labels = ["O", "B-X", "I-X"]
    given = []
    for number in range(rng.randint(1, 12)):
        words = ["".join(rng.choices("abcdef", k=rng.choice([1, 1, 2, 3, 7, 12]))) for _ in range(rng.randint(1, 25))]
        given.append(sentence(*words, tags=rng.choices(labels, k=len(words)), document=number // 4))
    return given, labels
