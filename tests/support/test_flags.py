"""Every script's flags against the reference's, how a wrong command line is answered, and what --help shows."""

import json
import re
import subprocess
import sys

import absl.flags
import pytest
from command_lines import ROOT, SCRIPTS, described
from refused import refuses
from small_models import REFERENCE

import bert_tf2
from bert_tf2.commands import COMMANDS, find
from bert_tf2.support import flags

_TYPES = {"string": "string", "int": "integer", "float": "float", "bool": "bool"}
FLAGS = json.loads((REFERENCE / "flags.json").read_text())


@pytest.fixture
def refused(quick_lines):
    """The line of a command line that is wrong."""

    def run(script: str, *arguments: str) -> str:
        done = quick_lines.run(script, *arguments)
        assert (done.status, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
        assert done.stderr.startswith(f"{script}: error: ")
        return done.stderr

    return run


@pytest.fixture
def screen(quick_lines):
    """The text that a flag shows which ends a script."""

    def run(script: str, flag: str = "--help", columns: int = 80) -> str:
        done = quick_lines.run(script, flag, columns=columns)
        assert (done.status, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.mark.parametrize("script", SCRIPTS)
def test_flags_have_the_reference_s_names_types_and_defaults(script, refused):
    found = described(script)["flags"]
    assert found and all(len(flag["help"]) > 10 for flag in found.values())
    for flag in FLAGS.get(script, ()):
        ours = found[flag["name"]]
        assert (_TYPES[ours["type"]], ours["default"]) == (flag["type"], flag["default"]), flag["name"]
    named = re.search(r"((--\w+( and )?)+) must be given|give at least one of (--\w+(, )?)+", refused(script))
    has_vocabulary = "--vocab_file" in (named[1] or "") and script not in (
        "create_pretraining_data.py",
        "build_vocab.py",
    )
    assert (
        "--init_checkpoint may have --vocab_file and --bert_config_file beside it" in refused(script)
    ) == has_vocabulary
    if script in FLAGS:
        assert {*named[1].split(" and ")} == {f"--{flag['name']}" for flag in FLAGS[script] if flag["required"]}


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--lerning_rate=1", "no flag --lerning_rate; did you mean --learning_rate?"),
        ("--do_lower=False", "did you mean --do_lower_case?"),
        ("--use_fp16", "did you mean --precision?"),  # of a fork
        ("--do_serve", "did you mean --do_export?"),
        ("--num_gpu_cores=2", "no flag --num_gpu_cores (--help"),
        ("--bert_model=x", "did you mean --init_checkpoint?"),
        ("--batch_size=8", "did you mean --eval_batch_size or --train_batch_size?"),
        ("--train-batch-size=8", "did you mean --train_batch_size?"),
        ("--no_cuda", "there is no flag --no_cuda (--help"),
        ("\u2013do_train=true", "unexpected argument '\u2013do_train=true': write two hyphens"),
        (sys.executable, "put the pattern in quotes"),  # --input_file records/*
        ("--learning_rate=1\r", "'--learning_rate=1\\r': ends with \\r"),
        ("--do_train=yes", "--do_train=yes"),
        ("--noxla=false", "--noxla=false"),
        ("--max_eval_steps=1_0", "--max_eval_steps=1_0: a whole number"),
        ("--max_eval_steps=1.5", "--max_eval_steps=1.5: a whole number"),
        ("--learning_rate=1,5", "--learning_rate=1,5: a number"),
        ("--precision=float8", "--precision=float8"),
        (f"--flagfile={sys.executable}", "decode"),
        ("--flagfile=nix", "error: Unable to open flagfile: "),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_line(argument, words, refused):
    assert words in refused("run_pretraining.py", "--input_file=a", "--bert_config_file=b", "--output_dir=c", argument)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--task_name=MRCP", "'MRCP'; did you mean mrpc?"),
        ("--task_name=reviews", "--task_name: there is no task 'reviews'; the known"),
        ("--task_name=tsv", "--text_a_column"),
        ("--task_name=tsv --text_a_column=0", "--text_a_column=0: columns are counted from 1"),
        ("--task_name=tsv --noheader --text_a_column=text", "--text_a_column=text: without a header"),
    ],
)
def test_a_task_or_column_that_cannot_be_is_a_wrong_command_line(arguments, words, refused):
    given = ("--data_dir=a", "--output_dir=b", "--bert_config_file=c", "--vocab_file=d", "--do_train")
    assert words in refused("run_classifier.py", *given, *arguments.split())


@pytest.mark.parametrize(
    ("word", "value"), [("--xla", "true"), ("--noxla", "false"), ("--xla=False", "false"), ("--xla=auto", "auto")]
)
def test_a_switch_with_a_third_value_has_the_forms_of_a_switch(word, value):
    flags.define(find(COMMANDS["run_pretraining"].options))
    absl.flags.FLAGS(["run_pretraining.py", word])
    assert absl.flags.FLAGS.xla == value


