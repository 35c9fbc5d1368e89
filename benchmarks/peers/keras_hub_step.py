"""One pretraining step of keras-hub: BertMaskedLM, as its users train it with `compile` and `fit`.

keras-hub has no head for next sentences: this is the masked-LM loss alone, which is less work.
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hlo_on_gpu
import keras
import keras_hub
import steps
import tensorflow as tf
import workload

flags, config, batches = workload.peer(__doc__.splitlines()[0], ("plain", "xla"))
if flags.precision == "bfloat16":
    keras.config.set_dtype_policy("mixed_bfloat16")
backbone = keras_hub.models.BertBackbone(
    vocabulary_size=config["vocab_size"],
    num_layers=config["num_hidden_layers"],
    num_heads=config["num_attention_heads"],
    hidden_dim=config["hidden_size"],
    intermediate_dim=config["intermediate_size"],
    dropout=config["hidden_dropout_prob"],
    max_sequence_length=config["max_position_embeddings"],
)
model = keras_hub.models.BertMaskedLM(backbone=backbone, preprocessor=None)
optimizer = keras.optimizers.AdamW(learning_rate=1e-4, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0)
optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=optimizer, loss=loss, jit_compile=flags.variant == "xla")


def arguments(batch):
    inputs = {
        "token_ids": batch["input_ids"],
        "padding_mask": batch["input_mask"],
        "segment_ids": batch["segment_ids"],
        "mask_positions": batch["masked_lm_positions"],
    }
    return inputs, batch["masked_lm_ids"], batch["masked_lm_weights"]


def step(batch):
    # As `fit` does, and unlike train_on_batch, which waits for the loss.
    return model.train_function(iter([arguments(batch)]))["loss"]


if flags.write:
    optimizer.build(model.trainable_variables)
    function = tf.function(lambda *given: model.train_step(given), jit_compile=True)
    hlo_on_gpu.write_peer(flags, config, "keras-hub", function, arguments)
    raise SystemExit
model.train_on_batch(*arguments(batches[0]))  # makes the train function
measured = workload.time_peer(flags, step, batches)
versions = f"keras-hub {keras_hub.__version__}, Keras {keras.__version__}, TensorFlow {tf.__version__}"
measured["memory_gb"] = steps.peak_memory_gb()
print(workload.result(flags.batch_size, mean_length=flags.mean_length, versions=versions, **measured))
