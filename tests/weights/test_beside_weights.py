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
from huggingface_folders import make_folder, tensors_of, write_json
from refused import refuses
from small_models import SHARED

import bert_tf2
from bert_tf2 import heads, modeling
from bert_tf2.commands import call
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import SPECIAL_TOKENS
from bert_tf2.weights import checkpoint, sources, text_rules

VOCAB = toy_data.VOCAB
ENTRIES = len(VOCAB) + 2  # of the models: two rows have no entry


def converted(source, output, to: str = "hf", **settings) -> list[str]:
    return call("convert_checkpoint", input=str(source), output=str(output), to=to, **settings)


def check(words: str, folder, output: pathlib.Path, **given) -> None:
    """Checks that `load` and the conversion refuse a folder with one line, which has these words; "": both take it."""
    found = []
    for door in (bert_tf2.load, lambda folder, **given: converted(folder, output, **given)):
        try:
            door(folder, **given)
            found.append("")
        except UserError as error:
            found.append(str(error))
    in_python, of_script = found
    assert in_python == of_script.replace("--", "") and bool(words) == bool(in_python), found
    assert [word for word in words.split() if word not in of_script] == [], of_script
    assert output.exists() == (not words)


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
        ("tf1", {"num_attention_heads": 4}, "tf1/bert_config.json num_attention_heads 4 bert_config_file=", ""),
        ("tf1", {"hidden_act": "gelu_erf"}, "tf1/bert_config.json hidden_act gelu gelu_erf", ""),
        ("tf1", {"layer_norm_eps": 1e-5}, "tf1/bert_config.json layer_norm_eps 1e-12 1e-05", ""),
        ("tf1", {"num_hidden_layers": 3}, "tf1/bert_config.json num_hidden_layers 2 3 bert_config_file=", ""),
        ("tf1", {"hidden_size": 8}, "tf1/bert_config.json hidden_size 16 8 bert_config_file=", ""),
        ("keras", {"hidden_act": "relu"}, "keras/bert_model.keras hidden_act bert_config_file", ""),
        ("tf1", {"hidden_act": "GELU", "extra": {"pooler_type": "x"}, **DROPOUT}, "", ""),
        ("tf1", {"num_hidden_layers": 1}, "", "only the first layers"),
        ("hf", {}, "", "not certain"),
    ],
)
def test_another_configuration_than_that_of_the_weights(models, tmp_path, log_lines, folder, changes, refusal, warning):
    """Refused by the name of the setting, also if a shape shows it; except for tables that a command makes longer."""
    longer = heads.MaskedLMModel(toy_data.config(vocab_size=ENTRIES + 1))
    refuses("word_embeddings --extend_vocab", checkpoint.initialize, longer, str(models / "tf1"))
    config = toy_data.config(**{"vocab_size": ENTRIES, "num_hidden_layers": 2, **changes})
    (tmp_path / "other.json").write_text(config.to_json_string())
    check(refusal, models / folder, tmp_path / "out", bert_config_file=str(tmp_path / "other.json"))
    assert any("config" in line and warning in line for line in log_lines) == bool(warning)


# The vocabulary


@pytest.mark.parametrize(
    ("ours", "refusal"),
    [
        ([f"{entry} " for entry in VOCAB], ""),
        ([*VOCAB, "more", "words"], ""),
        (VOCAB[:30], ""),
        ([*VOCAB[:7], "[unused1]", *VOCAB[8:]], ""),
        ([*VOCAB[:-2], *VOCAB[:-3:-1]], "2 entries line 36 '##ing' 'play'"),
        ([*VOCAB, "a", "few", "more"], "vocab_size 39 40 extend_vocab"),
        ([entry.lower() for entry in VOCAB], "[PAD] BERT"),
        ([entry for entry in VOCAB if entry != "[MASK]"], "[MASK] BERT"),
        ([" ".join(VOCAB)], "[PAD] BERT"),
        ([], "no entries"),
    ],
)
def test_another_vocabulary_than_that_of_the_weights(models, tmp_path, ours, refusal, log_lines):
    path = write_vocab(tmp_path / "vocab.txt", ours)
    check(refusal and f"{path}: {refusal}", models / "tf1", tmp_path / "out", vocab_file=path)
    assert refusal or bert_tf2.load(models / "tf1", vocab_file=path).tokenizer.vocab["film"] == VOCAB.index("film")
    lost = [line for line in log_lines if f"{path}: lacks the last {len(VOCAB) - 30} entries" in line]
    assert bool(lost) == (len(ours) == 30)


