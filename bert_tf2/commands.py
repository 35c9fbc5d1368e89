"""The scripts: `bert_tf2 run_pretraining --do_train ...` runs a script, and `call` runs it from Python.

A script in a checkout calls `run` with its name. The options class of a script defines its settings and its help text.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import bert_tf2
from bert_tf2.support import process
from bert_tf2.support.errors import naming_arguments
from bert_tf2.support.process import load_tensorflow


class Command(NamedTuple):
    options: str  # the options class, as "module:class" within the package
    module: str  # the module whose function `run` takes an object of the options class
    tensorflow: bool = True  # whether TensorFlow is loaded after the flags have been checked
    exports: bool = False  # whether `run` takes `export`: tasks do not import `exporting`, which imports tasks
    prints: bool = False  # whether to print the result of `run`, one or more lines


COMMANDS = {
    "build_vocab": Command("pretraining.options:BuildVocabOptions", "pretraining.build_vocab", tensorflow=False),
    "create_pretraining_data": Command(
        "pretraining.options:CreatePretrainingDataOptions", "pretraining.create_pretraining_data", tensorflow=False
    ),
    "inspect_records": Command(
        "pretraining.options:InspectRecordsOptions", "pretraining.inspect_records", tensorflow=False, prints=True
    ),
    "run_pretraining": Command("pretraining.options:PretrainingOptions", "pretraining.run", exports=True),
    "predict_masked": Command("inference.options:MaskedLMOptions", "inference.predict_masked"),
    "run_classifier": Command("finetuning.options:ClassifierOptions", "finetuning.classification.run", exports=True),
    "run_squad": Command("finetuning.options:SquadOptions", "finetuning.squad.run", exports=True),
    "run_ner": Command("finetuning.options:NerOptions", "finetuning.ner.run", exports=True),
    "extract_features": Command("inference.options:FeatureOptions", "inference.extract_features"),
    "convert_checkpoint": Command(
        "weights.options:ConversionOptions", "weights.convert", tensorflow=False, prints=True
    ),
    "explore": Command("explorer.options:ExplorerOptions", "explorer.server"),
    "plot_training": Command("training.options:PlotTrainingOptions", "training.plots", prints=True),
    "export_saved_model": Command("exporting.options:ExportOptions", "exporting.run", prints=True),
}


def names(name: str) -> Callable[[str], Any]:
    """The `__getattr__` of a script of the reference, so that the script has the names of the package's module."""

    def get(attribute: str) -> Any:
        if attribute.startswith("__") and attribute != "__all__":
            raise AttributeError(attribute)
        module = getattr(bert_tf2, name)
        if attribute == "__all__" and not hasattr(module, attribute):  # for `from extract_features import *`
            return [each for each in vars(module) if each[0] != "_"]
        return getattr(module, attribute)

    return get


def run(name: str) -> None:
    """Runs a script with the command line of this process; see flags.run for the exit status."""
    process.begin()  # before the imports, so that Ctrl-C prints a single line
    from bert_tf2.support import flags

    command = COMMANDS[name]
    os.environ["KERAS_BACKEND"] = "tensorflow"  # before Keras is imported
    os.environ["MPLBACKEND"] = "agg"  # Keras imports matplotlib, which fails if the user's backend is unknown

    def main(options: Any) -> None:
        result = _run(command, options)
        if command.prints:
            print(result if isinstance(result, str) else "\n".join(result))

    flags.run(find(command.options), main)


@naming_arguments()
def call(name: str, **settings: Any) -> Any:
    """Runs a script from Python: `call("run_classifier", task_name="MRPC", do_train=True, ...)["accuracy"]`.

    The settings have the names and defaults of the script's flags. Returns the result of the script: the scores of an
    evaluation, the lines of a report, the path of an export. Raises UserError if no script or setting has this name.
    """
    from bert_tf2.support.resolution import resolve
    from bert_tf2.support.settings import WrongSetting, made, required

    if name not in COMMANDS:
        raise WrongSetting(_no_script(name))
    options = find(COMMANDS[name].options)
    return _run(COMMANDS[name], resolve(made(options, dict.fromkeys(required(options)) | settings)))


def _run(command: Command, options: Any) -> Any:
    from bert_tf2.support import outputs  # late: before `process.begin`, Ctrl-C prints a traceback

    outputs.check_files(options)
    options.check_inputs()
    if not command.tensorflow:
        return find(command.module).run(options)
    load_tensorflow(getattr(options, "xla_cache_dir", None))
    more = {"export": find("exporting.run:export_model")} if command.exports else {}
    with find("training.devices:configured")(options):
        return find(command.module).run(options, **more)


def find(path: str) -> Any:
    """The object "module:name" within the package, or "module"."""
    module, _, name = path.partition(":")
    found = importlib.import_module(f"bert_tf2.{module}")
    return getattr(found, name) if name else found


def main() -> None:
    """The command `bert_tf2`: the name of a script, then its flags."""
    name = sys.argv[1].removesuffix(".py") if len(sys.argv) > 1 else ""
    if name == "demo":
        del sys.argv[1]
        return find("demo.__main__:main")()
    if name in ("--version", "-version"):
        return print(f"bert_tf2 {bert_tf2.__version__}")
    if name in ("", "--help", "-h", "help"):
        about = {name: " ".join(inspect.getdoc(find(each.options)).split()) for name, each in COMMANDS.items()}
        listed = "\n".join(f"  {each:<25}{re.split(' [(]|[:.;](?: |$)', text)[0]}" for each, text in about.items())
        with contextlib.suppress(BrokenPipeError):  # the reader closed the pipe, as `head` does
            print(
                f"usage: bert_tf2 SCRIPT --flag=value ...   (bert_tf2 SCRIPT --help lists the flags)\n\n{listed}\n\n"
                "       bert_tf2 demo [OUTPUT_DIR]          pretrains a small BERT in minutes\n"
                "       bert_tf2 --version",
                flush=True,
            )
        sys.exit(0 if name else 2)
    if name not in COMMANDS:
        sys.exit(f"bert_tf2: error: {_no_script(name)}")
    # Messages begin with the name of the script, so the name of this executable is replaced by it.
    sys.argv[:2] = [os.path.join(os.path.dirname(sys.argv[0]), f"{name}.py")]
    run(name)


def _no_script(name: str) -> str:
    near = difflib.get_close_matches(str(name), COMMANDS, n=1)
    return f"there is no script {name!r}; " + (f"did you mean {near[0]}?" if near else "bert_tf2 --help lists them")


if __name__ == "__main__":
    main()
