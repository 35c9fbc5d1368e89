"""Files of the wrong kind: every reader says what they are and which command makes the right one of them."""

import gzip
import json
import re

import pytest
from refused import message_of

from bert_tf2 import tokenization
from bert_tf2.config import BertConfig
from bert_tf2.data import records
from bert_tf2.finetuning import ner, squad
from bert_tf2.support import files
from bert_tf2.weights import sources
from bert_tf2.weights.task_file import load_label_map, read_label_map

TEXT = "".join(f"word{number} another\n" for number in range(50))


GZIP = r"is a gzip archive, not .*; unpack it first: gunzip -c < (\S+) > \1\.unpacked"
KINDS = {
    "gzip": (gzip.compress(TEXT.encode()), GZIP),
    "UTF-16": (TEXT.encode("utf-16"), r"is text in UTF-16, not .*: iconv -f UTF-16 -t UTF-8 (\S+) > \1\.utf8"),
    "UTF-16 big": (b"\xfe\xff" + TEXT.encode("utf-16-be"), "is text in UTF-16, not .*: iconv -f UTF-16 "),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "is a pointer .*: git lfs pull"),
}  # fmt: skip

READERS = {
    "text": files.read_text,
    "lines": lambda path: list(files.read_lines(path)),
    "vocabulary": tokenization.load_vocab,
    "configuration": BertConfig.from_json_file,
    "SQuAD": lambda path: squad.read_squad_examples(path, True),
    "CoNLL": ner.read_conll,
    "labels": read_label_map,
    "weights": sources.open_weights,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_kind_is_called_by_its_name(kind, tmp_path):
    data, message = KINDS[kind]
    path = tmp_path / "file"
    path.write_bytes(data)
    for read in READERS.values():
        found = message_of(read, str(path))
        assert found.startswith(f"{path}: is ") and re.search(message, found), found
    found = str(records.find_fault([str(path)], records.CLASSIFICATION, {}))
    message = "is text, not TFRecord" if kind == "gzip" else message  # records may be compressed
    assert found.startswith(f"{path}: is ") and re.search(message, found), found


def test_text_that_is_given_as_records(tmp_path):
    path = tmp_path / "records"
    path.write_text(json.dumps({"data": []}))
    found = str(records.find_fault([str(path)], records.PRETRAINING, {}))
    assert found == f"{path}: is text, not TFRecord; create_pretraining_data.py makes records of text, to be given here"


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "m.keras", "x.ckpt.index"])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (KINDS["gzip"][0], "is a gzip archive"),
        (KINDS["Git LFS"][0], "is a pointer of Git LFS"),
        (TEXT.encode(), "is text, not "),
        (b"<!DOCTYPE html><html>sign in</html>", "is an HTML page"),
    ],
)
def test_weights_that_are_something_else(name, data, message, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / name
    path.write_bytes(data)
    found = message_of(sources.open_weights, str(path))
    if "configuration" not in found:  # which is looked at first
        assert found.startswith(f"{path}: is ") and message in found


def test_names_in_a_command_can_be_pasted(tmp_path):
    path = tmp_path / "my file.gz"
    path.write_bytes(KINDS["gzip"][0])
    assert message_of(files.read_text, str(path)).endswith(f"unpack it first: gunzip -c < '{path}' > '{path}'.unpacked")


@pytest.mark.parametrize("data", [b"PK and BZh are letters\n", b"a\0b \0 c\n" * 20, b"", b"\n", "ä".encode()])
def test_text_is_left_alone(data, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(data)
    assert files.read_text(str(path)) == data.decode()
    assert files.recognize(data, "x", "text") is None


# JSON.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        (" \n", "the file is empty"),
        ("{", "line 1, column 2: not valid JSON"),
        ('{"a": 1,\n "b": }', "line 2, column 7: not valid JSON"),
        ("[" * 100000, "nested too deep"),
        ('{\n"vocab_size": ' + "1" * 5000 + "}", "too long a number"),
        ("[1]", "an object {...} is needed in this JSON file, not [1]"),
        ("null", "an object {...} is needed in this JSON file, not null"),
        ("<html><body>404</body></html>", "is an HTML page"),
        (json.dumps({"a": "b"}).replace("b", "\x01"), "not valid JSON"),
    ],
)
def test_json_that_cannot_be_read(text, message, tmp_path):
    path = tmp_path / "file.json"
    path.write_text(text)
    found = message_of(files.read_json, str(path))
    assert found.startswith(str(path)) and message in found


# Byte order marks.


def test_a_byte_order_mark_goes_everywhere_but_in_running_text(tmp_path):
    sizes = dict.fromkeys(("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"), 2)
    texts = {
        "vocab.txt": "[PAD]\n[UNK]\n",
        "config.json": json.dumps({**sizes, "intermediate_size": 4}),
        "squad.json": json.dumps({"data": [{"paragraphs": [{"context": "a", "qas": [{"id": 1, "question": "q"}]}]}]}),
        "conll.txt": "EU B-ORG\n",
        "label_map.json": json.dumps({"task": "tsv", "labels": ["a", "b"], "regression": False}),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text("\ufeff" + text, encoding="utf-8")
    assert tokenization.load_vocab(str(tmp_path / "vocab.txt")) == {"[PAD]": 0, "[UNK]": 1}
    assert BertConfig.from_json_file(str(tmp_path / "config.json")).vocab_size == 2
    assert squad.read_squad_examples(str(tmp_path / "squad.json"), False)[0].qas_id == "1"
    assert ner.read_conll(str(tmp_path / "conll.txt"))[0].words == ["EU"]
    assert load_label_map(str(tmp_path)).labels == ("a", "b")
    assert next(files.read_lines(str(tmp_path / "conll.txt"))) == "\ufeffEU B-ORG"
