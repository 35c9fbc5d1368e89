"""The settings that several tasks share, in parts: the model, its vocabulary, the devices, training, an export."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

from bert_tf2.config import BertConfig
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import (
    Options,
    WrongSetting,
    of_data,
    of_devices,
    of_evaluation,
    of_export,
    of_model,
    of_to_do,
    of_training,
    options,
    settings_of,
)
from bert_tf2.training import layerwise


@options
class ModelOptions(Options):
    """The model."""

    bert_config_file: str | None = of_model(
        "The model's sizes, bert_config.json.", None, reads=True, beside_weights="bert_config.json"
    )
    init_checkpoint: str | None = of_model(
        "Weights to start from: of TensorFlow 1, Model Garden, Hugging Face (a folder) or Keras.", None, reads="weights"
    )

    @functools.cached_property
    def config(self) -> BertConfig:
        return BertConfig.from_json_file(self.bert_config_file)

    def from_files(self) -> dict[str, Any]:
        """Returns the configuration and vocabulary beside the weights, and do_lower_case by this vocabulary."""
        if all(getattr(self, name, "") is not None for name in ("bert_config_file", "vocab_file")):
            return super().from_files()
        from bert_tf2.weights import model_folder, text_rules  # late: it needs numpy

        found = model_folder.files_in_use(getattr(self, "output_dir", None), self.init_checkpoint)
        taken = {name: path for name, path in found.items() if getattr(self, name, "") is None}
        if "vocab_file" in taken and self.do_lower_case is None:
            taken["do_lower_case"], is_stated = text_rules.find_case(taken["vocab_file"])
        for name, value in taken.items():
            is_guess = name == "do_lower_case" and not is_stated
            what = "guessed from the vocabulary" if is_guess else "taken from the folder of the weights"
            logging.info("--%s=%s: %s", name, value, what)
        return super().from_files() | taken


@options
class CaseOptions(Options):
    """Whether to lower-case the text: None means True, and is an error if a file specifies a cased model."""

    do_lower_case: bool | None = of_model(
        "Lower-case the text and strip accents: True for uncased models, False for cased.", None, flag_default=True
    )


@options
class VocabularyOptions(CaseOptions):
    """The vocabulary of a model, and whether to lower-case the text: by default as stated beside the weights."""

    do_lower_case: bool | None = of_model(
        "Lower-case the text and strip accents: True for uncased models, False for cased. Without vocab_file, the"
        " files beside the weights decide.", None, flag_default=True,
    )  # fmt: skip
    vocab_file: str | None = of_model("The vocabulary, vocab.txt.", None, reads=True, beside_weights="vocab.txt")


@dataclasses.dataclass(frozen=True)
class Precision:
    """A type of the computations. Variables, statistics and losses are float32 in each."""

    policy: str  # the Keras dtype policy of the model
    exported: str  # dtype of the exported SavedModel: float32 or bfloat16
    # whether products on GPUs with TF32 may round float32 to TF32. With 16-bit types, float32 products remain only in
    # the heads, whose inputs have fewer bits anyway
    allows_tf32: bool = True
    scales_loss: bool = False  # whether small gradients would be 0 without a loss scale


PRECISIONS = {
    "float32": Precision("float32", "float32", allows_tf32=False),
    "tf32": Precision("float32", "float32"),
    "bfloat16": Precision("mixed_bfloat16", "bfloat16"),
    "float16": Precision("mixed_float16", "float32", scales_loss=True),
}
"""By the values of --precision."""
NARROW = ("bfloat16", "float16")  # the precisions of 16 bits

# The consequence of another value of a setting for a training run that continues; see Setting.decides.
OTHER_DROPOUT = "the dropout changes from here on"
OTHER_SCHEDULE = "the learning rate of the steps to come changes"
OTHER_ROUNDING = "numbers are rounded in another way from here on"


@options
class PrecisionOptions(Options):
    """The floating-point precision."""

    precision: str = of_devices(
        "Type of large products; the rest stays float32.", "float32", decides=OTHER_ROUNDING, choices=tuple(PRECISIONS)
    )


@options
class ProgramOptions(PrecisionOptions):
    """Whether XLA compiles programs, and their attention."""

    xla: str = of_devices(
        "Compile steps with XLA; auto: on GPUs, if there are thousands of steps.", "auto",
        choices=("auto", "true", "false"), is_switch=True,
    )  # fmt: skip
    attention: str = of_devices(
        "fused: compute attention, without dropout, in one kernel of cuDNN (on GPUs, with --xla); auto: plain.",
        "auto",
        choices=("auto", "plain", "fused"),
    )  # fmt: skip

    def check(self) -> None:
        super().check()
        if self.attention == "fused":
            if self.precision not in NARROW:
                raise WrongSetting(
                    f"--attention=fused computes in 16 bits, not {self.precision}: add --precision=bfloat16"
                )
            if self.xla != "true":
                raise WrongSetting("--attention=fused is a part of programs that XLA compiles: add --xla")

    def check_inputs(self) -> None:
        """With --attention=fused, checks the configuration, which the class of a script has."""
        super().check_inputs()
        if self.attention != "fused":
            return
        file, size, rate = (
            self.bert_config_file,
            self.config.attention_head_size,
            self.config.attention_probs_dropout_prob,
        )
        if size % 8 or size > 128:
            raise UserError(
                f"{file}: has heads of {size} numbers; --attention=fused needs a multiple of 8, at most 128"
            )
        if rate and getattr(self, "do_train", False):
            remedy = "set it to 0, or give --attention=plain"
            raise UserError(f"{file}: has attention_probs_dropout_prob {rate}; --attention=fused needs 0: {remedy}")


@options
class DeviceOptions(PrecisionOptions):
    """The devices: a TPU with use_tpu and the reference's flags; otherwise all visible GPUs, or the CPU."""

    use_tpu: bool = of_devices("Run on a TPU; otherwise on all visible GPUs or the CPU.", False)
    tpu_name: str | None = of_devices("Name or gRPC address of the Cloud TPU.", None)
    tpu_zone: str | None = of_devices("Zone of the Cloud TPU, if it cannot be detected.", None)
    gcp_project: str | None = of_devices("Project of the Cloud TPU, if it cannot be detected.", None)
    master: str | None = of_devices("Address of the TPU's master, if it has no tpu_name.", None)
    num_tpu_cores: int = of_devices("Accepted and ignored: all cores of the TPU compute.", 8, low=1)
    deterministic: bool = of_devices("Give the same bits in every run, also on GPUs; slower there.", False)
    xla_cache_dir: str | None = of_devices(
        "Folder that keeps XLA's programs for GPUs; by default in ~/.cache; none: keep nothing.", None
    )


