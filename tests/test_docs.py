"""The outputs that the documents show are the actual outputs, and the commands that they show work."""

from __future__ import annotations

import ast
import builtins
import doctest
import itertools
import json
import os
import pathlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf
import toy_data
from command_lines import ROOT, SCRIPTS, call, described, environment, without_tensorflow
from documented import command_line, commands_in, section, shell_lines
from unmasked_data import text as lines_of_text

from bert_tf2 import heads
from bert_tf2.config import BertConfig
from bert_tf2.finetuning import classification
from bert_tf2.training.workers import VARIABLE, find_cluster
from bert_tf2.weights import checkpoint

DEMO = ROOT / "bert_tf2" / "demo"
GUIDE = [f"docs/{name}.md" for name in ("finetuning", "pretraining", "tokenization", "guide", "troubleshooting")]
"""The guide, in an order in which its commands find the files of earlier ones."""
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"]
DOCUMENTS += [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def anchors(document: pathlib.Path) -> set[str]:
    """The anchors of a document's headings, as GitHub generates them."""
    headings = re.findall(r"(?m)^#+ (.*)$", document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    for document in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text_of(document)):
            found = (ROOT / document).parent / target if target else ROOT / document
            if not target.startswith("http"):
                assert found.exists() and (not anchor or anchor in anchors(found)), f"{document}: {target}#{anchor}"


def test_the_messages_of_troubleshooting_are_those_of_the_code():
    (table,) = re.findall(r"(?ms)^## Messages\n(.*?)^## ", text_of("docs/troubleshooting.md"))
    messages = re.findall(r"(?m)^\| `([^`]+)`", table)
    assert len(messages) > 10
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "bert_tf2").rglob("*.py"))
    assert [message for message in messages if message not in code] == []


# Flags


def is_flag(script: str, argument: str) -> bool:
    """Whether absl would accept `--name=value`, `--name` or `--noname`."""
    flags = described(script)["flags"]
    name = argument.removeprefix("--").split("=")[0]
    if name == "flagfile":  # of absl
        return "=" in argument
    if name in flags:
        return "=" in argument or flags[name]["type"] == "bool"
    return flags.get(name.removeprefix("no"), {}).get("type") == "bool"


def test_every_script_and_flag_shown_exists():
    """In shell blocks, sentences and tables."""
    known = {name for script in SCRIPTS for name in described(script)["flags"]}
    benchmarks = "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
    known |= {f"no{name}" for name in known} | {*re.findall(r"(?m)^    (\w+): .* = setting\(", benchmarks)}
    known |= {"logdir", "verbosity", "flagfile"}
    shown = []
    for document in DOCUMENTS:
        inline = [shlex.split(line) for line in re.findall(r"`(python [^`]+)`", text_of(document))]
        for words in [*shell_lines(text_of(document)), *inline]:
            if words[0] == "python" and not words[1].startswith("-"):
                script, *arguments = words[1:]
                assert (ROOT / script).is_file(), f"{document}: {script}"
                shown.append(script)
                own = itertools.takewhile(lambda word: word != "--", arguments)  # what follows is for another program
                own = [word for word in own if word.startswith("--")] if script in SCRIPTS else []
                assert not [word for word in own if not is_flag(script, word)], f"{document}: {script}"
        prose = re.sub(r"(?ms)^```.*?^```$", "", text_of(document))
        named = {name for code in re.findall(r"`([^`]+)`", prose) for name in re.findall(r"(?<![\w-])--(\w+)", code)}
        if document in ("README.md", "docs/pretrained_models.md", *GUIDE):
            assert named - known == set(), document
            assert document not in GUIDE[:2] or len(named) > 10
    assert {*shown} >= {*SCRIPTS}
    assert not is_flag("run_classifier.py", "--do_lower=False") and not is_flag("run_classifier.py", "--learning_rate")
    assert is_flag("run_classifier.py", "--nodo_lower_case") and is_flag("run_classifier.py", "--learning_rate=1")


# What documents show, run


