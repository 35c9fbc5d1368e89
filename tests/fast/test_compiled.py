"""Programs of XLA in TensorFlow's cache."""

import json
import subprocess
import sys

import pytest
from command_lines import ROOT, environment

ONE_PROGRAM = """
import sys
import tensorflow as tf
from bert_tf2.fast import compiled
for _ in range(int(sys.argv[1])):
    tf.constant(0.0)
outer = tf.function(lambda x: compiled.as_program(lambda x: tf.exp(x) * 2.0)(x), autograph=False)
print(outer(tf.constant(1.0)).numpy())
"""


TRAINING = """
import json, sys
import tensorflow as tf
from small_models import batch_for
from small_trainings import endless, make_trainer
trainer = make_trainer(xla="true", train_batch_size=8, save_checkpoints_steps=0, **json.loads(sys.argv[1]))
batch = batch_for("pretraining", 8)
trainer.step.several()(iter(endless(batch)), tf.constant(0, tf.int64), tf.constant(1))
"""
EVALUATION = TRAINING.replace("trainer.step", "if json.loads(sys.argv[1]): trainer.step")
EVALUATION += """
from bert_tf2.training.forward import Runner
from bert_tf2.training.options import Program
from small_trainings import ONE
def wider(more):
    return {name: tf.pad(x, [[0, 0], [0, more]]) if x.shape[1:] == (10,) else x for name, x in batch.items()}
data = tf.data.Dataset.from_tensor_slices([0, 2] if json.loads(sys.argv[1]) else [2, 0]).map(wider)
assert len([*Runner(trainer.model, ONE).run(data, 8, Program(is_compiled=True))]) == 2
"""
OTHERS = {"learning_rate": 2e-3, "num_train_steps": 20, "num_warmup_steps": 3, "random_seed": 7}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "arguments"),
    [(ONE_PROGRAM, (1, 1000)), (TRAINING, ({}, OTHERS)), (EVALUATION, ({"random_seed": 7}, {}))],
)
def test_a_process_finds_the_programs_of_a_process_before(tmp_path, program, arguments):
    """Even if the process computed other things before, trains with another learning rate, seed and length, or only
    evaluates, and meets the widths of batches in another order.
    """
    flags = f"--tf_xla_persistent_cache_directory={tmp_path} --tf_xla_persistent_cache_device_types=CPU"
    kept = []
    for argument in map(json.dumps, arguments):
        call = [sys.executable, "-c", program, argument]
        subprocess.run(call, env=environment(ROOT, ROOT / "tests", TF_XLA_FLAGS=flags), check=True, timeout=300)
        kept.append(sorted(path.name for path in tmp_path.iterdir()))
    assert kept[0] and kept[0] == kept[1]
