"""Fine-tune sentence vectors on pairs of like meaning: python examples/sentence_vectors.py MODEL_FOLDER [FOLDER]

FOLDER has pairs.tsv (text_a, text_b) for training, and sts.tsv (score from 0 to 5, text_a, text_b) for the evaluation.
sentence-transformers and `bert_tf2.load` can read the folder that this program writes.
"""

import csv
import pathlib
import sys
import tempfile

import bert_tf2

model, *given = sys.argv[1:] or sys.exit(__doc__)
data = pathlib.Path(given[0]) if given else pathlib.Path(__file__).parent / "data" / "sentences"
pairs, scored = (list(csv.DictReader((data / name).open(), delimiter="\t")) for name in ("pairs.tsv", "sts.tsv"))
scores = [float(row["score"]) / 5 for row in scored]  # cosines
pairs, scored = ([(row["text_a"], row["text_b"]) for row in rows] for rows in (pairs, scored))
vectors = bert_tf2.embedder(model, max_seq_length=64)
vectors.compile(2e-5 if vectors.config.hidden_size >= 384 else 1e-4)  # the demo's two layers need a larger rate
print(f"Spearman before: {vectors.evaluate(scored, scores, verbose=0, return_dict=True)['spearman']:.3f}")
history = vectors.fit(pairs, batch_size=16, epochs=10, validation_data=(scored, scores), verbose=2).history
print(f"Spearman after: {history['val_spearman'][-1]:.3f}")
vectors.save_folder(folder := tempfile.mkdtemp(prefix="sentence_vectors_"))
print(f"for sentence-transformers, and for bert_tf2.load(...).embed(texts): {folder}")
