"""Damaged and invented files at every reader but those of weights: read as a whole, or refused by a UserError."""

from __future__ import annotations

import bz2
import contextlib
import functools
import gzip
import json
import lzma
import pathlib
from collections.abc import Callable, Iterable

import pytest
import toy_data
from huggingface_folders import CONFIG
from hypothesis import strategies as st
from mutations import damaged, damaged_json, damaged_records, framed, lengths, record_of, refuses_or_reads
from refused import message_of

from bert_tf2 import exporting
from bert_tf2.config import BertConfig
from bert_tf2.data import example, record_index, record_order, records
from bert_tf2.finetuning import classification, ner, squad
from bert_tf2.finetuning.classification import tasks
from bert_tf2.pretraining import corpus
from bert_tf2.pretraining.options import PretrainingDataOptions
from bert_tf2.support.errors import UserError
from bert_tf2.training.forward import explained
from bert_tf2.weights import huggingface, task_file, text_rules

VOCABULARY = "".join(f"{word}\n" for word in toy_data.VOCAB).encode()
TEXT = b"one film was good .\na book ||| the play\n\nit lives in Oslo now . Is it ?\n"
TABLE = b"name\ttext\tanswer\n1\ta film\tyes\n2\tthe \xc3\xa9 book\tno\n3\tit is\tyes\n"
TOKENIZER = {
    "normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None},
    "added_tokens": [{"id": 0, "content": "[PAD]"}],
    "model": {"type": "WordPiece", "vocab": {word: index for index, word in enumerate(toy_data.VOCAB)}},
}
TOKENIZER_CONFIG = {
    **{"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True},
    "added_tokens_decoder": {"5": {"content": "[E1]", "special": True}},
}


def _each(calls: Iterable[Callable[[], object]]) -> None:
    """Runs all calls; each may refuse."""
    for call in calls:
        with contextlib.suppress(UserError):
            call()


def _tables(path: pathlib.Path) -> None:
    layouts = tasks.TsvLayout(text_a="text", label="answer", id="name"), tasks.TsvLayout(text_a="2", label="3")
    kinds = [("tsv", layouts[0]), ("tsv", layouts[1]), ("mrpc", None), ("xnli", None)]
    processors = [classification.get_processor(task, tsv=tsv) for task, tsv in kinds]
    _each(functools.partial(processor.get_train_examples, str(path.parent)) for processor in processors)


def _questions(path: pathlib.Path) -> None:
    for how in ((True, False), (True, True), (False, False)):
        _each([lambda how=how: [ascii(str(example)) for example in squad.read_squad_examples(str(path), *how)]])


def _config(path: pathlib.Path) -> None:
    config = BertConfig.from_json_file(str(path))
    assert BertConfig.from_dict(json.loads(config.to_json_string())) == config
    huggingface.config_content("BertModel", config)
    hash(config)


def _corpus(path: pathlib.Path) -> None:
    options = (PretrainingDataOptions(input_format=input_format) for input_format in ("lines", "text", "jsonl"))
    _each(lambda how=how: [sentence.encode() for sentence in corpus.sentences([str(path)], how)] for how in options)


def _tokenizer(path: pathlib.Path) -> None:
    _each([lambda: text_rules.vocabulary(str(path.parent))])
    text_rules.stated_text(None, str(path.parent / "vocab.txt"))


LABELS = {"task": "tsv", "labels": ["maybe", "no", "yes"], "regression": False, "multi_label": False}
RULES = {"do_lower_case": True, "never_split": ["[E1]"], "strip_accents": False}
INFO = {"text_signatures": True, "signatures": {"serving_text": {"inputs": {"text": {}}}}}
# The name of a file, what it may hold, and what reads it.
READERS: list[tuple[str, st.SearchStrategy[bytes], Callable[[pathlib.Path], object]]] = [
    ("vocab.txt", damaged(VOCABULARY), lambda path: text_rules.load_tokenizer(str(path), True, 40)),
    ("bert_config.json", damaged_json(toy_data.config().to_dict()), _config),
    ("config.json", damaged_json(CONFIG), _config),
    ("train.tsv", damaged(TABLE), _tables),
    ("squad.json", damaged_json(toy_data.squad(3, 1, impossible=True)), _questions),
    ("words.txt", damaged(toy_data.conll(2, 1).encode()), lambda path: ner.tags_of(ner.read_conll(str(path)))),
    ("label_map.json", damaged_json(LABELS), lambda path: task_file.read_label_map(str(path)).describe().encode()),
    ("tokenizer.json", damaged_json(TOKENIZER), _tokenizer),
    ("tokenizer_config.json", damaged_json(TOKENIZER_CONFIG), _tokenizer),
    ("tokenization.json", damaged_json(RULES), _tokenizer),
    ("text.txt", damaged(TEXT), _corpus),
    ("text.jsonl", damaged_json({"text": "one film . A book .", "id": 7}), _corpus),
    ("text.gz", damaged(gzip.compress(TEXT, mtime=0)), _corpus),
    ("text.bz2", damaged(bz2.compress(TEXT)), _corpus),
    ("text.xz", damaged(lzma.compress(TEXT)), _corpus),
    ("model_info.json", damaged_json(INFO), lambda path: exporting.load(str(path.parent))),
]


@lengths(20, 2000)
@pytest.mark.parametrize(("name", "content", "read"), READERS, ids=[name for name, *_ in READERS])
def test_a_text_is_read_or_refused(name, content, read, examples, tmp_path):
    def write_and_read(data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        read(tmp_path / name)

    refuses_or_reads(content, write_and_read, examples)


# Records

SIZES = {"max_seq_length": 4, "max_predictions_per_seq": 2, "vocab_size": 37, "type_vocab_size": 2, "num_labels": 3}
TOKENS = {"input_ids": [2, 5, 3, 0], "input_mask": [1, 1, 1, 0], "segment_ids": [0] * 4}
MASKED = {"masked_lm_positions": [1, 0], "masked_lm_ids": [7, 0], "masked_lm_weights": [1.0, 0.0]}
UNMASKED = {"input_ids": [2, 5, 3], "segment_lengths": [3], "next_sentence_labels": [0]}
ROWS = {
    "pretraining": (records.PRETRAINING, {**TOKENS, **MASKED, "next_sentence_labels": [1]}),
    "unmasked": (records.UNMASKED, UNMASKED),
    "regression": (records.REGRESSION, {**TOKENS, "label_ids": [2.5], "is_real_example": [1]}),
}


@lengths(4, 500)
@pytest.mark.parametrize("name", ROWS)
def test_records_are_read_or_refused(name, examples, tmp_path):
    """Which TensorFlow refuses, `find_fault` explains."""
    kind, row = ROWS[name]
    path = str(tmp_path / "records")

    def write_and_read(content: bytes) -> None:
        (tmp_path / "records").write_bytes(content)
        with contextlib.suppress(UserError):  # inspect_records.py, which needs no TensorFlow
            assert sum(1 for _ in records.read_all([path], 37)) == record_index.read_index([path]).total
        with explained(lambda: records.find_fault([path], kind, SIZES)):
            count = sum(batch["input_ids"].shape[0] for batch in record_order.read_records([path], kind, SIZES, 2))
        assert count == record_index.read_index([path]).total

    refuses_or_reads(damaged_records(example.encode(records.columns(kind, [row]))[0]), write_and_read, examples)


@pytest.mark.parametrize("length", [2**64 - 1, 2**40])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_record_that_claims_to_be_huge_is_named(length, pack, tmp_path):
    """Nobody asks for that much memory; TensorFlow's reader would end the process."""
    path = tmp_path / ("records.gz" if pack is gzip.compress else "records")
    path.write_bytes(pack(framed(b"good") + record_of(length)))
    assert message_of(record_index.read_index, [str(path)]).startswith(f"{path}, record 2: ")
    path.write_bytes(pack(record_of(length)))
    found = message_of(record_order.read_records, [str(path)], records.PRETRAINING, {}, 2)
    assert found == str(records.find_fault([str(path)], records.PRETRAINING, {})) and "record 1: " in found
