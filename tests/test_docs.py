"""The outputs that the documents show are the actual outputs, and the commands that they show work."""

from __future__ import annotations

import doctest
import itertools
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata

import pytest
import toy_data
from command_lines import ROOT, SCRIPTS, described, environment, without_tensorflow

from bert_tf2 import heads
from bert_tf2.config import BertConfig
from bert_tf2.weights import checkpoint

DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "examples/README.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
]
DEMO = ROOT / "bert_tf2" / "demo"
GUIDE = [f"docs/{name}.md" for name in ("finetuning", "pretraining", "tokenization", "guide", "troubleshooting")]
"""The guide, in an order in which its commands find the files of earlier ones."""


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


_LONG = [pytest.param(name, marks=pytest.mark.slow) for name in ("how_bert_works.md", "python.md", "own_data.md")]


@pytest.mark.parametrize("name", [*_LONG, "migrating.md", "tokenization.md"])
def test_snippets_print_what_the_document_says(name, monkeypatch):
    monkeypatch.chdir(ROOT)  # they name files of the checkout
    result = doctest.testfile(str(ROOT / "docs" / name), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


def anchors(document: pathlib.Path) -> set[str]:
    """The anchors of a document's headings, as GitHub generates them."""
    headings = re.findall(r"(?m)^#+ (.*)$", document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    path = ROOT / document
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text_of(document)):
        if target.startswith("http"):
            continue
        found = path.parent / target if target else path
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), f"{target}#{anchor}"


def test_the_messages_of_troubleshooting_are_those_of_the_code():
    (table,) = re.findall(r"(?ms)^## Messages\n(.*?)^## ", text_of("docs/troubleshooting.md"))
    messages = re.findall(r"(?m)^\| `([^`]+)`", table)
    assert len(messages) > 10
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "bert_tf2").rglob("*.py"))
    assert [message for message in messages if message not in code] == []


# Command lines


def shell_lines(document: str) -> list[list[str]]:
    """The command lines of a document's shell blocks, split into words; variables are not expanded."""
    blocks = re.findall(r"(?ms)^```(?:shell)?\n(.*?)^```$", text_of(document))
    lines = (line for block in blocks for line in block.replace("\\\n", " ").splitlines())
    lines = (line for line in lines if re.match(r"\s*(python|echo)\s", line))
    return [shlex.split(line, comments=True) for line in lines]


def shown_commands(document: str) -> list[list[str]]:
    """Every command line that runs Python on a file, in shell blocks, sentences and tables."""
    inline = [shlex.split(line) for line in re.findall(r"`(python [^`]+)`", text_of(document))]
    commands = [*shell_lines(document), *inline]
    return [words[1:] for words in commands if words[0] == "python" and not words[1].startswith("-")]


def is_flag(script: str, argument: str) -> bool:
    """Whether absl would accept `--name=value`, `--name` or `--noname`."""
    flags = described(script)["flags"]
    name = argument.removeprefix("--").split("=")[0]
    if name in flags:
        return "=" in argument or flags[name]["type"] == "bool"
    return flags.get(name.removeprefix("no"), {}).get("type") == "bool"


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_script_shown_exists_and_has_the_flags_shown(document):
    for script, *arguments in shown_commands(document):
        assert (ROOT / script).is_file(), script
        if script in SCRIPTS:
            own = itertools.takewhile(lambda word: word != "--", arguments)  # what follows is for another program
            unknown = [word for word in own if word.startswith("--") and not is_flag(script, word)]
            assert not unknown, f"{script} {' '.join(unknown)}"


def flags_in_sentences(document: str) -> set[str]:
    prose = re.sub(r"(?ms)^```.*?^```$", "", text_of(document))
    return {name for code in re.findall(r"`([^`]+)`", prose) for name in re.findall(r"(?<![\w-])--(\w+)", code)}


@pytest.mark.parametrize("document", ["README.md", *GUIDE])
def test_every_flag_in_a_sentence_is_one_of_some_script(document):
    known = {name for script in SCRIPTS for name in described(script)["flags"]}
    benchmarks = "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
    known |= {f"no{name}" for name in known} | {*re.findall(r"(?m)^    (\w+): .* = setting\(", benchmarks)}
    assert flags_in_sentences(document) - known - {"logdir", "verbosity"} == set()


