"""Attention in one kernel of cuDNN: the calls for XLA, and the gradients around them; tests/test_gpu.py runs them."""

import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
import toy_data
from pretraining_text import VOCABULARY
from small_models import randomize, small_config, tiny_config
from substitute_kernels import attend_on_cpu
from unmasked_data import LENGTH, PREDICTIONS, make

from bert_tf2 import heads, modeling
from bert_tf2.commands import call
from bert_tf2.data.batching import packed
from bert_tf2.data.records import PACKED
from bert_tf2.fast import fused_attention
from bert_tf2.fast.encoder import FastEncoder, Plan
from bert_tf2.layers import MASKED_SCORE
from bert_tf2.modeling import attention_scores, average_values

SHAPE = (4, 3, 6, 8)  # rows, heads, tokens, numbers of a head
LENGTHS = np.array([6, 1, 4, 3])


def masks():
    """Of rows of different lengths, [B, 1, 1, F]; and of several examples in a row, [B, 1, F, F]."""
    tokens = np.arange(6) < LENGTHS[:, None]
    example = np.where(tokens, np.arange(6) // 2, -1)
    same = (example[:, :, None] == example[:, None]) & tokens[:, None]
    return [np.float32(np.where(some, 0.0, MASKED_SCORE)) for some in (tokens[:, None, None], same[:, None])]


@pytest.mark.parametrize("number", [0, 1])
def test_values_and_gradients_are_those_of_plain_attention(number):
    """Where a query reads any key: scores near -10000 are 1e-3 apart in float32."""
    random, mask = np.random.default_rng(3), masks()[number]
    inputs = [tf.constant(random.normal(size=SHAPE), tf.float32) for _ in range(3)]
    reads = (mask == 0).any(-1)[..., None]
    upstream = tf.constant(random.normal(size=SHAPE) * reads, tf.float32)
    found = []
    for attend in (lambda *qkv: average_values(attention_scores(*qkv[:2], mask), qkv[2], 0.0),
                   lambda *qkv: attend_on_cpu(*qkv[:2], mask, qkv[2])):  # fmt: skip
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            context = attend(*inputs)
        found.append([context * reads, *tape.gradient(context, inputs, upstream)])
    for plain, fused in zip(*found, strict=True):
        np.testing.assert_allclose(fused, plain, atol=2e-5)


@pytest.mark.parametrize("way", ["padded", pytest.param("packed", marks=pytest.mark.slow)])
def test_an_encoder_has_the_states_and_gradients_of_plain_attention(way):
    """In a program of XLA; the last block, of which few positions are read, has plain attention."""
    random, mask = np.random.default_rng(5), np.int32(np.arange(6) < LENGTHS[:, None])
    ids, types = (tf.constant(random.integers(0, most, mask.shape), tf.int32) for most in (23, 2))
    reads = tf.constant(random.integers(0, LENGTHS[:, None], [4, 2]), tf.int32)
    batch = packed({"input_mask": tf.constant(mask)})
    packing = {name: batch[name] for name in PACKED} if way == "packed" else {}
    randomize(model := modeling.BertModel(small_config(num_hidden_layers=3, num_attention_heads=1)))
    found, calls = [], []
    for attention in (None, lambda *inputs: calls.append(inputs) or attend_on_cpu(*inputs)):
        encoder = FastEncoder(model, Plan(recompute=True, attention=attention))

        def step(packing, encoder=encoder):
            with tf.GradientTape() as tape:
                output = encoder(ids, mask, types, training=True, dropout_seed=[1, 2], reads=reads, features=packing)
                total = tf.reduce_sum(tf.sin(output.pooled_output)) + tf.reduce_sum(tf.sin(output.sequence_output))
            gradients = tape.gradient(total, model.trainable_variables)
            return output.sequence_output, *map(tf.convert_to_tensor, gradients)

        found.append((tf.function(step, jit_compile=True, autograph=False) if attention else step)(packing))
    assert len(calls) == 4  # of two blocks, which are computed again in the backward pass
    for plain, fused in zip(*found, strict=True):
        np.testing.assert_allclose(fused, plain, atol=2e-5, rtol=1e-4)


def hlo():
    @tf.function(jit_compile=True, autograph=False)
    def step(query, key, mask, value):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            assert fused_attention.takes(query, key) and not fused_attention.takes(query[:, :, :2], key)
            context = fused_attention.attend(query, key, mask, value)
        return tape.gradient(context, [query, key, value])

    inputs = [tf.zeros(SHAPE, tf.bfloat16)] * 3
    inputs.insert(2, tf.zeros([4, 1, 1, 6]))
    return step.experimental_get_compiler_ir(*inputs)(stage="hlo")


def test_the_program_has_two_calls_with_the_shapes_and_the_configuration_that_xla_knows():
    states, sums, bias = "bf16[4,3,6,8]{3,2,1,0}", "f32[4,3,6]{2,1,0}", "bf16[4,1,6,6]{3,2,1,0}"
    lines = {re.search(r'custom_call_target="(.*?)"', line)[1]: line for line in hlo().splitlines() if "fmha" in line}
    assert lines.keys() == {"__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward"}
    for name, results, operands in (
        ("__cudnn$fmhaScaleBiasSoftmax", [states, sums], [states] * 3 + [bias]),
        ("__cudnn$fmhaScaleBiasSoftmaxBackward", [states] * 3, [states] * 3 + [sums, states, bias, states]),
    ):
        line = lines[name]
        assert f"= ({', '.join([*results, 'u8[0]{0}'])}) custom-call(" in line
        assert f"operand_layout_constraints={{{', '.join(operands)}}}" in line
        stated = json.loads(line.split("backend_config=", 1)[1])["cudnn_fmha_backend_config"]
        assert stated["intermediate_tensor_shape"]["dimensions"] == ["4", "3", "6", "6"]
        assert stated["intermediate_tensor_shape"]["element_type"] == "BF16"
        # XLA refuses a field that it does not know; TensorFlow's package has the header of the message.
        header = pathlib.Path(tf.sysconfig.get_include(), "xla/service/gpu/backend_configs.pb.h")
        if header.exists():
            text = header.read_text()
            assert all(f" {field}() const" in text for field in stated)


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.parametrize("switches", [["do_train"], ["do_train", "pack_rows"], ["do_eval"], ["do_eval", "pack_rows"]])
def test_the_programs_of_a_script_have_the_calls(monkeypatch, tmp_path, switches):
    """Which XLA's compiler for this CPU does not know; the GPU is a name."""
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["one"] * (kind == "GPU"))
    monkeypatch.setattr("bert_tf2.fast.compiled.can_compile", lambda: True)
    sizes = {"max_position_embeddings": LENGTH, "num_attention_heads": 1, "num_hidden_layers": 2}
    config = tiny_config(vocab_size=len(VOCABULARY), **sizes)
    weights = toy_data.write_trained(tmp_path / "start", heads.PretrainingModel(config))
    how = {"input_file": make(tmp_path, "records", dynamic_masking=False), "init_checkpoint": str(weights)}
    how |= {"bert_config_file": str(tmp_path / "start" / "bert_config.json"), "output_dir": str(tmp_path / "out")}
    how |= {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, "num_train_steps": 1}
    how |= {"attention": "fused", "precision": "bfloat16", "xla": True, **dict.fromkeys(switches, True)}
    with pytest.raises(tf.errors.OpError, match=r"fmhaScaleBiasSoftmax"):
        call("run_pretraining", **how)
