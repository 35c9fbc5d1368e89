"""How folders of Hugging Face split text: taken over, or refused by load, scripts and conversion alike."""

from __future__ import annotations

import json
import os
import pathlib

import pytest
from huggingface_folders import make_folder, write_json
from refused import message_of

import bert_tf2
from bert_tf2.weights import convert, huggingface, sources, text_rules
from bert_tf2.weights.options import ConversionOptions
from bert_tf2.weights.task_file import load_label_map

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT = {"type": "BertNormalizer", "clean_text": True, "lowercase": True, "strip_accents": None}


def whole(entries: list[str], **changes) -> dict:
    """A tokenizer.json."""
    vocab = {entry: index for index, entry in enumerate(entries)}
    model = {"type": "WordPiece", "vocab": vocab, "continuing_subword_prefix": "##", "unk_token": "[UNK]"}
    return {"model": model, "normalizer": BERT, "pre_tokenizer": {"type": "BertPreTokenizer"}, **changes}


def written(folder: pathlib.Path, vocabulary: list[str] | None, **contents) -> str:
    """Writes a vocab.txt and files, by their names with _json in place of .json."""
    folder.mkdir(exist_ok=True)
    if vocabulary:
        (folder / "vocab.txt").write_text("".join(f"{entry}\n" for entry in vocabulary))
    for name, content in contents.items():
        write_json(folder / name.replace("_json", ".json"), content)
    return str(folder)


def test_the_vocabulary_and_the_case(tmp_path):
    source = huggingface.HuggingFaceFolder(make_folder(tmp_path))
    assert source.vocabulary() is None and text_rules.in_huggingface(str(tmp_path)) is None
    added = [{"id": 0, "content": "[PAD]"}, {"id": 3, "content": "new"}]
    tokenizer = whole([], model={"type": "WordPiece", "vocab": {"[PAD]": 0, "b": 2, "a": 1}}, added_tokens=added)
    tokenizer["normalizer"] = {**BERT, "lowercase": False, "strip_accents": True}
    folder = written(tmp_path, None, tokenizer_json=tokenizer)
    assert source.vocabulary() == ["[PAD]", "a", "b", "new"]
    said = text_rules.in_huggingface(folder)
    assert said[1:4] == (False, {"never_split": ["new"], "strip_accents": True}, "")
    assert said.path.endswith("tokenizer.json")
    written(tmp_path, ["[PAD]", "c", "d"], tokenizer_config_json={"do_lower_case": True, "strip_accents": None})
    assert text_rules.in_huggingface(folder)[1:3] == (True, {"never_split": ["new"]})
    assert source.vocabulary() == ["[PAD]", "c", "d", "new"] and source.vocabulary_file() is None
    written(tmp_path, ["[PAD]", "c", "d", "new"])
    assert source.vocabulary_file() == str(tmp_path / "vocab.txt")


@pytest.mark.parametrize(
    "content, part",
    [
        ({"model": {"type": "BPE", "vocab": {"a": 0}}}, "WordPiece"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 2}}}, "0, 1, 2"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 0}}}, "0, 1, 2"),
        ({"model": []}, "WordPiece"),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 5, "content": "b"}]}, "0, 1, 2"),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 0, "content": "b"}]}, "entry 0 is 'a', and 'b'"),
    ],
)
def test_a_vocabulary_that_is_none(tmp_path, content, part):
    folder = make_folder(tmp_path)
    write_json(tmp_path / "tokenizer.json", content)
    assert part in message_of(huggingface.HuggingFaceFolder(folder).vocabulary)


# What is supported

WORDS = [*SPECIAL, "the", "film", "[", "]", "e1"]
NEW = {"content": "[E1]", "special": True, "normalized": False}
ADDED = {
    "tokenizer.json": (WORDS, {"tokenizer_json": whole(WORDS, added_tokens=[{**NEW, "id": 10}])}),
    "decoder": (WORDS, {"tokenizer_config_json": {"added_tokens_decoder": {"3": {"content": "[SEP]"}, "10": NEW}}}),
    "added_tokens.json": (WORDS, {"added_tokens_json": {"[E1]": 10}}),
    "never_split": ([*WORDS, "[E1]"], {"tokenizer_config_json": {"never_split": ["[E1]"]}}),
    "special": ([*WORDS, "[E1]"], {"tokenizer_config_json": {"additional_special_tokens": [NEW]}}),
}


@pytest.mark.parametrize("kind", ADDED)
def test_added_tokens_stay_whole(tmp_path, kind, log_lines):
    words, contents = ADDED[kind]
    folder = written(tmp_path, words, **contents)
    entries = text_rules.vocabulary(folder)
    assert entries == [*WORDS, "[E1]"]
    if len(words) < len(entries):  # a script reads vocab.txt alone
        assert "vocab.txt: lacks '[E1]', which is among" in message_of(
            text_rules.load_tokenizer, str(tmp_path / "vocab.txt"), True
        )
        written(tmp_path, entries)
    tokenizer = text_rules.load_tokenizer(str(tmp_path / "vocab.txt"), True)
    assert tokenizer.tokenize("The[E1]film [e1] [SEP]") == [*("the", "[E1]", "film", "[", "e1", "]", "["), "[UNK]", "]"]
    assert any("added tokens [E1] are found in lower" in line for line in log_lines) == (kind == "added_tokens.json")


