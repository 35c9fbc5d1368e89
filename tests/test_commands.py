"""The installed package outside of a checkout: a wheel, the command `bert_tf2`, the demonstration."""

import os
import pathlib
import subprocess
import sys

import pytest
from command_lines import ROOT, SCRIPTS, environment, without_tensorflow
from refused import message_of

from bert_tf2 import commands


def test_there_is_a_command_for_every_script():
    assert sorted(f"{name}.py" for name in commands.COMMANDS) == SCRIPTS


def test_the_command_without_a_script_lists_them_and_knows_the_right_one(capsys, monkeypatch):
    wrong = "bert_tf2: error: there is no script 'run_squadd'; did you mean run_squad?"
    for words, status in ([], 2), (["run_squadd"], wrong):
        monkeypatch.setattr(sys, "argv", ["bert_tf2", *words])
        with pytest.raises(SystemExit) as ended:
            commands.main()
        assert ended.value.code == status
    shown = capsys.readouterr().out
    assert all(f"  {name}\n" in shown for name in commands.COMMANDS)


@pytest.mark.parametrize(
    ("name", "given", "parts"),
    [
        ("run_clasifier", {}, "'run_clasifier' run_classifier?"),
        ("run_classifier", {"do_trian": True}, "'do_trian' do_train?"),
        ("build_vocab", {"input_file": "x"}, "--vocab_file given"),
    ],
)
def test_a_wrong_call_names_what_would_be_right(name, given, parts):
    message = message_of(commands.call, name, **given)
    assert all(part in message for part in parts.split())


@pytest.mark.slow
def test_a_tpu_that_is_none_says_so_once():
    """TensorFlow would log the errors of gRPC besides, before the one line, as it does at a lower level."""
    program = (
        "from bert_tf2.support import process; process.begin(); process.load_tensorflow();"
        " import os; print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    )
    variables = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=variables, capture_output=True, text=True)
    assert (done.stdout, without_tensorflow(done.stderr)) == ("3\n", "")


def test_the_demonstration_is_a_command(tmp_path):
    (tmp_path / "out").touch()
    for words, status, part in (
        (["--help"], 0, "bert_tf2 demo [OUTPUT_DIR]"),
        (["--dir=x"], 2, "bert_tf2 demo [OUTPUT_DIR]"),
        (["out"], 1, "bert_tf2 demo: error: "),
    ):
        done = run(ROOT, tmp_path, sys.executable, "-m", "bert_tf2", "demo", *words)
        assert done.returncode == status and part in done.stdout + done.stderr
        assert status != 1 or (done.stdout == "" and done.stderr.count("\n") == 1)


def run(installed: pathlib.Path, folder: pathlib.Path, *command: str) -> subprocess.CompletedProcess:
    """Runs a command with the installed bert_tf2; the other packages are those of this environment."""
    variables = environment(installed)
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_wheel_holds_all_modules_and_data_and_answers_away_from_the_checkout(tmp_path):
    source, installed, elsewhere = (tmp_path / name for name in ("source", "site", "elsewhere"))
    source.mkdir()
    elsewhere.mkdir()
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
    where = run(installed, elsewhere, sys.executable, "-c", "import bert_tf2; print(bert_tf2.__file__)")
    assert where.stdout.startswith(str(installed))
    done = run(installed, elsewhere, sys.executable, str(installed / "bin" / "bert_tf2"), "run_squad", "--do_trai")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("run_squad.py: error: ") and "did you mean --do_train?" in done.stderr
    done = run(installed, elsewhere, sys.executable, "-m", "bert_tf2", "run_ner.py", "--help")
    assert done.returncode == 0 and "--tag_column=N" in done.stdout


def test_scripts_one_after_the_other_in_a_process(tmp_path):
    """As in a notebook: each has its own flags and none of the other's."""
    program = (
        "import sys\nfrom bert_tf2 import commands\n"
        "for script, flag in ('build_vocab', 'vocab_size=x'), ('run_ner', 'vocab_size=9'), ('build_vocab', 'y'):\n"
        "    sys.argv = [script + '.py', '--' + flag]\n"
        "    try: commands.run(script)\n"
        "    except SystemExit as ended: assert ended.code == 2, ended.code\n"
    )
    done = run(ROOT, tmp_path, sys.executable, "-c", program)
    first, second, third = done.stderr.splitlines()
    assert "--vocab_size" in first and "no flag --vocab_size" in second and "no flag --y" in third