@options
class OptimizerOptions(ProgramOptions):
    """Training settings that do not depend on the task or the number of steps."""

    train_batch_size: int = of_training(
        "Examples per step, over all devices.", 32, low=1, decides="other batches begin behind the last example read"
    )
    gradient_accumulation_steps: int = of_training(
        "Compute a batch in this many parts, to save memory; the update is the same.", 1, decides=OTHER_DROPOUT, low=1
    )
    recompute: bool = of_training("Save memory: compute the layers' results twice; a step is slower.", False)
    pack_rows: bool = of_training(
        "Put several short examples into one row, to compute less padding on GPUs.", False,
        decides=OTHER_DROPOUT,
    )  # fmt: skip
    learning_rate: float = of_training("The schedule's highest learning rate.", 5e-5, decides=OTHER_SCHEDULE, low=0.0)
    save_checkpoints_steps: int = of_training("Steps between checkpoints; 0 saves only at the end.", 1000, low=0)
    keep_checkpoint_max: int = of_training("Newest checkpoints to keep; the others are deleted.", 5, low=1)
    all_reduce_dtype: str = of_training(
        "Type in which gradients are sent between devices.", "float32", decides=OTHER_ROUNDING,
        choices=("float32", "bfloat16"),
    )  # fmt: skip
    iterations_per_loop: int = of_training(
        "Steps to run at once, at most; decides only how often progress can be logged.", 1000, low=1
    )
    random_seed: int = of_training(
        "Determines new weights, dropout and the order of examples.", 12345, low=0, high=2**31 - 1,
        decides="the order of the examples and the dropout change from here on",
    )  # fmt: skip
    adam_bias_correction: bool = of_training(
        "Use Adam's bias correction, which the reference does not.", False, decides="the updates change from here on"
    )
    layer_decay: float = of_training(
        "Factor of the learning rate from each layer to the layer below; pooler and head have the whole rate.", 1.0,
        decides="the learning rates of the layers change from here on", low=0.0, high=1.0,
    )  # fmt: skip
    freeze: str | None = of_training(
        "Layers to leave untrained: embeddings, 0-3 for the first four blocks, or embeddings,0-3.", None,
        decides="other layers are trained from here on",
    )  # fmt: skip

    def check(self) -> None:
        super().check()
        layerwise.layers_in(self.freeze)


def output_folder(*results: str) -> str:
    """The setting output_dir of a task that writes files with these names (or patterns) next to the checkpoints."""
    return of_data(
        "Folder for checkpoints and results. Training resumes from the newest checkpoint in it.",
        writes=("checkpoint", "eval_results.txt", *results),
    )


