"""Train on questions about paragraphs, and answer: python examples/answer_questions.py MODEL_FOLDER"""

import json
import pathlib
import sys
import tempfile

from bert_tf2 import commands

model, data = (sys.argv[1:] or sys.exit(__doc__))[0], pathlib.Path(__file__).parent / "data" / "questions"
commands.call(
    "run_squad", train_file=f"{data}/train.json", predict_file=f"{data}/test.json", do_train=True, do_predict=True,
    init_checkpoint=model,
    output_dir=(output := tempfile.mkdtemp(prefix="questions_")), max_seq_length=64, max_query_length=20,
    doc_stride=20, train_batch_size=16, learning_rate=1e-3, num_train_epochs=25.0,
)  # fmt: skip
answers = json.loads(pathlib.Path(output, "predictions.json").read_text())
for paragraph in json.loads((data / "test.json").read_text())["data"][0]["paragraphs"]:
    print(paragraph["context"], *(f"  {q['question']} {answers[q['id']]}" for q in paragraph["qas"]), sep="\n")
