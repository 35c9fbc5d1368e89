"""Programs of XLA in TensorFlow's cache."""

import subprocess
import sys

import pytest
from command_lines import environment

RUN = """
import sys
import tensorflow as tf
from bert_tf2.fast import compiled
for _ in range(int(sys.argv[1])):
    tf.constant(0.0)
outer = tf.function(lambda x: compiled.program(lambda x: tf.exp(x) * 2.0)(x), autograph=False)
print(outer(tf.constant(1.0)).numpy())
"""


@pytest.mark.slow
def test_a_process_finds_the_programs_of_a_process_that_computed_other_things_before(tmp_path):
    flags = f"--tf_xla_persistent_cache_directory={tmp_path} --tf_xla_persistent_cache_device_types=CPU"
    kept = []
    for count in ("1", "1000"):
        subprocess.run([sys.executable, "-c", RUN, count], env=environment(TF_XLA_FLAGS=flags), check=True, timeout=300)
        kept.append(sorted(path.name for path in tmp_path.iterdir()))
    assert len(kept[0]) == 1 and kept[0] == kept[1]