@options
class TrainingOptions(OptimizerOptions, DeviceOptions, ModelOptions):
    """The settings that all training scripts share."""

    not_both = (("pack_rows", "use_tpu"),)
    needs = (
        ("patience", "eval_steps"),  # each subclass has eval_steps
        *(("init_from_layers", name) for name in ("init_checkpoint", "do_train")),
    )
    only_with = (("export_dir", "do_export"),)

    output_dir: str = output_folder()
    init_from_layers: str | None = of_model(
        "Make a smaller model of these blocks of init_checkpoint, numbered from 0: 0,2,4 for three of six.", None
    )
    do_train: bool = of_to_do("Train to the last step of the schedule.", False)
    do_export: bool = of_to_do("Write a SavedModel, as export_saved_model.py does.", False)
    unpad: str = of_training(
        "groups: compute no padding; auto: groups on CPUs, otherwise none.", "auto", choices=("auto", "none", "groups")
    )
    patience: int = of_evaluation("Stop after N evaluations without improvement; 0: never.", 0, low=0)
    export_dir: str | None = of_export("Folder of exported versions; by default output_dir/export.", None, writes=())

    def check(self) -> None:
        super().check()
        if self.pack_rows and self.unpad == "groups":
            raise WrongSetting("--pack_rows and --unpad=groups both leave out padding: give one of them")
        layerwise.blocks_in(self.init_from_layers)

    @functools.cached_property
    def config(self) -> BertConfig:
        blocks = layerwise.blocks_in(self.init_from_layers)
        return dataclasses.replace(super().config, **({"num_hidden_layers": len(blocks)} if blocks else {}))

    def check_inputs(self) -> None:
        super().check_inputs()
        layerwise.layers_in(self.freeze, self.config.num_hidden_layers if self.freeze else None)


@options
class EvaluationOptions(Options):
    """The batches of an evaluation."""

    eval_batch_size: int = of_evaluation("Examples per batch, over all devices.", 8, low=1)


def sequence_length(help: str, default: int | None = 128, low: int = 3, **stated: Any) -> int:
    """The setting max_seq_length; `low` is the number of tokens in the shortest example."""
    return of_model(help, default, low=low, **stated)


def usual_length(given: ModelOptions, found: dict[str, Any]) -> dict[str, Any]:
    """The max_seq_length that was not given: `found`, else the flag's default; at most the positions of the model.

    `found`: the values from files, by name, for settings that were not given.
    """
    config_file = found.get("bert_config_file", given.bert_config_file)
    if given.max_seq_length is not None or config_file is None:
        return {}
    usual = found.get("max_seq_length", settings_of(type(given))["max_seq_length"][0].flag_default)
    most = BertConfig.from_json_file(config_file).max_position_embeddings
    if most < usual:
        logging.info("--max_seq_length=%d: the model reads no more tokens", most)
    return {"max_seq_length": min(usual, most)}


@options
class PlotTrainingOptions(Options):
    """Draws the curves of one or several training runs: losses, accuracy, learning rate, gradient norm, speed.

    It reads the TensorBoard events that the training scripts, also google-research/bert's, write into output_dir.
    Folders are given as words or with the flag.

    Example:
      python plot_training.py demo_output other_output --output_file=comparison.png
    """

    words = "output_dir"

    output_dir: Sequence[str] = of_data("The output_dir of a training; may be given several times.")
    output_file: str = of_data("The figure to write, .png, .svg or .pdf.", "training.png", writes_file=True)


class Program(NamedTuple):
    """How a training or an evaluation computes its batches; `programs.program_for` decides it."""

    is_compiled: bool = False  # whether XLA compiles the step, again for each size of batches
    packs: bool = False  # whether examples share rows, see batching.packed
    is_padded: bool = True  # whether all batches have the width of the longest possible row
    width_multiple: int = 1  # the widths of other batches are multiples of this number


@options
class LoopOptions(OptimizerOptions):
    """One run of the training loop: `OptimizerOptions`, and values that the task computes."""

    output_dir: str  # the folder for checkpoints and TensorBoard events
    # num_train_steps, num_warmup_steps: the schedule; see optimization.learning_rate_at
    num_train_steps: int
    num_warmup_steps: int
    stop_at_step: int | None = None  # a step before the end of the schedule where the training ends; None for the end
    log_steps: int = 100  # the number of steps between TensorBoard points; the first step also gets one
    # settings.deciding of the script's settings
    deciding: Mapping[str, tuple[Any, str]] = dataclasses.field(default_factory=dict)
    program: Program | None = None  # None for batches of one width

    @property
    def last_step(self) -> int:
        """The step at which the training ends."""
        return min(self.num_train_steps, self.stop_at_step or self.num_train_steps)
