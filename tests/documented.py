"""The command lines of a document, to be run in small."""

from __future__ import annotations

import re
import shlex

from command_lines import ROOT


def section(document: str, title: str) -> str:
    """The text of a section of a document in `docs`."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def shell_lines(text: str) -> list[list[str]]:
    """The lines of the shell blocks of a text, split into words; variables are not expanded."""
    blocks = re.findall(r"(?ms)^```(?:shell|bash)?\n(.*?)^```$", text)
    lines = (line for block in blocks for line in block.replace("\\\n", " ").splitlines())
    lines = (line for line in lines if re.match(r"\s*(python|echo)\s", line))
    return [shlex.split(line, comments=True) for line in lines]


def commands_in(text: str) -> list[tuple[str, dict[str, str]]]:
    """The name of the script and the flags of each command line `python SCRIPT.py` in the shell blocks of a text."""
    found = []
    for words in shell_lines(text):
        if words[0] == "python" and re.fullmatch(r"\w+\.py", words[1]):
            flags = (word.removeprefix("--").partition("=") for word in words[2:])
            given = {name: value if is_given else "true" for name, is_given, value in flags}
            found.append((words[1].removesuffix(".py"), given))
    return found


def command_line(script: str, flags: dict[str, object]) -> list[str]:
    return [f"{script}.py", *(f"--{name}={value}" for name, value in flags.items())]
