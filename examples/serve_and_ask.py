"""Export a model for TensorFlow Serving, and ask it about raw text: python examples/serve_and_ask.py MODEL_FOLDER"""

import sys
import tempfile

from bert_tf2 import commands, exporting

model, folder = (sys.argv[1:] or sys.exit(__doc__))[0], tempfile.mkdtemp(prefix="export_")
exported = commands.call(
    "export_saved_model", task="masked_lm", init_checkpoint=model, export_dir=folder, max_seq_length=32,
    top_k=3,
)  # fmt: skip
ask = exporting.load(exported)  # runs the SavedModel as a server would; it tokenizes the text
for text in ("The capital of Egypt is [MASK].", "A bird is an animal with [MASK] and two [MASK]."):
    answer = ask(text)
    print(text, *(f"  {' '.join(words)}" for words in answer["tokens"]), sep="\n")
print(f"A server for it: MODEL_DIR={folder} docker compose -f serving/compose.yaml up --detach --wait")
print("Ask it:          python serving/client.py text_a='The capital of Egypt is [MASK].'")
