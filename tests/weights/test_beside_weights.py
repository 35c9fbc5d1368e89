"""Files beside weights - configuration, vocabulary, case, tokenizer, labels - and calls that contradict them.

Each file gets one verdict at every door: `load`, the scripts and the conversion take it, warn of it, or refuse it.
"""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
import toy_data
from google_folders import CASED, google_folder, write_vocab
from huggingface_folders import CONFIG, make_folder, tensors_of, write_json
from refused import message_of, refuses

import bert_tf2
from bert_tf2 import heads, modeling
from bert_tf2.commands import call
from bert_tf2.tokenization import SPECIAL_TOKENS
from bert_tf2.weights import sources, text_rules
from bert_tf2.weights.task_file import LabelMap, load_label_map, save_label_map

ENTRIES = len(toy_data.VOCAB) + 2  # of the models: two rows have no entry


def converted(source, output, to: str = "hf", **settings) -> list[str]:
    return call("convert_checkpoint", input=str(source), output=str(output), to=to, **settings)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> pathlib.Path:
    """A pretrained model in a folder of each layout; a cased one; and one in which transformers' gelu is uncertain."""
    path = tmp_path_factory.mktemp("models")
    google_folder(path / "tf1", vocab_size=ENTRIES, num_hidden_layers=2)
    google_folder(path / "cased", vocabulary=CASED)
    for source, output, to in (("tf1", "keras", "keras"), ("tf1", "hf", "hf"), ("cased", "cased_hf", "hf")):
        converted(path / source, path / output, to)
    content = json.loads((path / "hf" / "config.json").read_text())
    write_json(path / "hf" / "config.json", {**content, "hidden_act": "gelu"})
    return path


# The configuration

DROPOUT = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.4, "initializer_range": 0.7}


@pytest.mark.parametrize(
    ("folder", "changes", "refusal", "warning"),
    [
        ("tf1", {"num_attention_heads": 4}, "tf1/bert_config.json num_attention_heads 4 --bert_config_file=", ""),
        ("tf1", {"hidden_act": "relu"}, "tf1/bert_config.json hidden_act gelu relu", ""),
        ("tf1", {"hidden_act": "gelu_erf"}, "tf1/bert_config.json hidden_act gelu gelu_erf", ""),
        ("tf1", {"layer_norm_eps": 1e-5}, "tf1/bert_config.json layer_norm_eps 1e-12 1e-05", ""),
        ("keras", {"hidden_act": "relu"}, "keras/bert_model.keras hidden_act --bert_config_file", ""),
        ("tf1", {"hidden_act": "GELU", "extra": {"pooler_type": "x"}, **DROPOUT}, "", ""),
        ("tf1", {"num_hidden_layers": 1}, "", "only the first layers"),
        ("hf", {}, "", "not certain"),
    ],
)
def test_another_configuration_than_that_of_the_weights(models, tmp_path, log_lines, folder, changes, refusal, warning):
    """Refused if it changes the function of the weights without changing a shape."""
    (tmp_path / "other.json").write_text(
        toy_data.config(**{"vocab_size": ENTRIES, "num_hidden_layers": 2, **changes}).to_json_string()
    )
    given = {"bert_config_file": str(tmp_path / "other.json")}
    for door in (bert_tf2.load, lambda folder, **given: converted(folder, tmp_path / "out", **given)):
        if refusal:
            refuses(refusal, door, models / folder, **given)
        else:
            door(models / folder, **given)
    assert any("config" in line and warning in line for line in log_lines) == bool(warning)


# The vocabulary


