"""Damaged and invented text, JSON and records, at the readers of what users bring: all read, or refused in one line."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
from collections.abc import Callable
from typing import NamedTuple

import pytest
import toy_data
from bad_calls import LABELS
from huggingface_folders import CONFIG
from hypothesis import strategies as st
from mutations import damaged, damaged_json, damaged_records, lengths, refuses_or_reads

from bert_tf2 import exporting
from bert_tf2.config import BertConfig
from bert_tf2.data import record_index, record_order, records
from bert_tf2.finetuning import classification, ner, squad
from bert_tf2.finetuning.classification import tasks
from bert_tf2.pretraining import sentences
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


def _tables(path) -> None:
    layout = tasks.TsvLayout(text_a="text", label="answer", id="name")
    for task, tsv in (("tsv", layout), ("tsv", tasks.TsvLayout(text_a="2", label="3")), ("mrpc", None), ("xnli", None)):
        processor = classification.get_processor(task, tsv=tsv)
        for read in (processor.get_train_examples, processor.get_dev_examples, processor.get_test_examples):
            try:
                read(str(path.parent))
            except UserError:
                continue


def _questions(path) -> None:
    for training, version_2 in ((True, False), (True, True), (False, False)):
        try:
            read = squad.read_squad_examples(str(path), training, version_2)
        except UserError:
            continue
        for example in read:
            json.dumps([example.qas_id, example.question_text, example.doc_tokens]).encode()


def _config(path) -> None:
    config = BertConfig.from_json_file(str(path))
    assert BertConfig.from_dict(json.loads(config.to_json_string())) == config
    huggingface.config_content("BertModel", config)
    hash(config)


def _corpus(path) -> None:
    for input_format in ("lines", "text", "jsonl"):
        try:
            for sentence in sentences.read([str(path)], PretrainingDataOptions(input_format=input_format)):
                sentence.encode()
        except UserError:
            continue


def _tokenizer(path) -> None:
    folder = str(path.parent)
    with contextlib.suppress(UserError):
        text_rules.vocabulary(folder)
    text_rules.stated_text(None, str(path.parent / "vocab.txt"))


class Reader(NamedTuple):
    """The name of a file, what it may hold, and what reads it, given its path."""

    name: str
    content: st.SearchStrategy[bytes]
    read: Callable


READERS = {
    "vocabulary": Reader("vocab.txt", damaged(VOCABULARY), lambda path: text_rules.load_tokenizer(str(path), True, 40)),
    "bert_config": Reader("bert_config.json", damaged_json(toy_data.config().to_dict()), _config),
    "huggingface_config": Reader("config.json", damaged_json(CONFIG), _config),
    "table": Reader("train.tsv", damaged(TABLE), _tables),
    "squad": Reader("squad.json", damaged_json(toy_data.squad(3, 1, impossible=True)), _questions),
    "conll": Reader(
        "words.txt", damaged(toy_data.conll(2, 1).encode()), lambda path: ner.tags_of(ner.read_conll(str(path)))
    ),
    "label_map": Reader(
        "label_map.json",
        damaged_json({"task": LABELS.task, "labels": [*LABELS.labels], "regression": False, "multi_label": False}),
        lambda path: task_file.read_label_map(str(path)).describe().encode(),
    ),
    "tokenizer": Reader("tokenizer.json", damaged_json(TOKENIZER), _tokenizer),
    "tokenizer_config": Reader("tokenizer_config.json", damaged_json(TOKENIZER_CONFIG), _tokenizer),
    "tokenization": Reader(
        "tokenization.json",
        damaged_json({"do_lower_case": True, "never_split": ["[E1]"], "strip_accents": False}),
        _tokenizer,
    ),
    "corpus": Reader("text.txt", damaged(TEXT), _corpus),
    "corpus_json": Reader("text.jsonl", damaged_json({"text": "one film . A book .", "id": 7}), _corpus),
    "corpus_gzip": Reader("text.gz", damaged(gzip.compress(TEXT, mtime=0)), _corpus),
    "corpus_bzip2": Reader("text.bz2", damaged(bz2.compress(TEXT)), _corpus),
    "corpus_xz": Reader("text.xz", damaged(lzma.compress(TEXT)), _corpus),
    "export": Reader(
        "model_info.json",
        damaged_json({"text_signatures": True, "signatures": {"serving_text": {"inputs": {"text": {}}}}}),
        lambda path: exporting.load(str(path.parent)),
    ),
}


@lengths(25, 2000)
@pytest.mark.parametrize("name", READERS)
def test_a_text_is_read_or_refused(name, examples, tmp_path):
    reader = READERS[name]
    path = tmp_path / reader.name
    path.parent.mkdir(exist_ok=True)

    def read(content: bytes) -> None:
        for left in (other for other in tmp_path.rglob("*") if other.is_file()):
            left.unlink()
        path.write_bytes(content)
        if name == "table":
            (tmp_path / "dev.tsv").write_bytes(content)
        reader.read(path)

    refuses_or_reads(reader.content, read, examples)


# Records

SIZES = {"max_seq_length": 4, "max_predictions_per_seq": 2, "vocab_size": 37, "type_vocab_size": 2, "num_labels": 3}
TOKENS = {"input_ids": [2, 5, 3, 0], "input_mask": [1, 1, 1, 0], "segment_ids": [0] * 4}
ROWS = {
    "pretraining": (
        records.PRETRAINING,
        {
            **TOKENS,
            "masked_lm_positions": [1, 0],
            "masked_lm_ids": [7, 0],
            "masked_lm_weights": [1.0, 0.0],
            "next_sentence_labels": [1],
        },
    ),
    "unmasked": (
        records.UNMASKED,
        {"input_ids": [2, 5, 3], "segment_lengths": [3], "next_sentence_labels": [0]},
    ),
    "classification": (records.CLASSIFICATION, {**TOKENS, "label_ids": [2], "is_real_example": [1]}),
    "regression": (records.REGRESSION, {**TOKENS, "label_ids": [2.5], "is_real_example": [1]}),
    "tagging": (records.TOKEN_TAGGING, {**TOKENS, "label_ids": [-1, 2, -1, 0]}),
}


def _read_to_the_end(path: str, kind: records.RecordKind) -> None:
    """What TensorFlow refuses, find_fault explains; otherwise every record is read."""
    with explained(lambda: records.find_fault([path], kind, SIZES)):
        count = sum(batch["input_ids"].shape[0] for batch in record_order.read_records([path], kind, SIZES, 2))
    assert count == record_index.read_index([path]).total


@lengths(6, 300)
@pytest.mark.parametrize("name", ROWS)
def test_records_are_read_or_refused(name, examples, tmp_path):
    kind, row = ROWS[name]
    path = str(tmp_path / "records")

    def read(content: bytes) -> None:
        (tmp_path / "records").write_bytes(content)
        with contextlib.suppress(UserError):  # inspect_records.py, which needs no TensorFlow
            assert sum(1 for _ in records.read_all([path], 37)) == record_index.read_index([path]).total
        _read_to_the_end(path, kind)

    refuses_or_reads(damaged_records(records.encode(kind, row)), read, examples)