# The case of the text


def lower(folder: pathlib.Path, vocab_file: str, given: bool | None) -> bool:
    """Whether the scripts lower-case text."""
    source = sources.open_weights(str(folder))
    return text_rules.load_tokenizer(vocab_file, given, source=source).basic_tokenizer.do_lower_case


@pytest.mark.parametrize("place", ["weights", "vocabulary"])
@pytest.mark.parametrize("name", ["tokenizer_config.json", "tokenizer.json", "tokenization.json"])
def test_a_file_that_states_the_case(tmp_path, log_lines, place, name):
    google_folder(tmp_path / "weights")
    vocab_file = write_vocab(tmp_path / "vocabulary" / "vocab.txt", VOCAB)
    normalizer = {"normalizer": {"type": "BertNormalizer", "lowercase": False}}
    write_json(tmp_path / place / name, normalizer if name == "tokenizer.json" else {"do_lower_case": False})
    refuses(f"{place}/{name} --do_lower_case=False", lower, tmp_path / "weights", vocab_file, None)
    assert lower(tmp_path / "weights", vocab_file, False) is False and not log_lines
    assert lower(tmp_path / "weights", vocab_file, True) is True
    assert any(name in line and "do_lower_case=True is used instead" in line for line in log_lines)
    if place == "vocabulary":  # the word of the weights comes first
        write_json(tmp_path / "weights" / "tokenization.json", {"do_lower_case": True})
        assert lower(tmp_path / "weights", vocab_file, None) is True