@pytest.mark.parametrize(
    ("ours", "differ"),
    [
        ([f"{entry} " for entry in toy_data.VOCAB], False),
        ([*toy_data.VOCAB, "more", "words"], False),
        (toy_data.VOCAB[:-1], False),
        ([*toy_data.VOCAB[:-1], "[unused1]"], False),
        ([*toy_data.VOCAB[:7], "[unused1]", *toy_data.VOCAB[8:]], False),
        ([*toy_data.VOCAB[:-2], *toy_data.VOCAB[:-3:-1]], True),
    ],
)
def test_another_vocabulary_than_that_of_the_weights(models, tmp_path, ours, differ):
    path = write_vocab(tmp_path / "vocab.txt", ours)
    if differ:
        refuses("vocab.txt: 2 entries line 36 '##ing' 'play'", bert_tf2.load, models / "tf1", vocab_file=path)
    else:
        assert bert_tf2.load(models / "tf1", vocab_file=path).tokenizer.vocab["film"] == toy_data.VOCAB.index("film")


# The case of the text


def lower(folder: pathlib.Path, vocab_file: str, given: bool | None) -> bool:
    """Whether the scripts lower-case text."""
    source = sources.open_weights(str(folder))
    return text_rules.load_tokenizer(vocab_file, given, source=source).basic_tokenizer.do_lower_case


@pytest.mark.parametrize("place", ["weights", "vocabulary"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", {"do_lower_case": False}),
        ("tokenizer.json", {"normalizer": {"type": "BertNormalizer", "lowercase": False}}),
        ("tokenization.json", {"do_lower_case": False}),
    ],
)
def test_a_file_that_states_the_case(tmp_path, log_lines, place, name, content):
    google_folder(tmp_path / "weights")
    vocab_file = write_vocab(tmp_path / "vocabulary" / "vocab.txt", toy_data.VOCAB)
    write_json(tmp_path / place / name, content)
    refuses(f"{place}/{name} --do_lower_case=False", lower, tmp_path / "weights", vocab_file, None)
    assert lower(tmp_path / "weights", vocab_file, False) is False and not log_lines
    assert lower(tmp_path / "weights", vocab_file, True) is True
    assert any(f"{name}" in line and "--do_lower_case=True counts" in line for line in log_lines)
    if place == "vocabulary":  # the word of the weights comes first
        write_json(tmp_path / "weights" / "tokenization.json", {"do_lower_case": True})
        assert lower(tmp_path / "weights", vocab_file, None) is True


@pytest.mark.parametrize(
    "content", ["", "[]", '{"do_lower_case": "no"}', '{"never_split": [7]}', '{"strip_accents": 1}']
)
def test_a_broken_tokenization_file_is_named(tmp_path, content):
    (pathlib.Path(google_folder(tmp_path / "in")) / "tokenization.json").write_text(content)
    refuses("in/tokenization.json", bert_tf2.load, tmp_path / "in")
    refuses("in/tokenization.json", lower, tmp_path / "in", str(tmp_path / "in" / "vocab.txt"), None)


@pytest.mark.parametrize(
    ("entries", "given", "warning"),
    [
        (toy_data.VOCAB, None, ""),
        (toy_data.VOCAB, True, ""),
        (toy_data.VOCAB, False, "no entry has a capital letter"),
        (CASED, None, "29 of 37 'Good', line 6 --do_lower_case=False"),
        (CASED, True, ""),
        (CASED, False, ""),
        ([*toy_data.VOCAB[:-1], "café"], None, "1 of 37 'café', line 37"),
        ([*toy_data.VOCAB[:-2], "[XYZ]", "<S>"], None, ""),
    ],
)
def test_the_vocabulary_warns_where_no_file_states_the_case(tmp_path, log_lines, entries, given, warning):
    vocab_file = write_vocab(tmp_path / "vocab.txt", entries)
    assert text_rules.load_tokenizer(vocab_file, given).basic_tokenizer.do_lower_case is (given is not False)
    assert [line for line in log_lines if all(word in line for word in warning.split())] == log_lines
    assert bool(log_lines) == bool(warning)
    log_lines.clear()
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": given is not False})
    text_rules.load_tokenizer(vocab_file, given)
    assert not log_lines


def test_a_few_added_words_do_not_make_a_vocabulary_cased():
    entries = [f"word{number}" for number in range(2000)]
    assert not text_rules.is_cased([*entries, "COVID", "naïve"]) and text_rules.is_cased([*entries, "A", "B", "C"])


