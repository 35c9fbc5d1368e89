"""The memory of a training: the estimate against measurements, the line, the warning and the refusal."""

import subprocess
import sys

import pytest
import tensorflow as tf
from command_lines import ROOT
from pretraining_text import VOCABULARY
from refused import message_of
from small_models import MAKERS, batch_for, tiny_config
from unmasked_data import LENGTH, PREDICTIONS, make

from bert_tf2.config import BertConfig
from bert_tf2.fast.encoder import Plan, accelerate
from bert_tf2.support import free_memory
from bert_tf2.training import memory
from bert_tf2.training.devices import build_model
from bert_tf2.training.options import TrainOptions

ONE = tf.distribute.get_strategy()


def options(**settings):
    common = {"output_dir": "", "learning_rate": 1e-3, "num_train_steps": 1, "num_warmup_steps": 0}
    return TrainOptions(**{**common, **settings})


# (layers, hidden, heads, batch, length), settings, parameters in millions, gigabytes of the process before the
# first step and at the peak: measured with PretrainingModel, 20 predictions, on a CPU. The peaks are those that
# benchmarks/pretraining_step.py --steps=3 prints.
MEASURED = [
    ((2, 128, 2, 8, 512), {}, 4.4, 0.85, 1.34),
    ((4, 256, 4, 32, 128), {}, 11.3, 0.94, 1.72),
    ((4, 512, 8, 8, 512), {}, 29.1, 1.16, 2.72),
    ((4, 512, 8, 8, 512), {"precision": "bfloat16"}, 29.1, 1.16, 2.43),
    ((4, 512, 8, 8, 512), {"gradient_accumulation_steps": 4}, 29.1, 1.16, 2.26),
    ((12, 256, 4, 32, 128), {}, 17.6, 1.01, 2.56),
    ((12, 256, 4, 32, 128), {"recompute": True}, 17.6, 1.01, 1.89),
    ((4, 512, 8, 32, 128), {}, 29.1, 1.16, 2.41),
    ((4, 512, 8, 32, 128), {"recompute": True}, 29.1, 1.16, 2.15),
    ((12, 768, 12, 8, 128), {}, 110.1, 2.18, 3.53),
    ((12, 768, 12, 8, 128), {"precision": "bfloat16"}, 110.1, 2.18, 3.45),
    ((12, 768, 12, 8, 512), {}, 110.1, 2.18, 7.47),
]


@pytest.mark.parametrize(("sizes", "settings", "millions", "before", "peak"), MEASURED)
def test_the_estimate_is_near_what_was_measured(sizes, settings, millions, before, peak):
    layers, hidden, heads, batch, length = sizes
    config = BertConfig(
        vocab_size=30522, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )  # fmt: skip
    given = options(train_batch_size=batch, **settings)
    rows = batch // given.gradient_accumulation_steps
    need = memory.estimate(config, int(millions * 1e6), rows, length, 20, given)
    added = need["gradients"] + need["activations"]
    assert before + added / 1e9 == pytest.approx(peak, rel=0.2)


def check(monkeypatch, own, has, more=1e9, unpad="none", **settings):
    monkeypatch.setattr(free_memory, "own_bytes", lambda: own)
    monkeypatch.setattr(free_memory, "available_bytes", lambda swap=False: has and has - own + swap * more)
    model = build_model(ONE, lambda: MAKERS["pretraining"](tiny_config()), 1)
    accelerate(model, Plan(unpad))
    data = tf.data.Dataset.from_tensors(batch_for("pretraining"))
    memory.check(model, ONE, options(train_batch_size=64, **settings), data.element_spec)


def test_one_line_before_the_training(monkeypatch, log_lines):
    check(monkeypatch, 1e9, 8e9)
    (line,) = log_lines
    assert line.startswith("Memory: about 1.0 GB of 8.0 GB: parameters ") and "activations" in line


FLAGS = (
    "what may help: --recompute, --gradient_accumulation_steps={}, a --train_batch_size below 64, a smaller"
    " --max_seq_length, --precision=bfloat16"
)


@pytest.mark.parametrize(
    ("has", "settings", "advice"),
    [
        (1e5, {"gradient_accumulation_steps": 2}, FLAGS.format(4)),
        (  # flags that are given are not proposed
            5e4,
            {"gradient_accumulation_steps": 64, "recompute": True, "precision": "bfloat16"},
            "what may help: a smaller --max_seq_length",
        ),
        (1e4, {}, "without any batch, so use a smaller model or a device with more memory"),
    ],
)
def test_a_training_that_may_not_fit_is_told_with_advice(monkeypatch, log_lines, has, settings, advice):
    check(monkeypatch, 1000.0, has, **settings)
    assert log_lines[1].startswith("The training may need more memory than there is: about ")
    assert log_lines[1].endswith(advice)


def test_a_system_that_does_not_tell(monkeypatch, log_lines):
    check(monkeypatch, None, None)
    assert len(log_lines) == 1 and " of " not in log_lines[0].split(":")[1]


def test_what_certainly_does_not_fit_is_refused_with_the_flags_that_help(monkeypatch, log_lines):
    message = message_of(check, monkeypatch, 1000.0, 1e5, more=0)
    assert message.startswith("the training needs more memory than there is for this process: about ")
    assert message.endswith(FLAGS.format(2))
    check(monkeypatch, 1000.0, 1.5e5, more=0, unpad="groups")  # texts may be shorter
    assert log_lines[-1].startswith("The training may need more memory than there is")


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "batch", "message"),
    [
        (2.5e9, 4, "this process may have 2.5 GB of address space (ulimit -v), and TensorFlow needs "),
        (6e9, 60000, "the training needs more memory than there is for this process: about "),
        (6e9, 10**7, "a batch of 10000000 examples with "),
    ],
)
def test_a_limit_of_address_space_ends_in_a_line(tmp_path, limit, batch, message):
    """Without the check, TensorFlow ends the process."""
    records = make(tmp_path, num_documents=40, dynamic_masking=False)
    (tmp_path / "config.json").write_text(
        tiny_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH).to_json_string()
    )
    flags = [
        *("--do_train", f"--input_file={records}", f"--bert_config_file={tmp_path}/config.json"),
        *(f"--vocab_file={tmp_path}/vocab.txt", f"--max_seq_length={LENGTH}", f"--train_batch_size={batch}"),
        *(f"--max_predictions_per_seq={PREDICTIONS}", f"--output_dir={tmp_path}/trained", "--num_train_steps=2"),
    ]
    command = [sys.executable, "-c", LIMITED, str(int(limit)), str(ROOT / "run_pretraining.py"), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and f"run_pretraining.py: error: {message}" in done.stderr, done.stderr[-2000:]
    assert "ulimit -v" in done.stderr.splitlines()[-1] or "lower the batch size" in done.stderr.splitlines()[-1]
