"""Fine-tune sentence vectors on pairs of like meaning: python examples/sentence_vectors.py MODEL_FOLDER [FOLDER]

FOLDER has pairs.tsv (text_a, text_b) for training, and sts.tsv (score, text_a, text_b) for the evaluation. The second
texts of the other pairs in a batch are the wrong answers: softmax over 20 x cosine, as in MultipleNegativesRankingLoss
of sentence-transformers (Henderson et al., 2017, section 4.4). sentence-transformers and `bert_tf2.load` can read the
folder that this program writes.
"""

import csv
import json
import pathlib
import sys
import tempfile

import tensorflow as tf
from scipy.stats import spearmanr

import bert_tf2
from bert_tf2 import commands

EPOCHS, BATCH, LENGTH, SCALE = 10, 16, 64, 20.0
model, *given = sys.argv[1:] or sys.exit(__doc__)
data = pathlib.Path(given[0]) if given else pathlib.Path(__file__).parent / "data" / "sentences"
pairs, scored = (list(csv.DictReader((data / name).open(), delimiter="\t")) for name in ("pairs.tsv", "sts.tsv"))
bert = bert_tf2.load(model)
tokenize = bert_tf2.Tokenize(bert.tokenizer, LENGTH)
# Weights of 12 layers need a rate of 2e-5; the two layers of the demo need 1e-4.
schedule = bert_tf2.WarmupAndDecay(2e-5 if bert.config.hidden_size >= 384 else 1e-4, EPOCHS * len(pairs) // BATCH, 0)
optimizer = bert_tf2.AdamWeightDecay(schedule)


def vectors(texts: tf.Tensor) -> tf.Tensor:
    """Strings [B] -> vectors of length 1, float32 [B, D]: the mean over the tokens, as `embed` computes it."""
    batch = tokenize(texts)
    weights = tf.cast(batch["input_mask"], tf.float32)[..., tf.newaxis]  # [B, F, 1]
    states = bert.encoder(*batch.values(), training=True).sequence_output  # [B, F, D]
    return tf.math.l2_normalize(tf.reduce_sum(states * weights, 1) / tf.reduce_sum(weights, 1), -1)


@tf.function
def step(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        logits = SCALE * vectors(first) @ tf.transpose(vectors(second))  # [B, B], the right pairs on the diagonal
        right = tf.range(tf.shape(logits)[0])
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(right, logits))
    variables = [one for one in bert.encoder.trainable_variables if "pooler" not in one.path]  # the pooler is not used
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


def spearman() -> float:
    first, second = (bert.embed([row[name] for row in scored], "mean", normalize=True) for name in ("text_a", "text_b"))
    return spearmanr([float(row["score"]) for row in scored], (first * second).sum(-1)).statistic


print(f"Spearman before: {spearman():.3f}")
columns = tuple([row[name] for row in pairs] for name in ("text_a", "text_b"))
for epoch in range(EPOCHS):
    batches = tf.data.Dataset.from_tensor_slices(columns).shuffle(len(pairs), seed=epoch).batch(BATCH)
    losses = [float(step(*batch)) for batch in batches]
    print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}")
print(f"Spearman after: {spearman():.3f}")
folder = tempfile.mkdtemp(prefix="sentence_vectors_")
bert.save_folder(f"{folder}/tf1")
commands.call("convert_checkpoint", input=f"{folder}/tf1", output=f"{folder}/st", to="hf", weights_only=True)
# The files that sentence-transformers needs beside the weights: the steps from texts to vectors.
modules = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
steps = enumerate((path, f"sentence_transformers.models.{kind}") for path, kind in modules.items())
for name, content in {
    "modules.json": [{"idx": index, "name": str(index), "path": path, "type": kind} for index, (path, kind) in steps],
    "1_Pooling/config.json": {"word_embedding_dimension": bert.config.hidden_size, "pooling_mode_mean_tokens": True},
    "2_Normalize/config.json": {},
    "sentence_bert_config.json": {"max_seq_length": LENGTH, "do_lower_case": False},
}.items():
    (place := pathlib.Path(folder, "st", name)).parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(content))
print(f"for sentence-transformers, and for bert_tf2.load(...).embed(texts): {folder}/st")