def test_a_cased_model_with_the_default_flag_is_refused_by_every_script(models, tmp_path, monkeypatch, capsys):
    """Before anything is written. Files beside the weights that no flag names are found, and then count."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("The film .\n")
    model = models / "cased_hf"
    files = {"bert_config_file": str(model / "config.json"), "vocab_file": str(model / "vocab.txt")}
    model = {**files, "init_checkpoint": str(model)}
    text = {"input_file": "text.txt", "output_file": "out", "max_seq_length": 32}
    for script, settings in {
        "extract_features": {**text, **model, "layers": "-1"},
        "predict_masked": {"sentence": ["The [MASK] ."], **model},
        "create_pretraining_data": {**text, "vocab_file": files["vocab_file"]},
    }.items():
        refuses("cased_hf/tokenizer_config.json --do_lower_case=False", call, script, **settings)
    call("predict_masked", init_checkpoint=model["init_checkpoint"], sentence=["The [MASK] ."])
    assert capsys.readouterr().out.startswith("The [MASK] .\n")
    refuses("--bert_config_file beside", call, "predict_masked", init_checkpoint=str(tmp_path), sentence=["x"])
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


# The tokenizer of transformers

BERT = {"type": "BertNormalizer", "clean_text": True, "lowercase": True, "strip_accents": None}
WORDS = [*SPECIAL_TOKENS, "the", "film", "[", "]", "e1"]


def whole(entries: list[str], **changes) -> dict:
    """A tokenizer.json."""
    vocab = {entry: index for index, entry in enumerate(entries)}
    model = {"type": "WordPiece", "vocab": vocab, "continuing_subword_prefix": "##", "unk_token": "[UNK]"}
    return {"model": model, "normalizer": BERT, "pre_tokenizer": {"type": "BertPreTokenizer"}, **changes}


def written(folder: pathlib.Path, vocabulary: list[str] | None, **contents) -> str:
    """Writes vocab.txt, and JSON files by their names without the ending, beside the weights of an encoder."""
    make_folder(folder, architecture="BertModel", vocab_size=7)
    if vocabulary:
        write_vocab(folder / "vocab.txt", vocabulary)
    for name, content in contents.items():
        write_json(folder / f"{name}.json", content)
    return str(folder)


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ({"tokenizer_config": {"tokenizer_class": "BertJapaneseTokenizer"}}, "BertJapaneseTokenizer"),
        ({"tokenizer_config": {"do_basic_tokenize": False}}, "do_basic_tokenize false"),
        ({"tokenizer": whole(WORDS, pre_tokenizer={"type": "Whitespace"})}, "pre_tokenizer 'Whitespace'"),
        ({"tokenizer": whole(WORDS, normalizer=None)}, "normalizer 'BertNormalizer'"),
        ({"tokenizer": whole(WORDS, normalizer={**BERT, "clean_text": False})}, "clean_text False"),
        ({"tokenizer": whole(WORDS, model={"vocab": {}, "continuing_subword_prefix": "@@"})}, "'@@' '##'"),
        ({"tokenizer_config": {"cls_token": "<s>", "sep_token": "[SEP]"}}, "cls_token '<s>'"),
        ({"special_tokens_map": {"unk_token": {"content": "<unk>"}}}, "unk_token '<unk>'"),
    ],
)
def test_another_tokenizer_is_refused_at_every_door(tmp_path, contents, words):
    folder = written(tmp_path / "in", [*SPECIAL_TOKENS, "the", "film"], **contents)
    doors = (
        (bert_tf2.load, folder),
        (text_rules.load_tokenizer, f"{folder}/vocab.txt", True),
        (converted, folder, tmp_path / "out"),
    )
    assert len({refuses(f"{folder} tokenizer {words}", *door) for door in doors}) == 1
    assert not (tmp_path / "out").exists()


def test_the_entries_and_rules_of_a_tokenizer_file(tmp_path):
    folder = written(tmp_path / "in", None)
    source = sources.open_weights(folder)
    assert source.vocabulary() is None and source.text is None
    added = [{"id": 0, "content": "[PAD]"}, {"id": 3, "content": "new"}]
    model = {"type": "WordPiece", "vocab": {"[PAD]": 0, "b": 2, "a": 1}}
    normalizer = {**BERT, "lowercase": False, "strip_accents": True}
    written(tmp_path / "in", None, tokenizer=whole([], model=model, added_tokens=added, normalizer=normalizer))
    found = sources.open_weights(folder)
    assert found.vocabulary() == ["[PAD]", "a", "b", "new"] and found.text.path.endswith("tokenizer.json")
    assert found.text[1:3] == (False, {"never_split": ["new"], "strip_accents": True})
    # The configuration of the tokenizer counts before tokenizer.json, vocab.txt before the vocabulary there.
    written(tmp_path / "in", ["[PAD]", "c", "d"], tokenizer_config={"do_lower_case": True, "strip_accents": None})
    found = sources.open_weights(folder)
    assert found.text[1:3] == (True, {"never_split": ["new"]}) and found.vocabulary() == ["[PAD]", "c", "d", "new"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model": {"type": "BPE", "vocab": {"a": 0}}}, "WordPiece vocab.txt"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 2}}}, "ids vocab.txt"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 0}}}, "ids vocab.txt"),
        ({"model": []}, "WordPiece vocab.txt"),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 5, "content": "b"}]}, "ids vocab.txt"),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 0, "content": "b"}]}, "'a' 'b'"),
    ],
)
def test_a_tokenizer_file_without_a_vocabulary(tmp_path, content, words):
    folder = written(tmp_path / "in", None, tokenizer=content)
    refuses(f"{folder}/tokenizer.json {words}", sources.open_weights(folder).vocabulary)


NEW = {"content": "[E1]", "special": True, "normalized": False}


@pytest.mark.parametrize(
    ("words", "contents"),
    [
        (WORDS, {"tokenizer": whole(WORDS, added_tokens=[{**NEW, "id": 10}])}),
        (WORDS, {"tokenizer_config": {"added_tokens_decoder": {"3": {"content": "[SEP]"}, "10": NEW}}}),
        (WORDS, {"added_tokens": {"[E1]": 10}}),
        ([*WORDS, "[E1]"], {"tokenizer_config": {"never_split": ["[E1]"]}}),
        ([*WORDS, "[E1]"], {"tokenizer_config": {"additional_special_tokens": [NEW]}}),
    ],
)
def test_added_tokens_stay_whole(tmp_path, words, contents, log_lines):
    folder = written(tmp_path / "in", words, **contents)
    entries = sources.open_weights(folder).vocabulary()
    assert entries == [*WORDS, "[E1]"]
    if len(words) < len(entries):  # a script reads vocab.txt alone
        refuses("vocab.txt '[E1]'", text_rules.load_tokenizer, f"{folder}/vocab.txt", True)
        write_vocab(tmp_path / "in" / "vocab.txt", entries)
    tokenizer = text_rules.load_tokenizer(f"{folder}/vocab.txt", True)
    assert tokenizer.tokenize("The[E1]film [e1] [SEP]") == [*("the", "[E1]", "film", "[", "e1", "]", "["), "[UNK]", "]"]
    assert any("[E1]" in line and "lower" in line for line in log_lines) == ("added_tokens" in contents)


def test_conversions_keep_the_rules(tmp_path):
    """There and back, as many German models have them: lower-cased with accents."""
    rules = {"never_split": ["[E1]"], "strip_accents": False, "tokenize_chinese_chars": False}
    said = {**rules, "never_split": None, "additional_special_tokens": ["[E1]"], "do_lower_case": True}
    written(tmp_path / "0", [*SPECIAL_TOKENS, "über", "[E1]"], tokenizer_config=said)
    for number, to in enumerate(("tf1", "hf", "tf1")):
        converted(tmp_path / str(number), tmp_path / str(number + 1), to)
        tokenizer = bert_tf2.load(tmp_path / str(number + 1)).tokenizer
        assert tokenizer.rules == rules and tokenizer.basic_tokenizer.do_lower_case
        assert tokenizer.tokenize("Über[E1]uber") == ["über", "[E1]", "[UNK]"]
    content = json.loads((tmp_path / "3" / "tokenization.json").read_text())
    assert content.items() >= {**rules, "do_lower_case": True}.items()


def test_a_conversion_adds_tokens_that_are_never_split(tmp_path):
    """A case that no file stated stays so; an [unused] entry on the list keeps its place."""
    folder, kept = written(tmp_path / "in", [*SPECIAL_TOKENS, "[unused0]", "[unused1]"]), tmp_path / "kept.txt"
    kept.write_text("[E1]\n\n[unused0]\n[E1]\n[E2]\n")
    converted(folder, tmp_path / "out", "tf1", never_split=str(kept))
    content = json.loads((tmp_path / "out" / "tokenization.json").read_text())
    assert content == {"never_split": ["[E1]", "[E2]", "[unused0]"]}
    assert (tmp_path / "out" / "vocab.txt").read_text().split() == [*SPECIAL_TOKENS, "[unused0]", "[E1]", "[E2]"]
    for line in ("[SEP]", "new york"):
        kept.write_text(f"{line}\n")
        refuses(f"kept.txt, line 1: {line}", converted, folder, tmp_path / "no", "tf1", never_split=str(kept))


# Labels, and weights whose outputs have another meaning

MAPS = [
    {"task": "xnli", "labels": ["contradiction", "entailment", "neutral"], "regression": False},
    {"task": "sts-b", "labels": [], "regression": True},
    {"task": "tsv", "labels": ["a", "b"], "regression": False, "multi_label": True},
    {"task": "ranks", "labels": [], "regression": True, "activation": "sigmoid"},
]


@pytest.mark.parametrize("content", MAPS, ids=lambda content: content["task"])
def test_a_label_map_comes_back_as_it_was(tmp_path, content):
    label_map = LabelMap(**{**content, "labels": tuple(content["labels"])})
    save_label_map(str(tmp_path), label_map)
    assert json.loads((tmp_path / "label_map.json").read_text()) == content
    assert load_label_map(str(tmp_path)) == label_map and label_map.num_labels == (len(content["labels"]) or 1)


@pytest.mark.parametrize(
    "text",
    [
        '{"task": "x",\n',
        '{"task": "x", "labels": "01", "regression": false}',
        '{"task": "x", "labels": [0, 1], "regression": false}',
        '{"task": "x", "labels": [["0"], "1"], "regression": false}',
        '{"task": "x", "labels": ["0"], "regression": false}',
        '{"task": "x", "labels": ["0", "1"], "regression": true}',
        '{"task": "x", "labels": ["0", "1"], "regression": false, "multi_label": 1}',
        '{"task": "x", "labels": [], "regression": true, "activation": "relu"}',
        '{"task": "x", "labels": ["0", "1"], "regression": false, "activation": "tanh"}',
    ],
)
def test_a_broken_label_map_is_named(text, tmp_path):
    (tmp_path / "label_map.json").write_text(text)
    refuses(f"{tmp_path}/label_map.json", load_label_map, str(tmp_path))


TEXTS, TAGS = (tensors_of(f"BertFor{kind}Classification") for kind in ("Sequence", "Token"))
ONE = {name: value[:1] if name.startswith("classifier") else value for name, value in TEXTS.items()}
EXTRA = np.zeros([3, 3], np.float32)
DISTANCES = {"bert.encoder.layer.0.attention.self.distance_embedding.weight": EXTRA}
BLOCK = {"bert.encoder.layer.1.output.dense.bias": EXTRA}
INTEGERS = {"bert.pooler.dense.weight": TEXTS["bert.pooler.dense.weight"].astype(np.int8)}


def folder_of(path, tensors, architecture: str | None = "BertForSequenceClassification", **changes) -> str:
    folder = make_folder(path, tensors, architecture, **changes)
    if architecture is None:
        write_json(path / "config.json", {**CONFIG, "architectures": None, **changes})
    write_vocab(path / "vocab.txt", [*SPECIAL_TOKENS, "the", "film"])
    return folder


@pytest.mark.parametrize(
    ("tensors", "changes", "words"),
    [
        (TEXTS, {"problem_type": "regression"}, "regression several"),
        (ONE, {"architecture": "BertForMultipleChoice"}, "BertForMultipleChoice"),
        (TAGS | {"crf.transitions": EXTRA}, {"architecture": "BertForTokenClassification"}, "crf.transitions"),
        (TEXTS | {"classifier.out.weight": EXTRA}, {}, "classifier.out.weight"),
    ],
)
def test_outputs_of_another_meaning_leave_an_encoder(tmp_path, tensors, changes, words):
    folder = folder_of(tmp_path / "in", tensors, **changes)
    bert = bert_tf2.load(folder)
    assert type(bert.model) is modeling.BertModel and bert.labels is None
    refuses("classify()", bert.classify, "the film")
    report = "\n".join(converted(folder, tmp_path / "out"))
    assert all(word in report for word in (*words.split(), " a BertModel with ", "Left out: classifier.bias"))


@pytest.mark.parametrize(
    ("tensors", "changes", "words"),
    [
        (TEXTS | DISTANCES, {}, "bert.encoder.layer.0.attention.self.distance"),
        (TEXTS | BLOCK, {}, "1 layers"),
        (TEXTS | INTEGERS, {}, "bert.pooler.dense.weight int8 quantized"),
        (TEXTS, {"architecture": None}, '"architectures": ["BertForSequenceClassification"]'),
    ],
)
def test_weights_that_are_almost_bert_are_refused_by_both_doors(tmp_path, tensors, changes, words):
    folder = folder_of(tmp_path / "in", tensors, **changes)
    message = refuses(f"{folder} {words}", bert_tf2.load, folder)
    assert message == message_of(converted, folder, tmp_path / "out")


@pytest.mark.parametrize("named", [{}, {"id2label": {"0": "O", "1": "B-X", "2": "I-X"}}])
def test_a_tagger_without_architectures(tmp_path, named):
    """It has no pooler, or names of tags."""
    tensors = TAGS | ({name: value for name, value in TEXTS.items() if "pooler" in name} if named else {})
    bert = bert_tf2.load(folder_of(tmp_path, tensors, None, **named))
    assert type(bert.model) is heads.TaggingModel and len(bert.tag(["the", "film"])) == 2


@pytest.mark.parametrize("form", [list, lambda labels: {str(index): label for index, label in enumerate(labels)}])
def test_names_of_labels_in_a_folder_of_transformers(tmp_path, form):
    """A list or an object; not those of other outputs, and each name once where it is used."""
    names = ("bad", "good", "odd")
    bert = bert_tf2.load(folder := folder_of(tmp_path / "in", TEXTS, id2label=form(names)))
    answer = bert.classify("the film")
    assert bert.labels.labels == names == (*answer,) and sum(answer.values()) == pytest.approx(1)
    converted(folder, tmp_path / "tf1", "tf1")
    assert bert_tf2.load(tmp_path / "tf1").labels.labels == names
    for wrong in (form(names[:2]), form([*names, "more"]), form(["bad", "", "odd"]), "bad", 3):
        folder_of(tmp_path / "in", TEXTS, id2label=wrong)
        refuses("in/config.json id2label", bert_tf2.load, folder)
    folder_of(tmp_path / "in", TEXTS, id2label=form(["a", "b", "a"]))
    converted(folder, tmp_path / "doubled", "tf1")
    for path in (folder, tmp_path / "doubled"):
        bert = bert_tf2.load(path)
        assert bert.embed("the film").shape == (4,)
        refuses("'a' two outputs", bert.classify, "the film")
