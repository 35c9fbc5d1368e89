"""Train a classifier on your own TSV files: python examples/classify_tsv.py MODEL_FOLDER [FOLDER_WITH_TSV_FILES]"""

import pathlib
import sys
import tempfile

from bert_tf2 import commands

model, *given = sys.argv[1:] or sys.exit(__doc__)
data = pathlib.Path(given[0] if given else pathlib.Path(__file__).parent / "data" / "topics")
scores = commands.call(
    "run_classifier", task_name="tsv", data_dir=str(data), text_a_column="text", label_column="topic",
    init_checkpoint=model, do_train=True, do_eval=True, do_predict=True,
    output_dir=(output := tempfile.mkdtemp(prefix="topics_")),
    max_seq_length=32, train_batch_size=16, learning_rate=1e-3, num_train_epochs=8.0,
)  # fmt: skip
print(f"accuracy on dev.tsv: {scores['accuracy']:.2f}; everything is in {output}")
texts, answers = (data / "test.tsv").read_text(), pathlib.Path(output, "predictions.tsv").read_text()
print(*(f"{answer}\t{text}" for answer, text in zip(answers.splitlines(), texts.splitlines(), strict=True)), sep="\n")