def test_the_readers_of_documents_see_what_is_there():
    """The tests above would also pass with empty lists."""
    scripts = {words[0] for document in ("README.md", "docs/serving.md", *GUIDE)
               for words in shown_commands(document)}  # fmt: skip
    assert scripts >= {*SCRIPTS}
    assert min(len(flags_in_sentences(document)) for document in ("README.md", *GUIDE[:2])) > 10
    assert not is_flag("run_classifier.py", "--do_lower=False") and not is_flag("run_classifier.py", "--learning_rate")
    assert is_flag("run_classifier.py", "--nodo_lower_case") and is_flag("run_classifier.py", "--learning_rate=1")


# Smaller numbers for commands that would take minutes with those of the documents. The last value of a flag counts.
SHORTER = {
    "run_pretraining.py": ["--num_train_steps=3", "--num_warmup_steps=1", "--max_eval_steps=2", "--train_batch_size=8"],
    "run_classifier.py": ["--num_train_epochs=1", "--train_batch_size=32"],
    "run_squad.py": ["--num_train_epochs=1", "--max_seq_length=256"],
    "run_ner.py": ["--num_train_epochs=1"],
    "create_pretraining_data.py": ["--dupe_factor=2"],
}
# export_saved_model.py is slow, and tests/export runs it; the others need another machine.
NOT_RUN = ("export_saved_model.py", "--use_tpu=True", "gs://", "serving/", "benchmarks/")


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    """A folder with small versions of all files that the command lines of README.md and the guide use."""
    folder = tmp_path_factory.mktemp("user")
    for name in ("model", "glue/MRPC", "squad", "xnli/multinli", "tmp", "corpus"):
        (folder / name).mkdir(parents=True)
    write_model(folder / "model")
    write_tables(folder)
    for part, count in (("train", 24), ("dev", 3)):
        toy_data.write_squad(folder / "squad" / f"{part}-v1.1.json", count, 1)
        toy_data.write_squad(folder / "squad" / f"{part}-v2.0.json", count, 1, impossible=True)
    for part in ("train", "testa", "testb"):
        (folder / f"eng.{part}").write_text(re.sub(r"(?m)^[\d.]+ ", "", toy_data.conll(40, 1)))
    words = re.sub(r"(?m)^[\d.]+ (\S+) (\S+)$", r"1\t\1\t_\t\2" + r"\t_" * 6, toy_data.conll(40, 1))
    for part in ("train", "dev"):
        (folder / f"en_ewt-ud-{part}.conllu").write_text(re.sub(r"\tO\t", r"\tNOUN\t", words.replace("B-", "")))
    shutil.copy(DEMO / "corpus.txt", folder / "corpus" / "text.txt")
    shutil.copy(ROOT / "sample_text.txt", folder)
    (folder / "lines.txt").write_text("a lovely film\na sad book\n")
    (folder / "bert_tf2").symlink_to(ROOT / "bert_tf2")
    return folder


def write_model(folder: pathlib.Path) -> None:
    """Writes a random model with the demo's vocabulary, in the layout of Google's releases."""
    shutil.copy(DEMO / "vocab.txt", folder)
    size = len((DEMO / "vocab.txt").read_text().split())
    config = toy_data.config(vocab_size=size, num_hidden_layers=4, max_position_embeddings=512)
    (folder / "bert_config.json").write_text(config.to_json_string())
    weights = checkpoint.tf1_variables(heads.PretrainingModel(config))
    checkpoint.save(str(folder / "bert_model.ckpt"), weights, 0)


