"""The output of `--help`: a script's description, then all of its flags in groups, as wide as the terminal.

`flags` defines the flags and their groups; this module formats them.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence

_WIDEST = 120
_COLUMN = 30  # where the explanations start; a longer flag gets its own line
_LONGEST_CHOICES = 24  # in characters; longer lists of choices are part of the explanation


def render(
    description: str,
    groups: Mapping[str, Sequence],
    needed_with: Mapping[str, Sequence[str]],
    closing: str,
    width: int | None = None,
) -> str:
    """Returns the help screen of a script.

    Args:
      description: the script's docstring; paragraphs are wrapped, indented lines are kept.
      groups: title -> flags (objects of absl), in the order to show; an empty group is omitted.
      needed_with: name of a flag -> the switches that require it.
      closing: a last sentence.
      width: in characters; defaults to the terminal's.
    """
    width = min(width or shutil.get_terminal_size().columns, _WIDEST) - 1
    parts = [_paragraphs(description, width)]
    for title, flags in groups.items():
        if flags:
            entries = (_entry(flag, needed_with.get(flag.name, ()), width) for flag in flags)
            parts.append("\n".join([f"{title}:", *entries]))
    return "\n\n".join([*parts, textwrap.fill(closing, width)]) + "\n"


def _paragraphs(text: str, width: int) -> str:
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(_wrapped(paragraph.splitlines(), width) for paragraph in paragraphs)


def _wrapped(lines: Sequence[str], width: int) -> str:
    """Wraps a paragraph; indented lines are commands, which are broken before a flag if they do not fit."""
    if not any(line.startswith(" ") for line in lines):
        return textwrap.fill(" ".join(lines), width)
    whole = re.sub(r" *\\\n *", " ", "\n".join(lines))
    return "\n".join(break_command(line, width) for line in whole.splitlines())


def break_command(line: str, width: int) -> str:
    """Breaks a command that is longer than `width` into lines that can be typed."""
    first, *flags = re.split(r" --(?=(?:[^']*'[^']*')*[^']*$)", line)  # not within a quoted value
    broken = [first]
    for flag in flags:
        if len(broken[-1]) + len(flag) + 5 > width:  # with the space, the dashes and " \\"
            broken[-1] += " \\"
            broken.append(f"      --{flag}")
        else:
            broken[-1] += f" --{flag}"
    return "\n".join(broken)


def _entry(flag, switches: Sequence[str], width: int) -> str:
    """Formats one flag: its name and kind of value on the left, its help and default on the right."""
    left = f"  --{flag.name}{_value(flag)}"
    own = re.sub(
        r"^<.*?>: |;\s+repeat this option.*", "", flag.help, flags=re.DOTALL
    )  # without the text that absl adds
    text = " ".join([own, *_remarks(flag, switches)])
    explanation = textwrap.wrap(text, max(width - _COLUMN, 20), break_on_hyphens=False)
    explanation = [part.replace("\u00a0", " ") for part in explanation]
    if len(left) > _COLUMN - 2:
        first = left
    else:
        first = f"{left:<{_COLUMN}}{explanation.pop(0)}"
    return "\n".join([first, *(" " * _COLUMN + line for line in explanation)])


def _value(flag) -> str:
    """Returns the text after the name: nothing for a switch."""
    kind = flag.flag_type()
    if "bool" in kind:
        return "=True|False" if flag.default is None else ""
    if choices := _choices(flag):
        shown = "|".join(choices)
        return f"={shown}" if len(shown) <= _LONGEST_CHOICES else "=NAME"
    if "int" in kind or "float" in kind:
        return "=N" if "int" in kind else "=X"
    ending = flag.name.rpartition("_")[2]
    return "=" + {"file": "FILE", "dir": "FOLDER", "checkpoint": "PATH"}.get(ending, "TEXT")


def _choices(flag) -> Iterable[str]:
    return getattr(flag.parser, "enum_values", None) or ()


def _remarks(flag, switches: Sequence[str]) -> list[str]:
    remarks = []
    if _value(flag) == "=NAME":
        remarks.append(f"One of {', '.join(_choices(flag))}.")
    facts = []
    if switches:
        facts.append(f"needed with {' or '.join(f'--{name}' for name in switches)}")
    if flag.default is True:
        facts.append(f"default:\u00a0True; --{flag.name}=False turns it off")
    elif flag.default is not None:
        facts.append(f"default:\u00a0{flag.default}")  # no line break here
    return [*remarks, f"({'; '.join(facts)})"] if facts else remarks