@pytest.mark.parametrize(
    ("entries", "given", "warning"),
    [
        (VOCAB, None, ""),
        (VOCAB, False, "no entry has a capital letter"),
        (CASED, None, "29 of 37 'Good', line 6 --do_lower_case=False"),
        (CASED, False, ""),
        ([*VOCAB[:-1], "café"], None, "1 of 37 'café', line 37"),
        ([*VOCAB[:-2], "[XYZ]", "<S>"], None, ""),
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
    for path in (SHARED / "data" / "vocab").glob("bert-base-*-vocab.txt"):  # where the released ones are
        assert text_rules.is_cased(text_rules.entries_of(str(path))) == ("-cased" in path.name)


def test_a_cased_model_with_the_default_flag_is_refused_before_anything_is_written(models, tmp_path, capsys):
    """Files beside the weights that no flag names are found, and then count."""
    (tmp_path / "text.txt").write_text("The film .\n")
    model = models / "cased_hf"
    files = {"bert_config_file": str(model / "config.json"), "vocab_file": str(model / "vocab.txt")}
    blanks = {"init_checkpoint": str(model), "sentence": ["The [MASK] ."]}
    text = {"input_file": str(tmp_path / "text.txt"), "output_file": str(tmp_path / "out")}
    for script, settings in (
        ("extract_features", {**text, **files, "init_checkpoint": str(model), "layers": "-1", "max_seq_length": 32}),
        ("predict_masked", {**files, **blanks}),
        ("create_pretraining_data", {**text, "vocab_file": files["vocab_file"]}),
    ):
        refuses("cased_hf/tokenizer_config.json --do_lower_case=False", call, script, **settings)
    call("predict_masked", **blanks)
    assert capsys.readouterr().out.startswith("The [MASK] .\n")
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


# The tokenizer of transformers

BERT = {"type": "BertNormalizer", "clean_text": True, "lowercase": True, "strip_accents": None}
FEW = [*SPECIAL_TOKENS, "the", "film"]
WORDS = [*FEW, "[", "]", "e1"]


def whole(entries: list[str], **changes) -> dict:
    """A tokenizer.json."""
    vocab = {entry: index for index, entry in enumerate(entries)}
    model = {"type": "WordPiece", "vocab": vocab, "continuing_subword_prefix": "##", "unk_token": "[UNK]"}
    return {"model": model, "normalizer": BERT, "pre_tokenizer": {"type": "BertPreTokenizer"}, **changes}


TEXTS, TAGS = (tensors_of(f"BertFor{kind}Classification") for kind in ("Sequence", "Token"))
ONE = {name: value[:1] if name.startswith("classifier") else value for name, value in TEXTS.items()}
EXTRA = np.zeros([3, 3], np.float32)


def folder_of(path, tensors=TEXTS, vocabulary=FEW, files=(), **changes) -> str:
    """A folder of transformers; `files` are JSON contents by names without the ending."""
    folder = make_folder(path, tensors, **{"architectures": ["BertForSequenceClassification"], **changes})
    if vocabulary:
        write_vocab(path / "vocab.txt", vocabulary)
    for name, content in dict(files).items():
        write_json(path / f"{name}.json", content)
    return folder


def test_the_entries_and_rules_of_a_tokenizer_file(tmp_path):
    folder = folder_of(tmp_path / "in", vocabulary=None)
    source = sources.open_weights(folder)
    assert source.vocabulary() is None and source.text is None
    added = [{"id": 0, "content": "[PAD]"}, {"id": 3, "content": "new"}]
    model = {"type": "WordPiece", "vocab": {"[PAD]": 0, "b": 2, "a": 1}}
    normalizer = {**BERT, "lowercase": False, "strip_accents": True}
    write_json(tmp_path / "in" / "tokenizer.json", whole([], model=model, added_tokens=added, normalizer=normalizer))
    found = sources.open_weights(folder)
    assert found.vocabulary() == ["[PAD]", "a", "b", "new"] and found.text.path.endswith("tokenizer.json")
    assert found.text[1:3] == (False, {"never_split": ["new"], "strip_accents": True})
    # The configuration of the tokenizer counts before tokenizer.json, vocab.txt before the vocabulary there.
    stated = {"tokenizer_config": {"do_lower_case": True, "strip_accents": None}}
    folder_of(tmp_path / "in", vocabulary=["[PAD]", "c", "d"], files=stated)
    found = sources.open_weights(folder)
    assert found.text[1:3] == (True, {"never_split": ["new"]}) and found.vocabulary() == ["[PAD]", "c", "d", "new"]


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
    folder = folder_of(tmp_path / "in", vocabulary=words, files=contents)
    entries = sources.open_weights(folder).vocabulary()
    assert entries == [*WORDS, "[E1]"]
    if len(words) < len(entries):  # a script reads vocab.txt alone
        refuses("vocab.txt '[E1]'", text_rules.load_tokenizer, f"{folder}/vocab.txt", True)
        write_vocab(tmp_path / "in" / "vocab.txt", entries)
    tokenizer = text_rules.load_tokenizer(f"{folder}/vocab.txt", True)
    assert tokenizer.tokenize("The[E1]film [e1] [SEP]") == [*("the", "[E1]", "film", "[", "e1", "]", "["), "[UNK]", "]"]
    assert any("[E1]" in line and "lower" in line for line in log_lines) == ("added_tokens" in contents)


@pytest.mark.parametrize("case", [{}, {"tokenizer_config": {"do_lower_case": False}}])
def test_an_added_word_is_found_in_lower_cased_text(tmp_path, case, log_lines):
    """Which transformers does not, so a warning names the word."""
    added = [{**NEW, "id": 10}, {**NEW, "content": "covid", "id": 11}]
    words = [*WORDS, "[E1]", "covid"]
    folder = folder_of(tmp_path, vocabulary=words, files={"tokenizer": whole(WORDS, added_tokens=added), **case})
    tokenizer = text_rules.load_tokenizer(f"{folder}/vocab.txt", not case)
    assert tokenizer.tokenize("covid COVID") == ["covid", "[UNK]" if case else "covid"]
    assert len([line for line in log_lines if "tokens covid are found in text with capitals" in line]) == (not case)
    write_json(tmp_path / "tokenizer.json", whole(words, added_tokens=added))  # as transformers may save it
    assert not text_rules.stated_in(folder).remark


def test_conversions_keep_the_rules(tmp_path):
    """There and back, as many German models have them: lower-cased with accents."""
    rules = {"never_split": ["[E1]"], "strip_accents": False, "tokenize_chinese_chars": False}
    said = {**rules, "never_split": None, "additional_special_tokens": ["[E1]"], "do_lower_case": True}
    folder_of(tmp_path / "0", vocabulary=[*SPECIAL_TOKENS, "über", "[E1]"], files={"tokenizer_config": said})
    for number, to in enumerate(("tf1", "hf", "tf1")):
        converted(tmp_path / str(number), tmp_path / str(number + 1), to)
    tokenizer = bert_tf2.load(tmp_path / "3").tokenizer
    assert tokenizer.rules == rules and tokenizer.basic_tokenizer.do_lower_case
    assert tokenizer.tokenize("Über[E1]uber") == ["über", "[E1]", "[UNK]"]


def test_a_conversion_adds_tokens_that_are_never_split(tmp_path):
    """A case that no file stated stays so; an [unused] entry on the list keeps its place."""
    folder = folder_of(tmp_path / "in", vocabulary=[*SPECIAL_TOKENS, "[unused0]", "[unused1]"])
    kept = tmp_path / "kept.txt"
    kept.write_text("[E1]\n\n[unused0]\n[E1]\n[E2]\n")
    converted(folder, tmp_path / "out", "tf1", never_split=str(kept))
    content = json.loads((tmp_path / "out" / "tokenization.json").read_text())
    assert content == {"never_split": ["[E1]", "[E2]", "[unused0]"]}
    assert (tmp_path / "out" / "vocab.txt").read_text().split() == [*SPECIAL_TOKENS, "[unused0]", "[E1]", "[E2]"]
    for line in ("[SEP]", "new york"):
        kept.write_text(f"{line}\n")
        refuses(f"kept.txt, line 1: {line}", converted, folder, tmp_path / "no", "tf1", never_split=str(kept))


# Labels, and weights whose outputs have another meaning


def extra(name: str, value=EXTRA) -> dict:
    return {"tensors": {**TEXTS, name: value}}


def tokenizer(**changes) -> dict:
    return {"files": {"tokenizer": whole(WORDS, **changes)}}


def entries(vocab: dict, *added: tuple[int, str], **more) -> dict:
    """The vocabulary in tokenizer.json, with added tokens."""
    rows = [{"id": index, "content": token} for index, token in added]
    return {"vocabulary": None, **tokenizer(model={"vocab": vocab, **more}, added_tokens=rows)}


def labels(**changes) -> dict:
    return {"files": {"label_map": {"task": "x", "labels": ["a", "b", "c"], "regression": False, **changes}}}


REFUSED = [
    # The configuration
    ("config.json 'roberta'", {"model_type": "roberta"}),
    ("config.json decoder", {"is_decoder": True}),
    ("config.json 'relative_key'", {"position_embedding_type": "relative_key"}),
    ("config.json 'quick_gelu'", {"hidden_act": "quick_gelu"}),
    ("config.json hidden_act", {"hidden_act": ["gelu"]}),
    ("config.json quantized", {"quantization_config": {"bits": 8}}),
    ("config.json vocab_size", {"vocab_size": None}),
    ('"architectures": ["BertForSequenceClassification"]', {"architectures": None}),
    # The weights
    ("layer.0.attention.self.distance", extra("bert.encoder.layer.0.attention.self.distance_embedding.weight")),
    ("1 layers", extra("bert.encoder.layer.1.output.dense.bias")),
    ("bert.pooler.dense.weight int8 quantized", extra("bert.pooler.dense.weight", np.zeros([4, 4], np.int8))),
    # The tokenizer
    ("BertJapaneseTokenizer", {"files": {"tokenizer_config": {"tokenizer_class": "BertJapaneseTokenizer"}}}),
    ("do_basic_tokenize false", {"files": {"tokenizer_config": {"do_basic_tokenize": False}}}),
    ("cls_token '<s>'", {"files": {"tokenizer_config": {"cls_token": "<s>", "sep_token": "[SEP]"}}}),
    ("unk_token '<unk>'", {"files": {"special_tokens_map": {"unk_token": {"content": "<unk>"}}}}),
    ("pre_tokenizer 'Whitespace'", tokenizer(pre_tokenizer={"type": "Whitespace"})),
    ("normalizer 'BertNormalizer'", tokenizer(normalizer=None)),
    ("clean_text False", tokenizer(normalizer={**BERT, "clean_text": False})),
    ("'@@' '##'", tokenizer(model={"vocab": {}, "continuing_subword_prefix": "@@"})),
    ("tokenization.json empty", {"files": {"tokenization": ""}}),
    ("tokenization.json do_lower_case", {"files": {"tokenization": {"do_lower_case": "no"}}}),
    ("tokenization.json never_split", {"files": {"tokenization": {"never_split": [7]}}}),
    ("tokenizer.json ids vocab.txt", entries({"a": 0, "b": 2})),
    ("tokenizer.json ids vocab.txt", entries({"a": 0, "b": 0})),
    ("tokenizer.json ids vocab.txt", entries({"a": 0}, (5, "b"))),
    ("tokenizer.json 'a' 'b'", entries({"a": 0}, (0, "b"))),
    ("tokenizer.json no [CLS], [SEP]", entries({"[PAD]": 0, "[UNK]": 1})),
    # Labels
    ("id2label", {"id2label": ["bad", "good"]}),
    ("id2label", {"id2label": {"0": "bad", "1": "", "2": "odd"}}),
    ("id2label", {"id2label": "bad"}),
    ("label_map.json", labels(labels="012")),
    ("label_map.json", labels(labels=[0, 1, 2])),
    ("label_map.json", labels(labels=["a"])),
    ("label_map.json", labels(regression=True)),
    ("label_map.json", labels(multi_label=1)),
    ("label_map.json", labels(labels=[], regression=True, activation="relu")),
    ("label_map.json", labels(activation="tanh")),
]


@pytest.mark.parametrize(("words", "how"), REFUSED, ids=range(len(REFUSED)))
def test_a_folder_is_refused_by_load_and_by_the_conversion(tmp_path, words, how):
    folder = folder_of(tmp_path / "in", **how)
    check(f"{folder} {words}", folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("words", "tensors", "changes"),
    [
        ("regression several", TEXTS, {"problem_type": "regression"}),
        ("BertForMultipleChoice", ONE, {"architectures": ["BertForMultipleChoice"]}),
        ("crf.transitions", TAGS | {"crf.transitions": EXTRA}, {"architectures": ["BertForTokenClassification"]}),
        ("classifier.out.weight", TEXTS | {"classifier.out.weight": EXTRA}, {}),
    ],
)
def test_outputs_of_another_meaning_leave_an_encoder(tmp_path, words, tensors, changes):
    folder = folder_of(tmp_path / "in", tensors, **changes)
    bert = bert_tf2.load(folder)
    assert type(bert.model) is modeling.BertModel and bert.labels is None
    refuses("classify()", bert.classify, "the film")
    report = "\n".join(converted(folder, tmp_path / "out"))
    assert all(word in report for word in (*words.split(), " a BertModel with ", "Left out: classifier.bias"))


@pytest.mark.parametrize("named", [{}, {"id2label": {"0": "O", "1": "B-X", "2": "I-X"}}])
def test_a_tagger_without_architectures(tmp_path, named):
    """It has no pooler, or names of tags."""
    bert = bert_tf2.load(folder_of(tmp_path, TEXTS if named else TAGS, architectures=None, **named))
    assert type(bert.model) is heads.TaggingModel and bert.labels.task == "ner"


def test_names_of_labels_in_a_folder_of_transformers(tmp_path):
    """A list or an object; each name once where it is used."""
    for names in (["bad", "good", "odd"], {"0": "bad", "1": "good", "2": "odd"}):
        folder = folder_of(tmp_path / "in", id2label=names)
        converted(folder, output := tmp_path / type(names).__name__, "tf1")
        for path in (folder, output):
            assert bert_tf2.load(path).labels.labels == ("bad", "good", "odd")
    refuses("'a' two outputs", bert_tf2.load(folder_of(tmp_path / "in", id2label=["a", "b", "a"])).classify, "film")
