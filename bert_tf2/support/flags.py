"""The command line: flags from an options class, the help screen, and the start and the end of a script.

Only this module and the scripts use flags. TensorFlow is imported after the flags have been checked, so that a wrong
flag is reported immediately.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import inspect
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from typing import Any

from absl import app, flags, logging

from bert_tf2 import __version__
from bert_tf2.support import console, resolution, settings
from bert_tf2.support.errors import UserError
from bert_tf2.support.process import load_tensorflow as load_tensorflow  # for the scripts
from bert_tf2.support.settings import Options, WrongSetting

FLAGS = flags.FLAGS

_WIDEST_HELP = 120
_COLUMN = 30  # where the explanations start; a longer flag gets its own line


def run(options_class: type[Options], main: Callable[[Any], None]) -> None:
    """Parses the command line and calls `main` with the options; see console.in_one_line for errors.

    The exit status is 2 for a wrong command line, 0 after --help.
    """
    with console.in_one_line():
        define(options_class)
        FLAGS.set_default("verbosity", logging.INFO)  # the reference logs its progress at this level
        FLAGS["verbosity"].help = "Messages to log: -1 only warnings, 0 also progress, 1 everything."
        console.set_up_log()
        app.run(main, flags_parser=lambda argv: _parse(options_class, argv))


class _Number(flags.ArgumentParser):
    """An int or a float without "_". Python reads 1_0 as 10, but a user who types 1_0 means something else."""

    def __init__(self, kind: type):
        self._kind = kind

    def parse(self, argument: Any) -> Any:
        with contextlib.suppress(ValueError):
            if "_" not in str(argument):
                return self._kind(argument)
        raise ValueError(f"a {'whole ' if self._kind is int else ''}number is needed")

    def flag_type(self) -> str:
        return self._kind.__name__


class _SwitchWithChoices(flags.EnumParser):
    """One of several words; "true" and "false" may be written as for a switch: --xla, --noxla, --xla=True."""

    def parse(self, argument: Any) -> str:
        with contextlib.suppress(ValueError, TypeError):
            return str(flags.BooleanParser().parse(argument)).lower()
        return super().parse(argument)


def define(options_class: type[Options]) -> None:
    """Defines a flag for every setting of a class; its bounds are checked when the options object is created.

    The flags of a script that ran before in this process, for example in a notebook, are removed. Raises UserError if
    the user's own file defines one of the flags.
    """
    for flag in FLAGS.get_flags_for_module(__name__):
        delattr(FLAGS, flag.name)
    if twice := [name for name in settings.settings_of(options_class) if name in FLAGS]:
        owner = FLAGS.find_module_defining_flag(twice[0])
        raise UserError(f"{owner} defines --{twice[0]}, which the script defines, too; remove it from {owner}")
    for name, (stated, kind, default) in settings.settings_of(options_class).items():
        default = stated.flag_default if default in (None, MISSING) else default
        if stated.is_switch:
            parser = _SwitchWithChoices([*stated.choices])
            flags.DEFINE_flag(
                flags.Flag(parser, flags.ArgumentSerializer(), name, default, stated.help, boolean=True),
                module_name=__name__,
            )
        elif stated.choices:
            flags.DEFINE_enum(name, default, [*stated.choices], stated.help)
        elif kind is bool:
            flags.DEFINE_bool(name, default, stated.help)
        elif kind in (int, float):
            flags.DEFINE(_Number(kind), name, default, stated.help)
        elif kind is str:
            flags.DEFINE_string(name, default, stated.help)
        else:
            flags.DEFINE_multi_string(name, default, stated.help)


_HELP = {"-h", "--h", "-help", "--help", "-helpshort", "--helpshort", "-?", "--?"}  # absl's names; --helpfull is absl's
_VERSION = {"-version", "--version"}


def _parse(cls: type[Options], argv: Sequence[str]) -> Options:
    """The options of a command line. Ends the script after --help and --version, and if the command line is wrong."""
    words = (word.partition("=") for word in argv[1:])
    given = {name for name, _, value in words if value.lower() in ("", "1", "true")}
    if given & (_HELP | _VERSION):
        print(_help(cls) if given & _HELP else f"bert_tf2 {__version__}")
        sys.exit(0)
    try:
        options = _options(cls, argv)
    except flags.UnrecognizedFlagError as error:
        problem = f"there is no flag --{error.flagname}"
        known = [flag.name for flag in FLAGS.get_flags_for_module(__name__)]
        if near := " or ".join(f"--{flag}" for flag in _near(error.flagname, known)):
            problem += f"; did you mean {near}?"
    except (flags.Error, WrongSetting, ValueError) as error:
        problem = " ".join(str(error).removeprefix("ERROR:: ").split())  # absl's, of a --flagfile
        problem = re.sub(r"\('Non-boolean .*\)", "true or false is needed", problem)  # absl shows a tuple
    else:
        if getattr(options, "verbose_logging", False):
            logging.set_verbosity(max(logging.DEBUG, logging.get_verbosity()))
        return options
    console.fail(2, f"{problem} (--help lists the flags)")


# Flags of well-known forks and of other scripts -> the flags in their place, where a script has them.
_REPLACED = {
    "data_dir": ("train_file", "eval_file", "predict_file", "input_file"),
    **dict.fromkeys(("task_name", "use_gpu", "num_gpus", "num_gpu_cores"), ()),
    **dict.fromkeys(("do_serve", "save_for_serving"), ("do_export",)),
    "model_dir": ("output_dir",),
    **dict.fromkeys(("bert_model", "model_name_or_path", "bert_hub_module_handle"), ("init_checkpoint",)),
    **dict.fromkeys(("fp16", "use_fp16", "amp"), ("precision",)),
    "use_xla": ("xla",),
    "num_accumulation_steps": ("gradient_accumulation_steps",),
}


def _near(wanted: str, known: Sequence[str]) -> list[str]:
    """The names that replace a wrong name; else at most three that are similar to it: do_lower_case for do_lower."""
    wanted = wanted.strip("-").replace("-", "_").lower()
    if wanted in _REPLACED:
        return [name for name in _REPLACED[wanted] if name in known]
    found = sorted(name for name in known if len(wanted) > 2 and wanted in name)  # shorter words are in many names
    return found[:3] or difflib.get_close_matches(wanted, known, n=2, cutoff=0.65)


def _options(cls: type[Options], argv: Sequence[str]) -> Options:
    if cls.words is not None:
        FLAGS.set_gnu_getopt()  # flags may also follow the words
    if torn := [word for word in argv if word.endswith("\r")]:  # which would be part of the name of a folder
        raise flags.Error(
            f"{torn[0]!r}: ends with \\r; the file of this command has line ends of Windows: dos2unix FILE"
        )
    rest = FLAGS([*argv])
    values = {name: FLAGS[name].value for name in settings.settings_of(cls)}
    for name, (stated, _, default) in settings.settings_of(cls).items():
        if default is None and stated.flag_default is not None and FLAGS[name].using_default_value:
            values[name] = None  # not given
    if cls.words is not None:
        values[cls.words] = (*(values[cls.words] or ()), *rest[1:])
    elif len(rest) > 1:
        is_dash = rest[1].startswith(("\u2013", "\u2014"))  # the dashes of a word processor
        cure = "write two hyphens, --" if is_dash else "every setting is a flag, --name=value, also --switch=False"
        if os.path.isfile(rest[1]):
            cure = "if the shell expanded a pattern to several names, put the pattern in quotes"
        raise flags.Error(f"unexpected argument {rest[1]!r}: {cure}")
    return resolution.resolve(cls(**values))


# The help screen


def _help(cls: type[Options]) -> str:
    """The help screen: the docstring, and the flags in their groups."""
    width = min(shutil.get_terminal_size().columns, _WIDEST_HELP) - 1
    paragraphs = inspect.cleandoc(cls.__doc__ or "").split("\n\n")
    text = [each if "\n " in each else textwrap.fill(each, width) for each in paragraphs]
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS, description="\n\n".join(text), epilog="To see the flags of absl: --helpfull.",
        add_help=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=_COLUMN, width=width),
    )  # fmt: skip
    must, found = settings.required(cls), settings.settings_of(cls)
    first = ("Required", "Required, unless beside --init_checkpoint")
    groups = {title: parser.add_argument_group(title) for title in (*first, *settings.GROUPS)}
    for name in sorted(found, key=lambda name: name not in cls.any_of):
        (entry, text), stated = _entry(cls, name), found[name][0]
        title = first[bool(stated.beside_weights)] if name in must else stated.group
        groups[title].add_argument(entry, action="store_true", help=text.replace("%", "%%"))
    groups[settings.LOG].add_argument("--verbosity=N", action="store_true", help=FLAGS["verbosity"].help)
    return parser.format_help().rstrip("\n")


def _entry(cls: type[Options], name: str) -> tuple[str, str]:
    """A flag with a word for its value, nothing for a switch that is off by default, and its explanation."""
    (stated, kind, _), default = settings.settings_of(cls)[name], FLAGS[name].default
    of_text = {"file": "=FILE", "dir": "=FOLDER", "checkpoint": "=PATH"}.get(name.rpartition("_")[2], "=TEXT")
    switch = "" if default is False else "=True|False"
    value = "=NAME" if stated.choices else {int: "=N", float: "=X", bool: switch}.get(kind, of_text)
    switches = " or ".join(f"--{switch}" for switch, needed in settings.needed(cls) if needed == name)
    text = stated.help + (f" One of {', '.join(stated.choices)}." if len(stated.choices or ()) > 1 else "")
    text += (f" (needed with {switches})" if switches else "") + (
        f" (default: {default})" if default is not None else ""
    )
    return f"--{name}{value}", text