def test_a_flag_of_a_script_in_a_file_of_one_s_own():
    """A fork keeps the definitions of the reference."""
    options = find(COMMANDS["run_classifier"].options)
    flags.define(find(COMMANDS["build_vocab"].options))  # which has no such flag
    absl.flags.DEFINE_string("data_dir", None, "The input data dir.", module_name="fork.py")
    try:
        refuses("fork.py --data_dir remove", flags.define, options)
    finally:
        delattr(flags.FLAGS, "data_dir")
    flags.define(options)


def test_files_that_are_sought_beside_the_weights(quick_lines, refused, tmp_path):
    (tmp_path / "bert_model.ckpt.index").touch()
    given, there = ["--task=ner", "--export_dir=a"], f"{tmp_path}/bert_model.ckpt"
    for weights, words in (
        (there, f"beside the weights, in {tmp_path} ("),
        (f"{tmp_path}/model.ckpt", f"--init_checkpoint={tmp_path}/model.ckpt: no such file ({tmp_path} holds: bert_"),
        ("/nowhere/bert_model.ckpt", "(/nowhere is no folder; is a variable, such as $BERT_BASE_DIR, not set?)"),
        ("/bert_model.ckpt", "(/ is the root; is a variable"),
    ):
        assert words in quick_lines.run("export_saved_model.py", f"--init_checkpoint={weights}", *given).stderr
    assert "error: --task must be given" in refused("export_saved_model.py", f"--init_checkpoint={there}", given[1])
    squad = refused("run_squad.py", "--do_predict", "--predict_file=a", "--output_dir=b")
    assert "--vocab_file and --bert_config_file must be given, or --init_checkpoint" in squad


def test_scripts_start_in_a_process_of_their_own(tmp_path):
    """Whose standard input is read once."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]))
    arguments = ["--input_file=/dev/stdin", f"--output_file={tmp_path}/out", f"--vocab_file={tmp_path}/vocab.txt"]
    command = [sys.executable, "create_pretraining_data.py", *arguments]
    subprocess.run(command, cwd=ROOT, input=b"a b c\na\n\nb c\nc\n", capture_output=True, timeout=60, check=True)
    assert (tmp_path / "out").stat().st_size > 1000
    command = [sys.executable, "-m", "bert_tf2", "run_squad", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"bert_tf2 {bert_tf2.__version__}\n", "")


# --help


def entries(text: str) -> dict[str, str]:
    """flag -> the words of its entry on a help screen."""
    found = re.findall(r"^  --(\w+)(.*\n(?: {8,}.*\n)*)", text + "\n", re.MULTILINE)
    assert len({name for name, _ in found}) == len(found)
    return {name: " ".join(f"--{name}{words}".split()) for name, words in found}


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_help_of_a_script(script, screen):
    """Every flag once with its default; an example with flags of the script and all required ones; the width."""
    text, flags = screen(script), described(script)["flags"]
    must, beside = (
        {*entries(text.partition(f"Required{what}:\n")[2].partition("\n\n")[0])}
        for what in ("", ", unless beside --init_checkpoint")
    )
    shown, required = entries(text), must | beside
    assert {*shown} == {*flags, "verbosity"} and (
        beside in ({"vocab_file", "bert_config_file"}, {"bert_config_file"}, set())
    )
    for name, flag in flags.items():
        assert flag["default"] is None or f"default: {flag['default']}" in shown[name]
        assert flag["type"] != "bool" or shown[name].startswith(f"--{name}=True|False ") == (
            flag["default"] is not False
        )
    required.discard(find(COMMANDS[script.removesuffix(".py")].options).words)  # need no flag
    commands = re.findall(rf"^  python {script} .*", re.sub(r" \\\n +", " ", text), re.MULTILINE)
    assert commands and all(required <= {*re.findall(r"--(\w+)", command)} <= {*shown} for command in commands)
    assert max(map(len, text.partition(":\n  --")[2].splitlines())) < 80  # examples stay as they are


def test_all_names_of_the_flag_answer(screen, refused):
    wanted = screen("build_vocab.py")
    assert all(screen("build_vocab.py", flag) == wanted for flag in ("-h", "--helpshort", "-?", "--help=1"))
    assert "must be given" in refused("build_vocab.py", "--help=false")
    assert screen("build_vocab.py", "--version=1") == f"bert_tf2 {bert_tf2.__version__}\n"
    text = screen("run_squad.py", columns=120)
    assert 90 < max(map(len, text.splitlines())) < 120
    assert entries(text)["predict_file"].startswith("--predict_file=FILE ")
    assert "(needed with --do_predict or --do_eval or --eval_steps)" in entries(text)["predict_file"]
    assert "One of float32, tf32, bfloat16, float16." in entries(text)["precision"]
