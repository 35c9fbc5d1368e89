"""Train a classifier that gives each text any number of labels: python examples/several_labels.py MODEL_FOLDER"""

import pathlib
import sys
import tempfile

from bert_tf2 import commands

model, data = (sys.argv[1:] or sys.exit(__doc__))[0], pathlib.Path(__file__).parent / "data" / "mentions"
scores = commands.call(
    "run_classifier", task_name="tsv", data_dir=str(data), text_a_column="text", label_column="mentions",
    multi_label=True, label_separator=",", do_train=True, do_eval=True, do_predict=True, init_checkpoint=model,
    output_dir=(output := tempfile.mkdtemp(prefix="mentions_")), train_batch_size=16, learning_rate=1e-3,
    max_seq_length=32, num_train_epochs=12.0,
)  # fmt: skip
print(f"micro F1 on dev.tsv: {scores['micro_f1']:.2f}; everything is in {output}")
texts, answers = (data / "test.tsv").read_text(), pathlib.Path(output, "predictions.tsv").read_text()
print(*(f"{answer}\t{text}" for answer, text in zip(answers.splitlines(), texts.splitlines(), strict=True)), sep="\n")
