"""The command line: how a script starts, how it fails, and the flags that several scripts share.

Only this module and the scripts read flags. TensorFlow is imported by `main` after the flags have been checked, so that
a wrong flag is answered at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence

from absl import app, flags, logging

from bert_tf2.support import console, ending, help_screen, outputs, process, progress
from bert_tf2.support.quiet import load_tensorflow as load_tensorflow  # for the scripts

FLAGS = flags.FLAGS

_LARGEST_INTEGER = 2**31 - 1


def run(main: Callable[[Sequence[str]], None]) -> None:
    """Parses the command line, calls `main`, and turns what a user can put right into one line on standard error.

    The exit status is 0 on success and after --help, 1 for a UserError and for what the machine refuses, 2 for a wrong
    command line, 130 when interrupted and 143 after SIGTERM.
    """
    FLAGS.set_default("verbosity", logging.INFO)  # the reference logs its progress at this level
    console.set_up_log()
    with ending.in_one_line(_fail, _memory_settings, _tidy):
        app.run(_Checked(main), flags_parser=_parse)


def _parse(argv: Sequence[str]) -> Sequence[str]:
    if _HELP.intersection(itertools.takewhile("--".__ne__, argv[1:])):
        print(_help(), end="", flush=True)
        sys.exit(0)
    try:
        rest = FLAGS(list(argv))
        if len(rest) > 1:
            raise flags.Error(_stray_word(rest[1], before=argv[len(argv) - len(rest)]))
        _check_combination()
        if "verbose_logging" in FLAGS and FLAGS["verbose_logging"].value:
            logging.set_verbosity(max(logging.DEBUG, logging.get_verbosity()))
    except flags.UnrecognizedFlagError as error:
        _fail(2, _unknown_flag(error.flagname) + " (--help lists the flags)")
    except flags.Error as error:
        _fail(2, " ".join(str(error).split()) + " (--help lists the flags)")
    return rest


def _unknown_flag(name: str) -> str:
    """What to say of a flag that there is not. The reference ignores it, so the setting has no effect there."""
    near = " or ".join(f"--{flag}" for flag in _near_flags(name))
    return f"there is no flag --{name}" + (f"; did you mean {near}?" if near else "")


def _near_flags(name: str) -> list[str]:
    """The script's own flags that a wrong name may stand for, at most three: --do_lower for --do_lower_case."""
    ours = [found for module, found in FLAGS.flags_by_module_dict().items() if module.split(".")[0] != "absl"]
    known = sorted({flag.name for found in ours for flag in found})
    wanted = name.strip("-").replace("-", "_").lower()
    if wanted in known:
        return [wanted]
    if len(wanted) > 2:  # what is shorter is a part of many names
        parts = ".*_".join(map(re.escape, wanted.split("_")))  # max_len is max_seq_length too
        for pattern in (f"^{re.escape(wanted)}", parts):
            if near := [flag for flag in known if re.search(pattern, flag)]:
                return near[:3]
    if wanted.startswith("no") and (near := _near_flags(wanted[2:])):
        return [f"no{flag}" for flag in near if FLAGS[flag].boolean]
    return difflib.get_close_matches(wanted, known, n=2, cutoff=0.75)


def _stray_word(word: str, before: str) -> str:
    """What to say of a word that is no flag, and stands behind the word `before`."""
    switch = before.lstrip("-")
    if word.lower() in ("true", "false", "1", "0") and switch in FLAGS and FLAGS[switch].boolean:
        return f"--{switch} {word}: the value of a switch stands behind an equals sign, --{switch}={word}"
    problem = f"unexpected argument {word!r}: every setting is a flag, --name=value"
    name, *value = word.lstrip("-\u2010\u2011\u2012\u2013\u2014\u2212").split("=", 1)  # dashes of word processors
    return problem + (f"; did you mean --{'='.join([name, *value])}?" if name in FLAGS else "")


class _Checked:
    """`main`, once the files that the flags name have been looked at."""

    def __init__(self, main: Callable[[Sequence[str]], None]):
        self._main = main
        self.__module__ = main.__module__  # where absl's --help looks for the script's own description

    def __call__(self, argv: Sequence[str]) -> None:
        given = {name: FLAGS[name].value for name in (*_READ, *_written) if name in FLAGS and FLAGS[name].value}
        inputs = [
            outputs.Input(f"--{name}", value, weights=name == "init_checkpoint")
            for name, value in given.items()
            if name not in _written
        ]
        outputs.check(
            inputs, [outputs.Output(f"--{n}", given[n], files) for n, files in _written.items() if n in given]
        )
        with outputs.protecting(inputs):
            self._main(argv)


def _tidy() -> None:
    progress.close_all()
    outputs.remove_partial()


