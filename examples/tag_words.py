"""Train a tagger of words on CoNLL columns, and tag sentences: python examples/tag_words.py MODEL_FOLDER"""

import pathlib
import sys
import tempfile

from bert_tf2 import commands

model, data = (sys.argv[1:] or sys.exit(__doc__))[0], pathlib.Path(__file__).parent / "data" / "tags"
scores = commands.call(
    "run_ner", train_file=f"{data}/train.txt", eval_file=f"{data}/dev.txt", predict_file=f"{data}/test.txt",
    init_checkpoint=model, do_train=True, do_eval=True, do_predict=True,
    output_dir=(output := tempfile.mkdtemp(prefix="tags_")),
    max_seq_length=32, train_batch_size=16, learning_rate=1e-3, num_train_epochs=8.0,
)  # fmt: skip
print(f"F1 on dev.txt: {scores['f1']:.2f}; everything is in {output}")
for sentence in pathlib.Path(output, "predictions.txt").read_text().strip().split("\n\n"):
    print(*(word.replace(" O", "").replace(" B-", "/").replace(" I-", "/") for word in sentence.splitlines()))
