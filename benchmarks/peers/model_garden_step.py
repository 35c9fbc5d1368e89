"""One pretraining step of Model Garden: its MaskedLMTask with its AdamWeightDecay, as its trainer runs them."""

from __future__ import annotations

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import importlib.metadata

import hlo_on_gpu
import steps
import tensorflow as tf
import tf_keras
import workload
from official.modeling import optimization
from official.nlp.configs import bert, encoders
from official.nlp.data import pretrain_dataloader
from official.nlp.tasks import masked_lm

flags, config, batches = workload.peer(__doc__.splitlines()[0], ("plain", "xla"))
if flags.precision == "bfloat16":
    tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
encoder = encoders.BertEncoderConfig(
    vocab_size=config["vocab_size"],
    hidden_size=config["hidden_size"],
    num_layers=config["num_hidden_layers"],
    num_attention_heads=config["num_attention_heads"],
    intermediate_size=config["intermediate_size"],
    dropout_rate=config["hidden_dropout_prob"],
    attention_dropout_rate=config["attention_probs_dropout_prob"],
    max_position_embeddings=config["max_position_embeddings"],
    type_vocab_size=config["type_vocab_size"],
)
sentences = bert.ClsHeadConfig(
    inner_dim=config["hidden_size"], num_classes=2, dropout_rate=config["hidden_dropout_prob"], name="next_sentence"
)
pretrainer = bert.PretrainerConfig(encoder=encoders.EncoderConfig(bert=encoder), cls_heads=[sentences])
data = pretrain_dataloader.BertPretrainDataConfig(use_next_sentence_label=True)
task = masked_lm.MaskedLMTask(masked_lm.MaskedLMConfig(model=pretrainer, train_data=data))
model = task.build_model()
schedule = optimization.OptimizationConfig(
    {
        # Its gradient_clip_norm is 1.0, the global norm.
        "optimizer": {"type": "adamw", "adamw": {"weight_decay_rate": 0.01, "epsilon": 1e-6,
            "exclude_from_weight_decay": ["LayerNorm", "layer_norm", "bias"]}},
        "learning_rate": {"type": "constant", "constant": {"learning_rate": 1e-4}},
    }
)  # fmt: skip
factory = optimization.OptimizerFactory(schedule)
optimizer = factory.build_optimizer(factory.build_learning_rate())
metrics = task.build_metrics()


@tf.function(jit_compile=flags.variant == "xla")
def train_step(inputs):
    return task.train_step(inputs, model, optimizer, metrics)[task.loss]


def arguments(batch):
    names = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
    return [{names.get(name, name): tf.constant(values) for name, values in batch.items()}]


def step(batch):
    return train_step(*arguments(batch))


if flags.write:
    optimizer._create_all_weights(model.trainable_variables)
    hlo_on_gpu.write_peer(flags, config, "Model Garden", train_step, arguments)
    raise SystemExit
measured = workload.time_peer(flags, step, batches)
versions = f"tf-models-official {importlib.metadata.version('tf-models-official')}, TensorFlow {tf.__version__}"
measured["memory_gb"] = steps.peak_memory_gb()
print(workload.result(flags.batch_size, mean_length=flags.mean_length, versions=versions, **measured))
