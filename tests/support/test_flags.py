"""Every script's flags against the reference's, how a wrong command line is answered, and what --help shows."""

import functools
import json
import os
import re
import subprocess
import sys

import pytest
from command_lines import ROOT, SCRIPTS, described
from small_models import REFERENCE

import bert_tf2
from bert_tf2.commands import COMMANDS, find

_TYPES = {"string": "string", "int": "integer", "float": "float", "bool": "bool"}


@functools.cache
def run(script: str, *arguments: str, columns: int = 80) -> subprocess.CompletedProcess:
    """A command line that must end before any work: TensorFlow is out of reach."""
    program = f"import runpy, sys; sys.modules['tensorflow'] = None; runpy.run_path({script!r}, run_name='__main__')"
    command = [sys.executable, "-c", f"import sys; sys.argv = [{script!r}, *sys.argv[1:]]; {program}", *arguments]
    environment = {**os.environ, "COLUMNS": str(columns)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


def refused(script: str, *arguments: str, status: int = 2) -> str:
    """The line of a command line that is wrong."""
    done = run(script, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1), done
    assert done.stderr.startswith(f"{script}: error: ")
    return done.stderr


def reference() -> dict[str, list[dict]]:
    return json.loads((REFERENCE / "flags.json").read_text())


@pytest.mark.parametrize("script", SCRIPTS)
def test_flags_have_the_reference_s_names_types_and_defaults(script):
    ours = described(script)["flags"]
    wanted = reference().get(script)
    if wanted is None:
        pytest.skip("the reference has no such script")
    for flag in wanted:
        assert flag["name"] in ours, f"--{flag['name']} is missing"
        found = ours[flag["name"]]
        assert (_TYPES[found["type"]], found["default"]) == (flag["type"], flag["default"]), flag["name"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_missing_flags_are_named_in_one_line(script):
    text = refused(script)
    named = re.search(r"((--\w+( and )?)+) must be given|give at least one of (--\w+(, )?)+", text)
    assert named, text
    if script in reference():
        required = {f"--{flag['name']}" for flag in reference()[script] if flag["required"]}
        assert {*named[1].split(" and ")} == required


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_script_loads_tensorflow_to_read_its_flags_and_every_flag_is_explained(script):
    found = described(script)
    assert not found["tensorflow"]
    assert found["flags"]
    assert all(len(flag["help"]) > 10 for flag in found["flags"].values())


NEEDED = ("--input_file=a", "--bert_config_file=b", "--output_dir=c")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*NEEDED, "--lerning_rate=1"], ["no flag --lerning_rate; did you mean --learning_rate?"]),
        ([*NEEDED, "--do_lower=False"], ["no flag --do_lower; did you mean --do_lower_case?"]),
        ([*NEEDED, "--batch_size=8"], ["did you mean --eval_batch_size or --train_batch_size?"]),
        ([*NEEDED, "--train-batch-size=8"], ["did you mean --train_batch_size?"]),
        ([*NEEDED, "--no_cuda"], ["there is no flag --no_cuda (--help"]),
        ([*NEEDED, "--max_len=9"], ["did you mean --max_seq_length?"]),
        (
            [*NEEDED, "--do_lower_case", "False"],
            ["unexpected argument 'False': every setting is a flag, --name=value, also --switch=False"],
        ),
        ([*NEEDED, "\u2013do_train=true"], ["unexpected argument '\u2013do_train=true': every setting is a flag"]),
        ([*NEEDED, "--do_train=yes"], ["error: flag --do_train=yes: ('Non-boolean argument"]),
        ([*NEEDED, "--noxla=false"], ["error: --noxla=false does not take an argument (--help"]),
        ([*NEEDED, "--max_eval_steps=1_0"], ["error: flag --max_eval_steps=1_0: a whole number is needed (--help"]),
        ([*NEEDED, "--learning_rate=1_0"], ["error: flag --learning_rate=1_0: a number is needed (--help"]),
        ([*NEEDED, "--max_eval_steps=1.5"], ["error: flag --max_eval_steps=1.5: a whole number is needed (--help"]),
        ([*NEEDED, "--learning_rate=1,5"], ["error: flag --learning_rate=1,5: a number is needed (--help"]),
        ([*NEEDED, "--stderrthreshold=bad"], ["--stderrthreshold must be one of"]),
        ([*NEEDED, f"--flagfile={sys.executable}"], ["'utf-8' codec can't decode"]),
        ([*NEEDED, "--do_train\r"], ["error: '--do_train\\r': holds a carriage return: the shell script has Windows'"]),
        ([*NEEDED, "\r"], ["'\\r': holds a carriage return"]),
        ([*NEEDED, "--flagfile=gone"], ["Unable to open flagfile: [Errno 2] No such file or directory: 'gone'"]),
        ([*NEEDED, "--do_train", "train.tfrecord"], ["unexpected argument 'train.tfrecord'"]),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_line(arguments, words):
    text = refused("run_pretraining.py", *arguments)
    assert all(word in text for word in words), text