def _fail(status: int, message: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone, say
        progress.close_all()
        line = "\\n".join(message.splitlines())  # the name of a file may hold a line end
        print(f"{process.script_name()}: {console.loud('error:')} {line}", file=sys.stderr, flush=True)
    sys.exit(status)


# The flags that name files to be read, in whatever script.
_READ = (
    *("input_file", "train_file", "eval_file", "predict_file", "label_map", "bert_config_file", "vocab_file"),
    "init_checkpoint",
)
# Those that name what a script writes, and patterns of the files in it where that is a folder.
_written: dict[str, Sequence[str] | None] = {}
# Those that decide how much memory is needed, and the switches without which they do not count.
_MEMORY = {
    "train_batch_size": ("do_train",),
    "eval_batch_size": ("do_eval", "eval_steps"),
    "predict_batch_size": ("do_predict", "do_eval", "eval_steps"),
    "batch_size": (),
    "max_seq_length": (),
    "dupe_factor": (),
    "vocab_size": (),
}


def mark_written(name: str, files_in_it: Sequence[str] | None = None) -> None:
    """Says that a flag names an output, which must be writable and no input.

    Args:
      name: the flag's.
      files_in_it: patterns of the files that are written into it, where it is a folder; None where it is a file.
    """
    _written[name] = files_in_it


def _memory_settings() -> list[str]:
    """The flags to lower where memory is used up, with their values."""
    found = []
    for name, switches in _MEMORY.items():
        known = [switch for switch in switches if switch in FLAGS]
        if name in FLAGS and FLAGS[name].value and (not known or any(FLAGS[switch].value for switch in known)):
            found.append(f"--{name}={FLAGS[name].value}")
    return found


# What _parse checks beyond single flags; absl's own validators would put every flag concerned before the message.
_required: list[str] = []
_switches: list[str] = []
_needed: list[tuple[str, str]] = []


def mark_required(*names: str) -> None:
    """Makes flags obligatory; all missing ones are named in one line."""
    _required.extend(names)


def mark_any_of(*names: str) -> None:
    """Makes one of several switches obligatory, so that a script has something to do."""
    _switches.extend(names)


def mark_needed(switch: str, *names: str) -> None:
    """Makes flags obligatory where a switch is on."""
    _needed.extend((switch, name) for name in names)


def _check_combination() -> None:
    for name in FLAGS:
        value = FLAGS[name].value
        if isinstance(value, float) and not math.isfinite(value):  # it passes every comparison with a bound
            raise flags.Error(f"--{name}={value}: a finite number is needed")
        # Python's own random numbers take a seed of any size; everything else ends up in TensorFlow or as a size.
        if isinstance(value, int) and not -_LARGEST_INTEGER <= value <= _LARGEST_INTEGER and name != "random_seed":
            raise flags.Error(f"--{name}={value}: is too large; at most {_LARGEST_INTEGER} is possible")
    missing = [f"--{name}" for name in _required if FLAGS[name].value in (None, "")]
    if missing:
        raise flags.Error(f"{' and '.join(missing)} must be given")
    if _switches and not any(FLAGS[name].value for name in _switches):
        raise flags.Error(f"nothing to do: give at least one of {', '.join(f'--{name}' for name in _switches)}")
    for switch, name in _needed:
        if FLAGS[switch].value and not FLAGS[name].value:
            raise flags.Error(f"--{switch} needs --{name}")


# The help screen. A flag stands where it is defined: within `group`, in the order of the definitions; but what must be
# given is shown first.
_HELP = {"-h", "--h", "-help", "--help", "-helpshort", "--helpshort", "-?", "--?"}  # absl's names; --helpfull is absl's
_GROUPS: dict[str, list[str]] = {
    "What to do": [],
    "Data": [],
    "Conversion": [],
    "Model": [],
    "Training examples": [],
    "Training": [],
    "Evaluation and prediction": [],
    "Answers": [],
    "Features": [],
    "Vocabulary": [],
    "Devices": [],
    "Export": [],
    "Log": ["verbosity"],  # a flag of absl
}


@contextlib.contextmanager
def group(title: str) -> Iterator[None]:
    """Says in which group of the help screen the flags stand that are defined within; also a decorator.

    In a group within a group the inner one counts.
    """
    before = set(FLAGS)
    yield
    placed = before.union(*_GROUPS.values())
    _GROUPS[title] += [name for name in FLAGS if name not in placed]


def groups() -> dict[str, list[str]]:
    """The flags of the script by the title of their group, in the order of the help screen."""
    rest = {title: [name for name in names if name not in _required] for title, names in _GROUPS.items()}
    if _switches:
        rest = {"What to do (at least one of these)": rest.pop("What to do"), **rest}
    return {"Required": [*_required], **rest}


def _help() -> str:
    FLAGS["verbosity"].help = "What to log: -1 only warnings, 0 progress too, 1 everything."
    needed_with: dict[str, list[str]] = {}
    for switch, name in _needed:
        needed_with.setdefault(name, []).append(switch)
    return help_screen.render(
        sys.modules["__main__"].__doc__ or "",
        {title: [FLAGS[name] for name in names] for title, names in groups().items()},
        needed_with,
        "Flags of the library that reads the command line: --helpfull.",
    )


@group("Model")
def define_model() -> None:
    flags.DEFINE_string("bert_config_file", None, "The JSON file that states the model's sizes.")
    flags.DEFINE_string(
        "init_checkpoint",
        None,
        "Weights to start from, usually of a pretrained BERT: a checkpoint of TensorFlow 1 or Model Garden, a Hugging"
        " Face folder, a Keras file.",
    )


@group("Model")
def define_vocabulary() -> None:
    flags.DEFINE_string("vocab_file", None, "The vocabulary that the model was trained with.")
    flags.DEFINE_bool("do_lower_case", True, "Lower-case the text: for uncased models, not for cased ones.")


@group("Training")
def define_fine_tuning(pad_to_max_length: bool = False) -> None:
    """What the fine-tuning scripts have in common."""
    flags.DEFINE_float("num_train_epochs", 3.0, "How many times to go through the training data.", lower_bound=0.0)
    flags.DEFINE_float(
        "warmup_proportion",
        0.1,
        "Share of the training in which the learning rate rises.",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    flags.DEFINE_bool(
        "pad_to_max_length", pad_to_max_length, "Pad every batch to max_seq_length, not to its own longest row."
    )
    flags.DEFINE_integer("eval_steps", 0, "Evaluate every so many steps and keep the best; 0: never.", lower_bound=0)
    flags.DEFINE_integer("patience", 0, "End after so many evaluations without a better one; 0: never.", lower_bound=0)
    mark_needed("patience", "eval_steps")


@group("Data")
def define_output_dir(*results: str) -> None:
    """Defines --output_dir.

    Args:
      results: patterns of the files that the script writes there beside what all of them write.
    """
    mark_written("output_dir", ("checkpoint", "eval_results.txt", *results))
    flags.DEFINE_string(
        "output_dir", None, "Folder for checkpoints and results. Training continues from what is there."
    )


@group("Export")
def define_export() -> None:
    """What the scripts that train have in common with export_saved_model.py."""
    mark_written("export_dir", ())
    with group("What to do"):
        flags.DEFINE_bool(
            "do_export", False, "Write a SavedModel for TensorFlow Serving, as export_saved_model.py does."
        )
    flags.DEFINE_string("export_dir", None, "Folder for the exported versions 1, 2, ...; by default output_dir/export.")


@group("Training")
def define_training() -> None:
    """What every training run has in common, whatever the task."""
    flags.DEFINE_integer("train_batch_size", 32, "Examples per training step, over all devices.", lower_bound=1)
    flags.DEFINE_float("learning_rate", 5e-5, "The highest learning rate of the schedule.", lower_bound=0.0)
    flags.DEFINE_integer(
        "save_checkpoints_steps", 1000, "Steps between two checkpoints; 0: only one at the end.", lower_bound=0
    )
    flags.DEFINE_integer(
        "iterations_per_loop", 1000, "The most steps to run without a look at the clock.", lower_bound=1
    )
    flags.DEFINE_integer(
        "random_seed",
        12345,
        "Decides on fresh weights, dropout and the order of examples.",
        lower_bound=0,
        upper_bound=2**31 - 1,
    )
    flags.DEFINE_bool("adam_bias_correction", False, "Correct Adam's first steps, as papers after BERT's do.")
    flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "What to compute in; variables stay float32.")


@group("Log")
def define_log(also: str = "") -> None:
    """`also`: what else the flag shows in this script."""
    flags.DEFINE_bool("verbose_logging", False, f"Log several examples as the model gets them, not one in words{also}.")


@group("Devices")
def define_devices(with_names: bool = True) -> None:
    """Where to run. extract_features.py of the reference knows no names (`with_names`)."""
    flags.DEFINE_bool("use_tpu", False, "Run on a TPU; otherwise on all visible GPUs, or the CPU.")
    flags.DEFINE_string("master", None, "Address of the TPU's master, where it has no tpu_name.")
    flags.DEFINE_integer("num_tpu_cores", 8, "Cores that the TPU has; used with use_tpu only.", lower_bound=1)
    if with_names:
        flags.DEFINE_string("tpu_name", None, "Name or gRPC address of the Cloud TPU.")
        flags.DEFINE_string("tpu_zone", None, "Zone of the Cloud TPU, where it cannot be detected.")
        flags.DEFINE_string("gcp_project", None, "Project of the Cloud TPU, where it cannot be detected.")


def given(name: str):
    """The value of a flag, None where the user left it at its default."""
    return None if FLAGS[name].using_default_value else FLAGS[name].value


def fill(options_type: type, **values):
    """An options object (a dataclass) whose fields are the flags of the same names, except for those given here.

    A field whose own default is None is None where its flag was not given.
    """
    for field in dataclasses.fields(options_type):
        if field.name == "devices":
            values["devices"] = _devices()
        elif field.name not in values and field.name in FLAGS:
            values[field.name] = given(field.name) if field.default is None else FLAGS[field.name].value
    return options_type(**values)


def _devices():
    from bert_tf2.training import loop as training  # late: it loads TensorFlow

    return fill(training.DeviceOptions)