RULES = {"never_split": ["[E1]"], "strip_accents": False, "tokenize_chinese_chars": False}


def convert_to(to: str, source: pathlib.Path, output: pathlib.Path, **settings) -> list[str]:
    return convert.run(ConversionOptions(input=str(source), output=str(output), to=to, **settings))


def test_conversions_keep_the_rules(tmp_path):
    """There and back, as many German models have them: lower-cased with accents."""
    make_folder(tmp_path / "0", architecture="BertModel")
    said = {**RULES, "never_split": None, "additional_special_tokens": ["[E1]"], "do_lower_case": True}
    written(tmp_path / "0", [*SPECIAL, "über", "[E1]"], tokenizer_config_json=said)
    for number, to in enumerate(("tf1", "hf", "tf1")):
        convert_to(to, tmp_path / str(number), tmp_path / str(number + 1))
        tokenizer = bert_tf2.load(tmp_path / str(number + 1)).tokenizer
        assert tokenizer.rules == RULES and tokenizer.basic_tokenizer.do_lower_case
        assert tokenizer.tokenize("Über[E1]uber") == ["über", "[E1]", "[UNK]"]
    assert (
        json.loads((tmp_path / "3" / "tokenization.json").read_text()).items()
        >= {**RULES, "do_lower_case": True}.items()
    )


def test_tokens_that_are_kept_whole_from_now_on(tmp_path):
    """A case that nobody stated stays so; an [unused] entry on the list keeps its place."""
    make_folder(tmp_path / "in", architecture="BertModel")
    written(tmp_path / "in", [*SPECIAL, "[unused0]", "[unused1]"])
    (tmp_path / "kept.txt").write_text("[E1]\n\n[unused0]\n[E1]\n[E2]\n")
    report = convert_to("tf1", tmp_path / "in", tmp_path / "out", never_split=str(tmp_path / "kept.txt"))
    assert "Vocabulary: 2 new entries, 1 of them in [unused] places, 1 at the end; 1 were there already." in report
    said = json.loads((tmp_path / "out" / "tokenization.json").read_text())
    assert said["never_split"] == ["[E1]", "[E2]", "[unused0]"] and "do_lower_case" not in said
    assert (tmp_path / "out" / "vocab.txt").read_text().split() == [*SPECIAL, "[unused0]", "[E1]", "[E2]"]
    for line, part in (("[SEP]", "[SEP] in a text is none of BERT's own"), ("new york", "blanks separate words")):
        (tmp_path / "kept.txt").write_text(f"{line}\n")
        message = message_of(
            convert_to, "tf1", tmp_path / "in", tmp_path / "no", never_split=str(tmp_path / "kept.txt")
        )
        assert f"kept.txt, line 1: {line!r}".replace("'[SEP]'", "[SEP]") in message and part in message


# What is refused


@pytest.mark.parametrize(
    ("contents", "part"),
    [
        ({"tokenizer_config_json": {"tokenizer_class": "BertJapaneseTokenizer"}}, "class is BertJapaneseTokenizer"),
        ({"tokenizer_config_json": {"do_basic_tokenize": False}}, "do_basic_tokenize is false"),
        ({"tokenizer_json": whole(WORDS, pre_tokenizer={"type": "Whitespace"})}, "pre_tokenizer has type 'Whitespace'"),
        ({"tokenizer_json": whole(WORDS, normalizer=None)}, "normalizer has type None, not 'BertNormalizer'"),
        ({"tokenizer_json": whole(WORDS, normalizer={**BERT, "clean_text": False})}, "clean_text False, not True"),
        ({"tokenizer_json": whole(WORDS, model={"vocab": {}, "continuing_subword_prefix": "@@"})}, "'@@', not '##'"),
        ({"tokenizer_config_json": {"cls_token": "<s>", "sep_token": "[SEP]"}}, "cls_token is '<s>', not '[CLS]'"),
        ({"special_tokens_map_json": {"unk_token": {"content": "<unk>"}}}, "unk_token is '<unk>', not '[UNK]'"),
    ],
)
def test_another_tokenizer_is_refused_everywhere(tmp_path, contents, part):
    folder = make_folder(tmp_path / "in", architecture="BertModel")
    written(tmp_path / "in", [*SPECIAL, "the", "film"], **contents)
    calls = (
        (bert_tf2.load, folder),
        (text_rules.load_tokenizer, f"{folder}/vocab.txt", True),
        (convert_to, "hf", tmp_path / "in", tmp_path / "out"),
    )
    (message,) = {message_of(*call) for call in calls}
    assert part in message and "its tokenizer is not BERT's" in message and message.startswith(folder)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name", ["tokenization.json", "tokenizer_config.json", "vocab.txt", "bert_config.json", "label_map.json"]
)
def test_a_pipe_beside_weights_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)

    def read() -> None:
        sources.model_files(str(tmp_path))
        text_rules.stated_text(None, str(tmp_path / "vocab.txt"))
        load_label_map(str(tmp_path))

    assert message_of(read) == f"{tmp_path / name}: is a pipe or a device, where a file is expected; remove it"
