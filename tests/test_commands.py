"""The installed package outside of a checkout: a wheel, the command `bert_tf2`, the demonstration."""

import pathlib
import re
import subprocess
import sys

import pytest
from absl import logging
from command_lines import ROOT, SCRIPTS, environment
from refused import message_of, refuses

from bert_tf2 import commands
from bert_tf2.support.errors import naming_arguments


def test_there_is_a_command_for_every_script_and_a_wrong_one_is_told(capsys, monkeypatch):
    assert sorted(f"{name}.py" for name in commands.COMMANDS) == SCRIPTS
    for words, named in ([], ""), (["run_squadd"], "run_squad?"):
        monkeypatch.setattr(sys, "argv", ["bert_tf2", *words])
        with pytest.raises(SystemExit) as ended:
            commands.main()
        assert named in ended.value.code if named else ended.value.code == 2
    shown = capsys.readouterr().out
    assert all(re.search(rf"(?m)^  {name} +[A-Z]\S+ .*[^ ]$", shown) for name in commands.COMMANDS)
    refuses("run_clasifier run_classifier?", commands.call, "run_clasifier")
    refuses("do_trian do_train?", commands.call, "run_classifier", do_trian=True)
    assert message_of(commands.call, "build_vocab", input_file="x").startswith("vocab_file ")
    wrong = {"task": "ner", "format": "pb", "init_checkpoint": "x", "export_dir": "x"}
    wrong |= {"vocab_file": "x", "bert_config_file": "x"}
    assert message_of(commands.call, "export_saved_model", **wrong).startswith("format=pb: ")


def test_the_log_of_a_call_from_python_names_arguments(log_lines):
    lines = ["--a: start dask worker host --nworkers=auto", "--b=1, --c: convert_checkpoint.py --to=hf", "--d"]
    with naming_arguments():
        for line in lines[:2]:
            logging.warning(line.replace("1", "%d"), *[1] * line.count("1"))
    logging.warning(lines[2])
    assert log_lines == [lines[0].removeprefix("--"), "b=1, c: convert_checkpoint.py --to=hf", "--d"]


def run(installed: pathlib.Path, folder: pathlib.Path, *command: str) -> subprocess.CompletedProcess:
    """Runs a command with the installed bert_tf2; the other packages are those of this environment."""
    variables, how = environment(installed), {"capture_output": True, "text": True, "timeout": 120}
    return subprocess.run([sys.executable, *command], cwd=folder, env=variables, **how)


def test_the_demonstration_is_a_command(tmp_path):
    (tmp_path / "out").touch()
    for word, status, part in (("--help", 0, "bert_tf2 demo [OUTPUT_DIR]"), ("out", 1, "bert_tf2 demo: error: ")):
        done = run(ROOT, tmp_path, "-m", "bert_tf2", "demo", word)
        assert done.returncode == status and part in (done.stderr if status else done.stdout)
        assert not status or (done.stdout == "" and done.stderr.count("\n") == 1)
    done = run(ROOT, tmp_path, "-m", "bert_tf2.run_squad", "--do_trai")  # as `python -m bert.run_squad`
    assert done.returncode == 2 and done.stderr.startswith("run_squad.py: error: ")


def test_scripts_one_after_the_other_in_a_process(tmp_path):
    """As in a notebook: each has its own flags and none of the other's."""
    program = (
        "import sys\nfrom bert_tf2 import commands\n"
        "for script, flag in ('build_vocab', 'vocab_size=x'), ('run_ner', 'vocab_size=9'), ('build_vocab', 'y'):\n"
        "    sys.argv = [script + '.py', '--' + flag]\n"
        "    try: commands.run(script)\n"
        "    except SystemExit as ended: assert ended.code == 2, ended.code\n"
    )
    first, second, third = run(ROOT, tmp_path, "-c", program).stderr.splitlines()
    assert "--vocab_size" in first and "no flag --vocab_size" in second and "no flag --y" in third


@pytest.mark.slow
def test_a_wheel_holds_all_modules_and_data_and_answers_away_from_the_checkout(tmp_path):
    source, installed = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    for name in ("bert_tf2", "setup.py", "README.md", "pyproject.toml"):
        (source / name).symlink_to(ROOT / name)
    build = "import setuptools.build_meta as backend, sys; backend.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=source, check=True, capture_output=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([*pip, f"--target={installed}", str(wheel)], check=True, capture_output=True)
    kinds = (".py", ".txt", ".json", ".html", ".css", ".js", ".svg")
    ours = {path.relative_to(ROOT) for path in (ROOT / "bert_tf2").rglob("*") if path.suffix in kinds}
    found = {path.relative_to(installed) for path in (installed / "bert_tf2").rglob("*") if path.is_file()}
    assert ours == found - {pathlib.Path("bert_tf2/demo/README.md")}
    where = run(installed, tmp_path, "-c", "import bert_tf2; print(bert_tf2.__file__)")
    assert where.stdout.startswith(str(installed))
    done = run(installed, tmp_path, str(installed / "bin" / "bert_tf2"), "run_squad", "--do_trai")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("run_squad.py: error: ") and "did you mean --do_train?" in done.stderr
    done = run(installed, tmp_path, "-m", "bert_tf2", "run_ner.py", "--help")
    assert done.returncode == 0 and "--tag_column=N" in done.stdout
