"""Shared by the tests of SQuAD: a small vocabulary, small data sets, and the data of the reference."""

import functools
import json

from golden_data import GOLDEN

from bert_tf2 import tokenization
from bert_tf2.finetuning import squad

WORDS = """
the a of in fox dog jumped over ##s born year was john smith 1895 1943 who when ( ) - . , ' japanese what
"""
VOCAB = [*tokenization.SPECIAL_TOKENS, *WORDS.split(), *(f"w{i}" for i in range(30))]


def make_tokenizer(folder):
    vocab = folder / "vocab.txt"
    vocab.write_text("\n".join(VOCAB), encoding="utf-8")
    return tokenization.FullTokenizer(vocab_file=str(vocab), do_lower_case=True)


def dataset_of(*questions, context="The fox was born in 1895.", **more):
    """A SQuAD file in memory. A question is (id, answers, further keys); an answer is (text, answer_start)."""
    qas = [
        {"id": qid, "question": "When?", "answers": [{"text": t, "answer_start": s} for t, s in answers], **further}
        for qid, answers, further in questions
    ]
    return {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas, **more}]}]}


def written(tmp_path, dataset, name="squad.json"):
    path = tmp_path / name
    path.write_text(dataset if isinstance(dataset, str) else json.dumps(dataset), encoding="utf-8")
    return str(path)


def features_of(tokenizer, words, question="who", length=16, stride=4, query=4, training=False, **answer):
    example = squad.SquadExample("q", question, words.split(), **answer)
    return list(squad.convert_examples_to_features([example], tokenizer, length, stride, query, training))


@functools.cache
def golden_tokenizer(vocab, do_lower_case):
    return tokenization.FullTokenizer(vocab_file=str(GOLDEN / vocab), do_lower_case=do_lower_case)


def golden_features(case, is_training):
    """The examples of a case and their windows."""
    flags = case["flags"]
    tokenizer = golden_tokenizer(case["vocab"], flags["do_lower_case"])
    examples = squad.read_squad_examples(str(GOLDEN / case["input"]), is_training, flags["version_2_with_negative"])
    if case.get("example_order", "").startswith("shuffled"):
        examples = squad.shuffled_for_training(examples)
    lengths = flags["max_seq_length"], flags["doc_stride"], flags["max_query_length"]
    features = squad.convert_examples_to_features(examples, tokenizer, *lengths, is_training)
    return examples, list(features)
