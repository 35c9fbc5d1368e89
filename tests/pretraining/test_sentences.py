"""--input_format: what a line means, the library that splits paragraphs, and compressed text."""

from __future__ import annotations

import dataclasses
import gzip
import importlib.util
import json
import random
import sys

import pytest
from pretraining_text import CORPUS, data_options

from bert_tf2.pretraining import corpus, example_files, sentences, sharded
from bert_tf2.pretraining.options import PretrainingDataOptions
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import WrongSetting

needs_sentencex = pytest.mark.skipif(importlib.util.find_spec("sentencex") is None, reason="needs the extra sentences")

ENGLISH = 'Dr. Smith came at 5 p.m. on Jan. 5. He said: "It is late. Go home!" The U.S. economy grew 3.5 % in 2010.'
GERMAN = "Er kam am 3. Oktober nach Bonn, z. B. mit Dr. Ott. „Was ist das?“, fragte er. Ludwig XIV. regierte lange."
CHINESE = "他说:“你好吗?我很好。”然后他走了。今天天气很好!"


def read(tmp_path, content, **settings):
    path = tmp_path / "text"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [*sentences.read([str(path)], PretrainingDataOptions(**settings))]


def as_json(*texts, field="text"):
    return "".join(json.dumps({"id": 1, field: text}) + "\n" for text in texts)


def test_a_line_is_a_sentence(tmp_path):
    assert read(tmp_path, " a b. C d. \r\n\n\u3000\n\x00\nc") == ["a b. C d.", "", "", "\x00", "c"]


@needs_sentencex
@pytest.mark.parametrize(
    ("language", "paragraph", "expected"),
    [
        ("en", ENGLISH, ["Dr. Smith came at 5 p.m. on Jan. 5.", 'He said: "It is late. Go home!"', ENGLISH[68:]]),
        ("de", GERMAN, [GERMAN[:50], "„Was ist das?“, fragte er.", "Ludwig XIV. regierte lange."]),
        ("zh", CHINESE, ["他说:“你好吗?我很好。”", "然后他走了。", "今天天气很好!"]),
    ],
)
def test_paragraphs_are_split(tmp_path, language, paragraph, expected):
    text = f"{paragraph}\r\n  {paragraph}  \n\n \n{paragraph}"
    assert read(tmp_path, text, input_format="text", language=language) == [*expected * 2, "", "", *expected]
    text = as_json(f"{paragraph}\r\n\n{paragraph}\n", "", paragraph) + "\n\ufeff" + as_json(paragraph)
    found = read(tmp_path, text, input_format="jsonl", language=language)
    assert found == [*expected * 2, "", "", *expected, "", *expected, ""]


@needs_sentencex
def test_nothing_is_lost_or_changed_by_splitting(tmp_path):
    """sentencex 1.0.32 fails at white space that takes several bytes, for example in `J.\\u2028K. `."""
    rng = random.Random(5)
    parts = [
        *"ab AB. . !?\"'“”«»()。…\u200b\u0301\u2028\x85\x0bé文\U0001f600\u00a0\u3000\ufeff1",
        "Dr.",
        "z. B.",
        "J. ",
    ]
    paragraphs = ["".join(rng.choices(parts, k=rng.randint(1, 60))) for _ in range(3000)] + ["A. B \u2028.C"]
    for language in ("en", "de", "ja"):
        split = sentences._splitter(language)
        for paragraph in paragraphs:
            assert "".join("".join(split(paragraph)).split()) == "".join(paragraph.split())


@needs_sentencex
@pytest.mark.parametrize("input_format", ["text", "jsonl"])
def test_splitting_first_gives_the_same_records(tmp_path, vocab_file, tokenizer, input_format):
    lines = [line.capitalize().replace(" .", "zz.") for line in CORPUS.splitlines()]
    text = "\n".join(f"{line} {line}" if line else "" for line in lines) + "\n"  # paragraphs of two sentences
    if input_format == "jsonl":
        text = as_json(*text.split("\n\n"))
    (tmp_path / "text").write_text(text)
    options = data_options(tmp_path, input_file=f"{tmp_path}/text", input_format=input_format)
    found = [*sentences.read([options.input_file], options)]
    assert len([*filter(None, found)]) == 2 * len([*filter(None, lines)]) and found.count("") >= 3
    (tmp_path / "lines").write_text("\n".join(found) + "\n")
    example_files.run(options)
    example_files.run(data_options(tmp_path, "same", input_file=f"{tmp_path}/lines"))
    assert (tmp_path / "out").read_bytes() == (tmp_path / "same").read_bytes() != b""
    # The readable examples read the same.
    words = dataclasses.replace(options, do_whole_word_mask=True)
    strings, ids = (how([options.input_file], tokenizer, words) for how in (corpus.read_strings, corpus.read))
    assert (strings.documents, strings.bounds, strings.kinds) == (ids.documents, ids.bounds, ids.kinds)
    assert ids.tokens.tolist() == tokenizer.convert_tokens_to_ids(strings.tokens)


@needs_sentencex
def test_half_a_character_is_replaced(tmp_path):
    halves = '{"text": "a \\ud83d b \\ud83d\\ude00."}'
    assert read(tmp_path, halves, input_format="jsonl") == ["a \ufffd b \U0001f600.", ""]


@needs_sentencex
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "a"', r"line 3: is not valid JSON \(column 13: Expecting ',' delimiter\)"),
        ("plain text", r"line 3: is not valid JSON .* one object a line"),
        ("[" * 100_000, "line 3: is not valid JSON"),
        ('["a"]', "line 3: is no JSON object; "),
        ('{"id": 1, "body": "a"}', r"line 3: has no text in a field 'text' \(its fields: body, id\); see --text_field"),
        ('{"text": null}', "line 3: has no text in a field 'text'"),
    ],
)
def test_wrong_json_is_named_with_its_line(tmp_path, line, words):
    with pytest.raises(UserError, match=f"/text, {words}") as caught:
        read(tmp_path, as_json("a") + "\n" + line + "\n" + as_json("b"), input_format="jsonl")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_without_the_library(tmp_path, monkeypatch, vocab_file, corpus):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    for more in ({}, {"num_shards": 2}):
        options = data_options(tmp_path, "new/out", input_format="text", **more)
        with pytest.raises(UserError, match=r"need the library sentencex.*: pip install sentencex"):
            sharded.run(options)
    assert not (tmp_path / "new").exists()
    assert read(tmp_path, "a") == ["a"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"input_format": "json"}, "--input_format=json"),
        ({"language": "German", "input_format": "text"}, "--language=German: an ISO 639 code"),
    ],
)
def test_settings_of_texts(settings, words):
    with pytest.raises(WrongSetting, match=words):
        PretrainingDataOptions(**settings)


def test_json_lines_that_are_read_as_text_get_one_warning(tmp_path, log_lines):
    contents = {"list": "[1] is a number.\n", "brace": "{a set}\n", "one": as_json("A."), "two": "{}"}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    paths = [f"{tmp_path}/{name}" for name in contents]
    assert len([*sentences.read(paths, PretrainingDataOptions())]) == 4
    (line,) = (line for line in log_lines if "JSON" in line)
    assert line.startswith(f"{tmp_path}/one: ") and line.endswith("give --input_format=jsonl")


def test_compressed_text_is_read_as_it_is(tmp_path):
    text = "a\n\nb\r\n" * 5000
    assert read(tmp_path, gzip.compress(text.encode())) == read(tmp_path, text)
    two = gzip.compress(b"a\n") + gzip.compress(b"b")
    assert read(tmp_path, two) == ["a", "b"]