def test_a_pipe_that_is_read_once_is_read(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]))
    arguments = ["--input_file=/dev/stdin", f"--output_file={tmp_path}/out", f"--vocab_file={tmp_path}/vocab.txt"]
    command = [sys.executable, "create_pretraining_data.py", *arguments]
    subprocess.run(command, cwd=ROOT, input=b"a b c\na\n\nb c\nc\n", capture_output=True, timeout=60, check=True)
    assert (tmp_path / "out").stat().st_size > 1000


@pytest.mark.parametrize("start", [["run_squad.py"], ["-m", "bert_tf2", "run_squad"], ["-m", "bert_tf2"]])
def test_the_version(start):
    done = subprocess.run([sys.executable, *start, "--version"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"bert_tf2 {bert_tf2.__version__}\n", "")


# What --help shows


def screen(script: str, flag: str = "--help", columns: int = 80) -> str:
    done = run(script, flag, columns=columns)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def entries(text: str) -> list[tuple[str, str, str]]:
    """(group, flag, the words of its entry) of a help screen."""
    found = []
    for block in text.split("\n\n"):
        title, *lines = block.splitlines()
        for line in lines:
            if match := re.match(r"  --(\w+)", line):
                found.append((title.rstrip(":"), match[1], line))
            elif found and line.startswith(" " * 20):
                found[-1] = (*found[-1][:2], f"{found[-1][2]} {line.strip()}")
    return [(group, name, " ".join(words.split())) for group, name, words in found]


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_flag_is_shown_once_with_its_default(script):
    shown = entries(screen(script))
    names = [name for _, name, _ in shown]
    flags = described(script)["flags"]
    assert sorted(names) == sorted({*flags, "verbosity"})
    for _, name, words in shown:
        if name in flags and flags[name]["default"] is not None:
            assert f"default: {flags[name]['default']}" in words, words


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_example_has_flags_of_the_script_and_all_required_ones(script):
    text = screen(script)
    examples = re.sub(r" \\\n +", " ", text)
    commands = re.findall(rf"^  python {script} .*", examples, re.MULTILINE)
    assert commands
    known = {name for _, name, _ in entries(text)}
    for command in commands:
        used = {*re.findall(r"--(\w+)", command)}
        assert used <= known
        words = find(COMMANDS[script.removesuffix(".py")].options).words  # need no flag
        assert used >= {name for group, name, _ in entries(text) if group == "Required"} - {words}


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_no_line_is_wider_than_the_terminal(script):
    """Examples stay as they are, for a terminal of 120 columns."""
    assert max(map(len, screen(script, columns=120).splitlines())) < 120
    assert max(map(len, screen(script).partition(":\n  --")[2].splitlines())) < 80


def test_all_names_of_the_flag_answer():
    wanted = screen("build_vocab.py")
    flags = ("-h", "-help", "--helpshort", "-?", "--help=1", "--helpshort=True")
    assert all(screen("build_vocab.py", flag) == wanted for flag in flags)
    assert "must be given" in refused("build_vocab.py", "--help=false")
    assert "absl.logging:" in run("build_vocab.py", "--helpfull").stdout
    assert screen("build_vocab.py", "--version=1") == f"bert_tf2 {bert_tf2.__version__}\n"


def test_what_an_entry_tells():
    shown = {name: words for _, name, words in entries(screen("run_squad.py"))}
    assert shown["predict_file"].startswith("--predict_file=FILE ")
    assert "(needed with --do_predict or --do_eval or --eval_steps)" in shown["predict_file"]
    assert "One of float32, tf32, bfloat16, float16." in shown["precision"]
