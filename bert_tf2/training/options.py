"""The settings that several tasks share, in parts: the model, its vocabulary, the devices, a training, an export."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf2.config import BertConfig
from bert_tf2.support.settings import (
    DATA,
    DEVICES,
    EVALUATION,
    EXPORT,
    LOG,
    MODEL,
    TO_DO,
    TRAINING,
    Options,
    WrongSetting,
    options,
    setting,
)
from bert_tf2.training.precision import PRECISIONS

UNPAD = ("none", "groups")
"""The values of --unpad besides auto; see fast.unpadding."""

_STRATEGIES = ("auto", "one_device", "mirrored", "tpu")

MOST_STEPS = 2**31
"""The maximum of a number of steps; a larger one is a typing error."""


@options
class ModelOptions(Options):
    """The model."""

    bert_config_file: str | None = setting(
        "JSON file with the model's sizes; defaults to the one beside the weights.",
        None,
        group=MODEL,
        reads=True,
        beside_weights="bert_config.json",
    )
    init_checkpoint: str | None = setting(
        "Weights to start from, usually of a pretrained BERT: a TensorFlow 1 or Model Garden checkpoint,"
        " a Hugging Face folder, or a Keras file.",
        None,
        group=MODEL,
        reads="weights",
    )

    @functools.cached_property
    def config(self) -> BertConfig:
        """The configuration, read once."""
        return BertConfig.from_json_file(self.bert_config_file)

    def complete(self) -> None:
        """Takes the configuration and the vocabulary from the folder of the weights, and with it do_lower_case."""
        if all(getattr(self, name, "") is not None for name in ("bert_config_file", "vocab_file")):
            return
        from bert_tf2.weights import metadata  # late: it needs numpy

        found = metadata.files_in_use(getattr(self, "output_dir", None), self.init_checkpoint)
        taken = {name: path for name, path in found.items() if getattr(self, name, "") is None}
        if "vocab_file" in taken and self.do_lower_case is None:
            taken["do_lower_case"], is_stated = metadata.find_case(taken["vocab_file"])
        for name, value in taken.items():
            is_guess = name == "do_lower_case" and not is_stated
            what = "guessed from the vocabulary" if is_guess else "taken from the folder of the weights"
            logging.info("--%s=%s: %s", name, value, what)
            object.__setattr__(self, name, value)


@options
class CaseOptions(Options):
    """Whether to lower-case the text: None means True, and is an error if a file specifies a cased model."""

    do_lower_case: bool | None = setting(
        "Lower-case the text and strip accents: True for uncased models, False for cased models.",
        None,
        group=MODEL,
        flag_default=True,
    )


@options
class VocabularyOptions(CaseOptions):
    """The vocabulary of a model."""

    vocab_file: str | None = setting(
        "The vocabulary that the model was trained with; defaults to the one beside the weights, then with its case.",
        None,
        group=MODEL,
        reads=True,
        beside_weights="vocab.txt",
    )


# What another value of a setting changes in a training that goes on; see Setting.decides.
OTHER_DROPOUT = "the dropout changes from here on"
OTHER_SCHEDULE = "the learning rate of the steps to come is another one"
OTHER_ROUNDING = "numbers are rounded in another way from here on"


@options
class PrecisionOptions(Options):
    """The floating-point precision."""

    precision: str = setting(
        "The type of the large products; variables, LayerNorm, softmax and logits stay float32.",
        "float32",
        group=TRAINING,
        decides=OTHER_ROUNDING,
        choices=tuple(PRECISIONS),
    )


@options
class DeviceOptions(PrecisionOptions):
    """The devices: a TPU with use_tpu and the reference's flags; otherwise all visible GPUs, or the CPU.

    distribution_strategy: auto is tpu with use_tpu, multi_worker if TF_CONFIG lists several workers and this is a
    training, and otherwise mirrored.
    """

    use_tpu: bool = setting("Run on a TPU; otherwise on all visible GPUs or the CPU.", False, group=DEVICES)
    tpu_name: str | None = setting("Name or gRPC address of the Cloud TPU.", None, group=DEVICES)
    tpu_zone: str | None = setting("Zone of the Cloud TPU, if it cannot be detected.", None, group=DEVICES)
    gcp_project: str | None = setting("Project of the Cloud TPU, if it cannot be detected.", None, group=DEVICES)
    master: str | None = setting("Address of the TPU's master, if it has no tpu_name.", None, group=DEVICES)
    distribution_strategy: str = setting(
        "What computes: one_device, mirrored (all GPUs of this machine), or tpu; auto chooses.",
        "auto",
        group=DEVICES,
        choices=_STRATEGIES,
    )
    num_tpu_cores: int = setting("Number of TPU cores; only used with use_tpu.", 8, group=DEVICES, low=1)
    deterministic: bool = setting(
        "Use only operations that give the same bits in every run, also on GPUs; slower there.", False, group=DEVICES
    )

    def check(self) -> None:
        if self.use_tpu and self.distribution_strategy not in ("auto", "tpu"):
            raise WrongSetting(f"--use_tpu and --distribution_strategy={self.distribution_strategy} exclude each other")

    @property
    def on_tpu(self) -> bool:
        return self.use_tpu or self.distribution_strategy == "tpu"


@options
class OptimizerOptions(Options):
    """Training settings that do not depend on the task or the number of steps."""

    train_batch_size: int = setting(
        "Examples per training step, over all devices.", 32, group=TRAINING, low=1,
        decides="the larger or smaller batches begin behind the last example read",
    )  # fmt: skip
    gradient_accumulation_steps: int = setting(
        "Compute the batch of a step in this many parts, one after the other, to save memory; the update is the same.",
        1,
        group=TRAINING,
        decides=OTHER_DROPOUT,
        low=1,
    )
    recompute: bool = setting(
        "Compute the activations of each block again in the backward pass: more time, much less memory.",
        False,
        group=TRAINING,
    )
    xla: bool = setting(
        "Compile the whole training step with XLA. Meant for GPUs, where it can save time; on a CPU it gains nothing.",
        False,
        group=TRAINING,
    )
    learning_rate: float = setting(
        "The highest learning rate of the schedule.", 5e-5, group=TRAINING, decides=OTHER_SCHEDULE, low=0.0
    )
    save_checkpoints_steps: int = setting(
        "Steps between two checkpoints; 0 saves only at the end.", 1000, group=TRAINING, low=0
    )
    keep_checkpoint_max: int = setting("Checkpoints to keep; older ones are deleted.", 5, group=TRAINING, low=1)
    all_reduce_dtype: str = setting(
        "The type in which gradients travel between devices and workers. bfloat16 sends half as many bytes and rounds"
        " each gradient to 8 bits.",
        "float32",
        group=TRAINING,
        decides=OTHER_ROUNDING,
        choices=("float32", "bfloat16"),
    )
    iterations_per_loop: int = setting(
        "The maximum number of steps between two checks of the clock.", 1000, group=TRAINING, low=1
    )
    random_seed: int = setting(
        "Determines new weights, dropout and the order of examples.", 12345, group=TRAINING, low=0, high=2**31 - 1,
        decides="the order of the examples and the dropout change from here on",
    )  # fmt: skip
    adam_bias_correction: bool = setting(
        "Use Adam's bias correction, which the reference does not.", False, group=TRAINING,
        decides="the updates change from here on",
    )  # fmt: skip


def output_folder(*results: str) -> str:
    """The setting output_dir of a task that writes files with these names (or patterns) next to the checkpoints."""
    return setting(
        "Folder for checkpoints and results. Training resumes from the newest checkpoint in it.",
        group=DATA,
        writes=("checkpoint", "eval_results.txt", *results),
    )


@options
class TrainingOptions(OptimizerOptions, DeviceOptions, ModelOptions):
    """The settings that all training scripts share."""

    output_dir: str = output_folder()
    distribution_strategy: str = setting(
        "What computes: one_device, mirrored (all GPUs of this machine), multi_worker (those of all machines in the"
        " environment variable TF_CONFIG), or tpu; auto chooses.",
        "auto",
        group=DEVICES,
        choices=(*_STRATEGIES, "multi_worker"),
    )
    do_train: bool = setting("Train, up to the last step of the schedule.", False, group=TO_DO)
    do_export: bool = setting(
        "Write a SavedModel for TensorFlow Serving, as export_saved_model.py does.", False, group=TO_DO
    )
    unpad: str = setting(
        "How padding is left out of the computation: in groups of rows of similar length, or not at all (none);"
        " auto is groups on a CPU, except for tiny models, and none elsewhere.",
        "auto",
        group=TRAINING,
        choices=("auto", *UNPAD),
    )
    export_dir: str | None = setting(
        "Folder for the exported versions 1, 2, ...; defaults to output_dir/export.", None, group=EXPORT, writes=()
    )


@options
class EvaluationOptions(Options):
    """The batches of an evaluation."""

    eval_batch_size: int = setting("Examples per evaluation batch, over all devices.", 8, group=EVALUATION, low=1)


@options
class PredictionOptions(Options):
    """The batches of a prediction."""

    predict_batch_size: int = setting(
        "Examples per prediction batch, over all devices.",
        8,
        group=EVALUATION,
        low=1,
    )


def sequence_length(help: str, default: int | None = 128, low: int = 3, **stated: Any) -> int:
    """The setting max_seq_length; `low` is the number of tokens in the shortest example."""
    return setting(help, default, group=MODEL, low=low, **stated)


@options
class LogOptions(Options):
    """What to log."""

    verbose_logging: bool = setting(
        "Log several examples as the model reads them, instead of one in words.", False, group=LOG
    )


@options
class PlotTrainingOptions(Options):
    """Draws the curves of one or several trainings: losses, accuracy, learning rate, gradient norm, speed.

    It reads the TensorBoard events that the training scripts write into output_dir, also those of google-research/bert.
    Folders are given as words or with the flag.

    Example:
      python plot_training.py demo_output other_output --output_file=comparison.png
    """

    words = "output_dir"

    output_dir: Sequence[str] = setting("The output_dir of a training; may be given several times.", group=DATA)
    output_file: str = setting("The figure to write, .png, .svg or .pdf.", "training.png", group=DATA, writes_file=True)


@options
class TrainOptions(OptimizerOptions):
    """One run of the training loop: `OptimizerOptions`, and values that the task computes."""

    output_dir: str  # the folder for checkpoints and TensorBoard events
    # num_train_steps, num_warmup_steps: the schedule; see optimization.learning_rate_at
    num_train_steps: int
    num_warmup_steps: int
    precision: str = "float32"  # as in PrecisionOptions; float16 trains with a loss scale
    log_steps: int = 100  # the number of steps between TensorBoard points; the first step also gets one
    # of the script's settings, those of settings.deciding
    deciding: Mapping[str, tuple[Any, str]] = dataclasses.field(default_factory=dict)