def write_tables(folder: pathlib.Path) -> None:
    pairs = [(text, *("no yes".split() if number % 2 else "yes no".split())) for number, (text, _) in
             enumerate(toy_data.sentences(32, 1))]  # fmt: skip
    for part in ("train", "dev", "test"):
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        rows = [(number % 2, number, number, text, text) for number, (text, *_) in enumerate(pairs)]
        toy_data.write_table(folder / "glue" / "MRPC" / f"{part}.tsv", header, rows)
    (folder / "reviews").mkdir()
    for part in ("train", "dev", "test"):
        toy_data.write_table(folder / "reviews" / f"{part}.tsv", "review\tstars", [row[:2] for row in pairs])
    (folder / "questions").mkdir()
    for part in ("train", "dev", "test"):
        rows = [
            (text, ("places", "people", "places,people", "")[number % 4]) for number, (text, *_) in enumerate(pairs)
        ]
        toy_data.write_table(folder / "questions" / f"{part}.tsv", "question\ttopics", rows)
    rows = [(text, text, ("neutral", "entailment", "contradictory")[number % 3]) for number, (text, *_) in
            enumerate(pairs)]  # fmt: skip
    toy_data.write_table(folder / "xnli" / "multinli" / "multinli.train.zh.tsv", "premise\thypo\tlabel", rows)
    rows = [("zh", label.replace("ory", "ion"), "", "", "", "", text, text) for text, _, label in rows]
    toy_data.write_table(folder / "xnli" / "xnli.dev.tsv", "\t".join("language gold_label a b c d e f".split()), rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("documents", "least"),
    [(["README.md"], 1), pytest.param(GUIDE, 20, marks=pytest.mark.soak)],
    ids=("readme", "guide"),
)
def test_command_lines_work_as_typed(documents, least, user, command_lines):
    """Runs them in order, since later ones use the files of earlier ones; on small data of the same layout."""
    places = {
        **dict.fromkeys(("$BERT_BASE_DIR", "$BERT_LARGE_DIR", "$BERT_CASED_DIR"), f"{user}/model"),
        **{"$GLUE_DIR": f"{user}/glue", "$SQUAD_DIR": f"{user}/squad", "$XNLI_DIR": f"{user}/xnli"},
        **{"$TRAINED_CLASSIFIER": f"{user}/tmp/mrpc_output", "$THRESH": "-1.98", "/tmp/": f"{user}/tmp/"},
    }
    pattern = re.compile("|".join(map(re.escape, places)))
    (user / "tmp").rename(user / f"before_{len(documents)}")
    (user / "tmp").mkdir()
    ran = 0
    for words in itertools.chain(*map(shell_lines, documents)):
        if any(mark in word for mark in NOT_RUN for word in words):
            continue
        words = [pattern.sub(lambda found: places[found[0]], word) for word in words]
        if words[0] == "echo":
            pathlib.Path(words[3]).write_text(words[1] + "\n")
            continue
        script, *arguments = words[1:]
        done = command_lines.run(script, *arguments, *SHORTER.get(script, []), cwd=user)
        assert done.status == 0, f"{script} {' '.join(arguments)}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        ran += 1
    assert ran >= least


def test_the_reference_s_first_command_works_on_the_sample_text(command_lines, tmp_path):
    """The command in its README, with the demo's vocabulary instead of a released one."""
    from bert_tf2.data import record_order, records

    command = (
        "--input_file=./sample_text.txt --do_lower_case=True --max_seq_length=128 --max_predictions_per_seq=20"
        " --masked_lm_prob=0.15 --random_seed=12345 --dupe_factor=5"
    )
    output = [f"--output_file={tmp_path}/tf_examples.tfrecord", f"--vocab_file={DEMO}/vocab.txt"]
    done = command_lines.run("create_pretraining_data.py", *command.split(), *output, cwd=ROOT)
    assert done.status == 0, done.stderr
    sizes = {"max_seq_length": 128, "max_predictions_per_seq": 20, "vocab_size": 888, "type_vocab_size": 2}
    batch = next(iter(record_order.read_records([f"{tmp_path}/tf_examples.tfrecord"], records.PRETRAINING, sizes, 8)))
    assert batch["input_ids"].shape == (8, 128)
    text = text_of("sample_text.txt")
    assert text.count("\n\n") >= 3  # documents
    for script in ("CYRILLIC", "GREEK", "DEVANAGARI", "ARABIC", "HIRAGANA", "CJK UNIFIED"):
        assert any(script in unicodedata.name(char, "") for char in text), script


# Python


@pytest.mark.slow
def test_the_readme_s_python_prints_its_own_lines_only(tmp_path):
    """Besides the lines that TensorFlow writes as it is loaded."""
    (program,) = re.findall(r"(?ms)^```python\n(.*?)^```$", text_of("README.md"))
    config = BertConfig(**{**toy_data.config().to_dict(), "vocab_size": 888})
    folder = tmp_path / "demo_output"
    folder.mkdir()
    (folder / "bert_config.json").write_text(config.to_json_string())
    checkpoint.save(str(folder / "bert_model.ckpt"), checkpoint.tf1_variables(heads.PretrainingModel(config)), 0)
    shutil.copy(DEMO / "vocab.txt", folder)
    variables = {name: value for name, value in environment().items() if not name.startswith("TF_")}
    done = subprocess.run(
        [sys.executable, "-c", f"{program}print(bert.embed('Hello').shape)"],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, without_tensorflow(done.stderr), done.stdout) == (0, "", "(16,)\n")
