"""The memory of a training: the estimate against measurements, what the machine has, the line and the warning."""

import pytest
import tensorflow as tf
from small_models import MAKERS, batch_for, tiny_config

from bert_tf2.config import BertConfig
from bert_tf2.training import memory
from bert_tf2.training.devices import build_model
from bert_tf2.training.options import TrainOptions

ONE = tf.distribute.get_strategy()


def options(**settings):
    common = {"output_dir": "", "learning_rate": 1e-3, "num_train_steps": 1, "num_warmup_steps": 0}
    return TrainOptions(**{**common, **settings})


# (layers, hidden, heads, batch, length), settings, parameters in millions, gigabytes of the process before the
# first step and at the peak: measured with PretrainingModel, 20 predictions, on a CPU. The peaks are those that
# benchmarks/pretraining_step.py --steps=4 prints.
MEASURED = [
    ((2, 128, 2, 8, 512), {}, 4.4, 0.72, 1.20),
    ((4, 256, 4, 32, 128), {}, 11.3, 0.80, 1.72),
    ((4, 512, 8, 8, 512), {}, 29.1, 1.02, 3.13),
    ((4, 512, 8, 8, 512), {"precision": "bfloat16"}, 29.1, 1.02, 2.44),
    ((4, 512, 8, 8, 512), {"gradient_accumulation_steps": 4}, 29.1, 1.02, 2.30),
    ((12, 256, 4, 32, 128), {}, 17.6, 0.87, 2.58),
    ((12, 256, 4, 32, 128), {"recompute": True}, 17.6, 0.87, 1.93),
    ((4, 512, 8, 32, 128), {}, 29.1, 1.02, 2.57),
    ((4, 512, 8, 32, 128), {"recompute": True}, 29.1, 1.02, 2.23),
    ((12, 768, 12, 8, 128), {}, 110.1, 2.05, 4.00),
    ((12, 768, 12, 8, 512), {}, 110.1, 2.05, 7.83),
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
    assert before + (need.gradients + need.update + need.activations) / 1e9 == pytest.approx(peak, rel=0.2)


def check(monkeypatch, own, has, **settings):
    monkeypatch.setattr(memory, "_host", lambda: (own, has))
    model = build_model(ONE, lambda: MAKERS["pretraining"](tiny_config()), 1)
    data = tf.data.Dataset.from_tensors(batch_for("pretraining"))
    memory.check(model, ONE, options(train_batch_size=64, **settings), data.element_spec)


def test_one_line_before_the_training(monkeypatch, log_lines):
    check(monkeypatch, 1e9, 8e9)
    (line,) = log_lines
    assert line.startswith("Memory: about 1.0 GB of 8.0 GB: parameters ") and "activations" in line


def test_a_batch_that_does_not_fit(monkeypatch, log_lines):
    check(monkeypatch, 1000.0, 1e5, gradient_accumulation_steps=2)
    assert log_lines[1].startswith("The training may need more memory than there is: about ")
    assert log_lines[1].endswith(
        "what may help: --recompute, --gradient_accumulation_steps=4, a --train_batch_size below 64, a smaller"
        " --max_seq_length, --precision=bfloat16"
    )


def test_flags_that_are_given_are_not_proposed(monkeypatch, log_lines):
    check(monkeypatch, 1000.0, 5e4, gradient_accumulation_steps=64, recompute=True, precision="bfloat16")
    assert log_lines[1].endswith("what may help: a smaller --max_seq_length")


def test_a_model_that_does_not_fit(monkeypatch, log_lines):
    check(monkeypatch, 1000.0, 1e4)
    assert log_lines[1].endswith("without any batch, so use a smaller model or a device with more memory")


def test_a_system_that_does_not_tell(monkeypatch, log_lines):
    check(monkeypatch, None, None)
    assert len(log_lines) == 1 and " of " not in log_lines[0].split(":")[1]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_memory_of_a_container_is_its_limit(tmp_path):
    assert memory.available_bytes(str(tmp_path)) is None
    write(tmp_path / "proc/meminfo", "MemTotal:  9000000 kB\nMemAvailable:  4000000 kB\n")
    assert memory.available_bytes(str(tmp_path)) == 4_096_000_000
    write(tmp_path / "sys/fs/cgroup/memory.max", "max\n")
    write(tmp_path / "sys/fs/cgroup/memory.current", "1000000000\n")
    assert memory.available_bytes(str(tmp_path)) == 4_096_000_000
    write(tmp_path / "sys/fs/cgroup/memory.max", "3000000000\n")
    write(tmp_path / "sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 200000000\n")
    assert memory.available_bytes(str(tmp_path)) == 2_200_000_000
