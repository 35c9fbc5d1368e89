"""Train with several learning rates and seeds: python examples/several_seeds.py MODEL_FOLDER [FOLDER_WITH_TSV_FILES]"""

import pathlib
import statistics
import sys
import tempfile

import tensorflow as tf

from bert_tf2 import commands

tf.get_logger().setLevel("ERROR")  # hides warnings about many graphs; each training has its own graphs
model, *given = sys.argv[1:] or sys.exit(__doc__)
data, results = given[0] if given else str(pathlib.Path(__file__).parent / "data" / "topics"), {}
for rate in (5e-4, 1e-3):  # for a released model 2e-5, 3e-5, 5e-5
    for seed in (1, 2, 3):
        results[rate, seed] = commands.call(
            "run_classifier", task_name="tsv", data_dir=data, text_a_column="text", label_column="topic",
            do_train=True, do_eval=True, init_checkpoint=model, output_dir=tempfile.mkdtemp(prefix=f"seed_{seed}_"),
            random_seed=seed, learning_rate=rate, max_seq_length=32, train_batch_size=16, num_train_epochs=8.0,
        )["accuracy"]  # fmt: skip
    found = [value for (of, _), value in results.items() if of == rate]
    print(f"{rate:g}: accuracy {statistics.mean(found):.3f}, deviation {statistics.stdev(found):.3f}")
print("best on dev.tsv: learning_rate={:g} random_seed={}".format(*max(results, key=results.get)))
