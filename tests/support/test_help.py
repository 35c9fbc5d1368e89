"""What --help shows, for every script."""

import functools
import os
import re
import subprocess
import sys

import pytest
from command_lines import ROOT, SCRIPTS, described

from bert_tf2.commands import COMMANDS, find
from bert_tf2.support import help_screen


@functools.cache
def screen(script: str, columns: int = 80, flag: str = "--help") -> str:
    """What a script shows when TensorFlow is out of reach."""
    program = f"import runpy, sys; sys.modules['tensorflow'] = None; runpy.run_path({script!r}, run_name='__main__')"
    command = [sys.executable, "-c", f"import sys; sys.argv = [{script!r}, {flag!r}]; {program}"]
    environment = {**os.environ, "COLUMNS": str(columns)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
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
def test_required_flags_come_first(script):
    text = screen(script)
    titles = re.findall(r"^(\w.*):\n  --", text, re.MULTILINE)
    assert titles[0] in ("Required", "What to do (at least one of these)")
    assert titles[-1] == "Log"
    done = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    if "must be given" in done.stderr:
        missing = re.findall(r"--(\w+)", done.stderr.partition(" must be given")[0])
        assert [name for group, name, _ in entries(text) if group == "Required"] == missing


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
@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("script", SCRIPTS)
def test_no_line_is_wider_than_the_terminal(script, columns):
    assert max(map(len, screen(script, columns).splitlines())) < columns


def test_all_names_of_the_flag_answer():
    wanted = screen("build_vocab.py")
    assert all(screen("build_vocab.py", flag=flag) == wanted for flag in ("-h", "-help", "--helpshort", "-?"))


def test_what_an_entry_tells():
    shown = {name: words for _, name, words in entries(screen("run_squad.py"))}
    assert shown["predict_file"].startswith("--predict_file=FILE ")
    assert "(needed with --do_predict or --do_eval or --eval_steps)" in shown["predict_file"]
    assert shown["precision"].startswith("--precision=NAME The type of the large products")
    assert "One of float32, tf32, bfloat16, float16." in shown["precision"]
    assert "default: True; --do_lower_case=False turns it off" in shown["do_lower_case"]
    many = {name: words for _, name, words in entries(screen("export_saved_model.py"))}
    assert "One of features, classifier, squad, ner, masked_lm." in many["task"]


def test_commands_are_broken_before_flags():
    text = "Does it.\n\nExample:\n  python x.py --first=1 \\\n      --second='a b' --third=3\n\nMore\ntext."
    assert help_screen.render(text, {}, {}, "End.", width=40) == (
        "Does it.\n\nExample:\n  python x.py --first=1 \\\n      --second='a b' --third=3\n\nMore text.\n\nEnd.\n"
    )