LONG = (
    *("how_bert_works.md", "python.md", "own_data.md", "index.md"),
    *("long_texts.md", "sentence_vectors.md", "from_transformers.md", "from_tutorials.md"),
)


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.slow) for name in LONG), "migrating.md", "tokenization.md"]
)
def test_snippets_print_what_the_document_says(name, monkeypatch):
    monkeypatch.chdir(ROOT)  # they name files of the checkout
    result = doctest.testfile(str(ROOT / "docs" / name), module_relative=False)
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize("name", [*LONG, "migrating.md", "tokenization.md"])
def test_a_page_that_is_typed_has_all_its_names(name):
    """The site hides comments, so their names are no names of the page; its text may name a user's folder or table."""
    page = re.sub(r"<!--.*?-->", "", text_of(f"docs/{name}"), flags=re.DOTALL)
    source = "".join(example.source for example in doctest.DocTestParser().get_examples(page))
    known = {*dir(builtins), *re.findall(r"`(\w+)`", page)}
    used = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else known).add(node.id)
        elif isinstance(node, ast.alias):
            known.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.arg):
            known.add(node.arg if isinstance(node, ast.arg) else node.name)
    assert used <= known, used - known


def test_a_csv_file_becomes_tables(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    rows = [f'{number},"a ""good"", long\nfilm{number}",{number % 5}' for number in range(20)]
    (tmp_path / "reviews.csv").write_text("\n".join(["id,review,stars", *rows, "20,,3", ""]))
    (program,) = re.findall(r"(?s)from a CSV file:\n\n```python\n(.*?)```", text_of("docs/finetuning.md"))
    exec(program, {})
    layout = classification.TsvLayout(text_a="review", label="stars")
    processor = classification.get_processor("tsv", tsv=layout)
    train, dev = processor.get_train_examples("reviews"), processor.get_dev_examples("reviews")
    assert (len(train), len(dev)) == (18, 2)
    texts = {example.text_a: int(example.label) for example in (*train, *dev)}
    assert texts == {f'a "good", long film{number}': number % 5 for number in range(20)}


def test_the_reference_s_first_command_works_on_the_sample_text(monkeypatch, tmp_path):
    """The command in its README, with the demo's vocabulary instead of a released one."""
    monkeypatch.chdir(ROOT)
    (command,) = [flags for _, flags in commands_in(text_of("docs/pretraining.md")) if flags.get("dupe_factor") == "5"]
    files = {"output_file": f"{tmp_path}/tf_examples.tfrecord", "vocab_file": f"{DEMO}/vocab.txt"}
    call(*command_line("create_pretraining_data", {**command, **files}))
    first, *_ = call("inspect_records.py", f"--input_file={files['output_file']}", f"--vocab_file={DEMO}/vocab.txt")
    assert "99 pretraining records" in first and "all valid" in first


@pytest.mark.slow
def test_figures_are_drawn_from_the_code():
    """Of docs/how_bert_works.md, from the shapes of BERT-Base."""
    figures = runpy.run_path(str(ROOT / "docs" / "figures.py"))
    shapes = figures["trace"]()
    for name, draw in figures["FIGURES"].items():
        assert text_of(f"docs/{name}") == draw(shapes), "run python docs/figures.py --write"


def write_model(folder: pathlib.Path, name: str, **changes) -> None:
    """Writes a random model with the demo's vocabulary, in the layout of Google's releases."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(DEMO / "vocab.txt", folder)
    config = toy_data.config(vocab_size=len((DEMO / "vocab.txt").read_text().split()), **changes)
    (folder / "bert_config.json").write_text(config.to_json_string())
    checkpoint.save(str(folder / name), checkpoint.tf1_variables(heads.PretrainingModel(config)), 0)


@pytest.mark.slow
def test_the_readme_s_python_prints_its_own_lines_only(tmp_path):
    """Besides the lines that TensorFlow writes as it is loaded."""
    (program,) = re.findall(r"(?ms)^```python\n(.*?)^```$", text_of("README.md"))
    write_model(tmp_path / "demo_output", "bert_model.ckpt")
    variables = {name: value for name, value in environment().items() if not name.startswith("TF_")}
    done = subprocess.run(
        [sys.executable, "-c", f"{program}print(bert.embed('Hello').shape)"],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, without_tensorflow(done.stderr), done.stdout) == (0, "", "(16,)\n")


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


def write_data(folder: pathlib.Path) -> None:
    """Small versions of all files that the command lines of README.md and the guide use."""
    for name in ("glue/MRPC", "squad", "xnli/multinli", "tmp", "corpus", "reviews", "questions"):
        (folder / name).mkdir(parents=True)
    texts = [text for text, _ in toy_data.sentences(32, 1)]

    def table(path: str, header: str, row) -> None:
        rows = [row(number, text) for number, text in enumerate(texts)]
        toy_data.write_table(folder / path, header.replace(", ", "\t"), rows)

    topics = ("places", "people", "places,people", "")
    for part in ("train", "dev", "test"):
        header = "Quality, #1 ID, #2 ID, #1 String, #2 String"
        table(f"glue/MRPC/{part}.tsv", header, lambda number, text: (number % 2, 0, 0, text, text))
        table(f"reviews/{part}.tsv", "review, stars", lambda number, text: (text, ("yes", "no")[number % 2]))
        table(f"questions/{part}.tsv", "question, topics", lambda number, text: (text, topics[number % 4]))
    labels = ("neutral", "entailment", "contradiction")
    header = "language, gold_label, a, b, c, d, e, f"
    table("xnli/xnli.dev.tsv", header, lambda number, text: ("zh", labels[number % 3], *[""] * 4, text, text))
    labels = (*labels[:2], "contradictory")  # as that file spells it
    header, name = "premise, hypo, label", "xnli/multinli/multinli.train.zh.tsv"
    table(name, header, lambda number, text: (text, text, labels[number % 3]))
    for part, count in (("train", 24), ("dev", 3)):
        toy_data.write_squad(folder / "squad" / f"{part}-v1.1.json", count, 1)
        toy_data.write_squad(folder / "squad" / f"{part}-v2.0.json", count, 1, impossible=True)
    words = re.sub(r"(?m)^[\d.]+ ", "", toy_data.conll(40, 1))
    tagged = re.sub(r"(?m)^(\S+) (B-)?(\S+)$", r"1\t\1\t_\t\3" + r"\t_" * 6, words).replace("\tO\t", "\tNOUN\t")
    files = {f"eng.{part}": words for part in ("train", "testa", "testb")}
    files |= {f"en_ewt-ud-{part}.conllu": tagged for part in ("train", "dev")}
    files |= {"corpus/text.txt": (DEMO / "corpus.txt").read_text(), "lines.txt": "a lovely film\na sad book\n"}
    for name, content in files.items():
        (folder / name).write_text(content)
    shutil.copy(ROOT / "sample_text.txt", folder)
    (folder / "bert_tf2").symlink_to(ROOT / "bert_tf2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("documents", "least"),
    [(["README.md"], 1), pytest.param(GUIDE, 20, marks=pytest.mark.soak)],
    ids=("readme", "guide"),
)
def test_command_lines_work_as_typed(documents, least, tmp_path, command_lines):
    """Runs them in order, since later ones use the files of earlier ones; on small data of the same layout."""
    write_model(tmp_path / "model", "bert_model.ckpt", num_hidden_layers=4, max_position_embeddings=512)
    write_data(tmp_path)
    places = {
        **dict.fromkeys(("$BERT_BASE_DIR", "$BERT_LARGE_DIR", "$BERT_CASED_DIR"), f"{tmp_path}/model"),
        **{"$GLUE_DIR": f"{tmp_path}/glue", "$SQUAD_DIR": f"{tmp_path}/squad", "$XNLI_DIR": f"{tmp_path}/xnli"},
        **{"$TRAINED_CLASSIFIER": f"{tmp_path}/tmp/mrpc_output", "$THRESH": "-1.98", "/tmp/": f"{tmp_path}/tmp/"},
    }
    pattern = re.compile("|".join(map(re.escape, places)))
    ran = 0
    for words in itertools.chain(*(shell_lines(text_of(document)) for document in documents)):
        if any(mark in word for mark in NOT_RUN for word in words):
            continue
        words = [pattern.sub(lambda found: places[found[0]], word) for word in words]
        if words[0] == "echo":
            pathlib.Path(words[3]).write_text(words[1] + "\n")
            continue
        script, *arguments = words[1:]
        done = command_lines.run(script, *arguments, *SHORTER.get(script, []), cwd=tmp_path)
        assert done.status == 0, f"{script} {' '.join(arguments)}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        ran += 1
    assert ran >= least


# docs/recipes.md


def recipes() -> list[tuple[str, str]]:
    """The title and a program of each recipe, beginning with the lines that every program continues."""
    sections = re.split(r"(?m)^## (.*)$", text_of("docs/recipes.md"))
    programs = re.compile(r"(?ms)^```python\n(.*?)^```$")
    (start,) = programs.findall(sections[0])
    titled = zip(sections[1::2], sections[2::2], strict=True)
    return [(title, f"{start}\n{program}") for title, text in titled for program in programs.findall(text)]


@pytest.mark.slow
@pytest.mark.parametrize(("title", "program"), [pytest.param(*each, id=each[0]) for each in recipes()])
def test_a_recipe_runs(title, program, tmp_path, monkeypatch):
    """A program whose library is not installed is skipped."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "demo_output", "bert_model.ckpt")
    tf.config.run_functions_eagerly(True)  # to trace a step takes longer than the few steps of a program
    try:
        exec(compile(program, title, "exec"), {"__name__": "recipe"})
    except ModuleNotFoundError as error:
        pytest.skip(f"needs {error.name}")
    finally:
        tf.config.run_functions_eagerly(False)


# docs/pretraining_decisions.md


def test_the_sizes_are_google_s():
    layers = {"tiny": 2, "mini": 4, "small": 4, "medium": 8, "base": 12, "large": 24}
    widths = dict(zip(layers, (128, 256, 512, 512, 768, 1024), strict=True))
    assert {path.stem for path in (ROOT / "recipes" / "sizes").iterdir()} == {*layers}
    for name, width in widths.items():
        changes = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": width // 64}
        expected = BertConfig(vocab_size=30522, type_vocab_size=2, num_hidden_layers=layers[name], **changes)
        assert BertConfig.from_json_file(str(ROOT / "recipes" / "sizes" / f"{name}.json")) == expected


@pytest.mark.slow
def test_the_recipes_in_small(tmp_path, command_lines):
    """The files of flags, in the order of the document: 90 % of the steps are of 128 tokens, the rest of 512."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text(lines_of_text(60, 1))
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    small = "--bert_config_file=small.json --train_batch_size=8 --num_train_steps=10 --num_warmup_steps=1"
    smaller = {
        "build_vocab.py": ["--vocab_size=200"],
        "create_pretraining_data.py": ["--num_shards=3", "--num_workers=2"],
        "run_pretraining.py": [*small.split(), "--eval_steps=5", "--max_eval_steps=2", "--precision=float32"],
    }
    for _, script, *arguments in shell_lines(section("pretraining_decisions.md", "The recipe")):
        length = arguments[0][-len("128.flags") :].removesuffix(".flags")
        flags = [*arguments, *smaller[script]]
        if script == "run_pretraining.py":
            config = toy_data.config(vocab_size=200, hidden_size=8, num_hidden_layers=1, max_position_embeddings=512)
            (tmp_path / "small.json").write_text(config.to_json_string())
            flags += [f"--eval_input_file=records/{length}/r-00002-of-00003"]
            flags += ["--stop_at_step=9"] * (length == "128")
        done = command_lines.run(script, *flags, cwd=tmp_path)
        assert done.status == 0, done.stderr
        if length == "128" and script == "run_pretraining.py":
            assert "this call ends at step 9" in done.stderr
    assert "max_seq_length: 128 before, 512 now" in done.stderr
    assert checkpoint.latest_checkpoint(str(tmp_path / "model")).endswith("model.ckpt-10")


# docs/scaling.md

# The settings without which a long training is not one that anybody wants.
COMPLETE = {"bert_config_file", "vocab_file", "train_batch_size", "learning_rate", "num_train_steps", "precision"}
COMPLETE |= {"num_warmup_steps", "do_eval", "eval_input_file", "eval_steps"}
# In the place of the programs of a cluster. Python writes what it got, and nothing else.
PYTHON = """#!/bin/bash
printf '%s' "$TF_CONFIG" > "config-$RANDOM$RANDOM"
printf '%s\\n' "$@" > arguments
"""
SCONTROL = "#!/bin/bash\n[ \"$1 $2 $3\" = 'show hostnames node[1-2]' ] && printf 'node1\\nnode2\\n'\n"
SRUN = '#!/bin/bash\nshift\nfor number in 0 1; do SLURM_PROCID=$number "$@"; done\n'


@pytest.mark.parametrize(
    ("title", "addresses", "variables"),
    [
        ("Slurm", ("node1:2222", "node2:2222"), [{"SLURM_JOB_NODELIST": "node[1-2]"}]),
        ("Kubernetes", ("bert-0.bert:2222", "bert-1.bert:2222"), [{"JOB_COMPLETION_INDEX": str(at)} for at in (0, 1)]),
    ],
)
def test_the_scripts_for_a_cluster_give_each_worker_its_own_place(tmp_path, title, addresses, variables):
    script = re.search(r"```bash\n(.*?)```", section("scaling.md", title), re.DOTALL)[1]
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name, content in {"python": PYTHON, ".venv/bin/python": PYTHON, "scontrol": SCONTROL, "srun": SRUN}.items():
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    for given in variables:
        found = environment(PATH=f"{tmp_path}:{os.environ['PATH']}", **given)
        found.pop(VARIABLE, None)
        subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=found, timeout=30, check=True)
    clusters = [find_cluster({VARIABLE: path.read_text()}) for path in tmp_path.glob("config-*")]
    assert sorted(cluster.index for cluster in clusters) == [0, 1]
    assert {cluster.addresses for cluster in clusters} == {addresses}
    script, *arguments = (tmp_path / "arguments").read_text().splitlines()
    assert script == "run_pretraining.py" and all(is_flag(script, word) for word in arguments)
    assert {"--input_file=/shared/records/wiki-*", "--output_dir=/shared/model", "--do_train"} <= {*arguments}
    assert {argument.removeprefix("--").partition("=")[0] for argument in arguments} >= COMPLETE


def test_the_configurations_of_the_document():
    text = text_of("docs/scaling.md")
    config = json.loads(re.search(r"TF_CONFIG='(.*)'", text)[1])
    assert find_cluster({VARIABLE: json.dumps(config)}).addresses == ("node1:2222", "node2:2222")
    (line,) = re.findall(r"(?m)^python (-c .*) > /shared/bert_config\.json$", text)
    command = [sys.executable, *shlex.split(line)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=60)
    assert BertConfig(**json.loads(done.stdout)) == BertConfig(vocab_size=30000)


SMALLER = {
    "build_vocab": {"vocab_size": 200},
    "create_pretraining_data": {"num_shards": 3, "num_workers": 2, "max_seq_length": 32},
    "run_pretraining": {
        **{"num_train_steps": 4, "num_warmup_steps": 1, "train_batch_size": 4, "eval_steps": 2, "max_eval_steps": 2},
        **{"max_seq_length": 32, "max_predictions_per_seq": 5, "precision": "float32"},
    },
}


@pytest.mark.slow
def test_the_recipe_in_small(tmp_path, command_lines):
    """The last step was done, evaluated on the shard that is held out, and the best weights are kept."""
    (tmp_path / "text").mkdir()
    for number in range(2):
        (tmp_path / "text" / f"part-000{number}.txt").write_text(lines_of_text(60, number))
    recipe = commands_in(section("scaling.md", "1 TB, from empty machines to a trained model"))
    assert [script for script, _ in recipe] == [*SMALLER]
    for script, flags in recipe:
        flags.pop("dask_scheduler", None)  # the shards are the same, as the tests of Dask show
        flags = {name: value.replace("/shared", str(tmp_path)) for name, value in flags.items()} | SMALLER[script]
        if script == "run_pretraining":
            entries = (tmp_path / "vocab.txt").read_text().count("\n")
            config = toy_data.config(vocab_size=entries, hidden_size=8, num_hidden_layers=1)
            (tmp_path / "bert_config.json").write_text(config.to_json_string())
            flags["eval_input_file"] = flags["eval_input_file"].replace("62499-of-62500", "00002-of-00003")
        done = command_lines.run(*command_line(script, flags), cwd=tmp_path)
        assert done.status == 0, done.stderr
    assert checkpoint.latest_checkpoint(str(tmp_path / "model")).endswith("model.ckpt-4")
    assert checkpoint.latest_checkpoint(str(tmp_path / "model" / "best"))
    assert re.search(r"Left out of --input_file.*-00002-of-00003", done.stderr)
