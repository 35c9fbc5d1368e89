"""Continue pretraining on your text with your words: python examples/continue_pretraining.py MODEL_FOLDER"""

import pathlib
import sys
import tempfile

import bert_tf2
from bert_tf2 import commands

model, data = (sys.argv[1:] or sys.exit(__doc__))[0], pathlib.Path(__file__).parent / "data" / "norway"
blank, output = "The capital of Norway is [MASK].", tempfile.mkdtemp(prefix="norway_")
print("before:", bert_tf2.load(model).fill_mask(blank).filled)
extended, trained, records = (f"{output}/{name}" for name in ("extended", "trained", "text.tfrecord"))
commands.call("convert_checkpoint", input=model, output=extended, to="tf1", extend_vocab=f"{data}/words.txt")
files = {"vocab_file": f"{extended}/vocab.txt", "max_seq_length": 32, "max_predictions_per_seq": 5}
commands.call("create_pretraining_data", input_file=f"{data}/text.txt", output_file=records, dupe_factor=30, **files)
commands.call("run_pretraining", input_file=records, output_dir=trained, init_checkpoint=extended, do_train=True,
              train_batch_size=16, learning_rate=1e-3,
              num_train_steps=300, num_warmup_steps=20, **files)  # fmt: skip
print("after: ", bert_tf2.load(trained).fill_mask(blank).filled, f"({trained})")
