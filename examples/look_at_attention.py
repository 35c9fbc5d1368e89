"""Show where the [MASK] looks, in each head: python examples/look_at_attention.py MODEL_FOLDER ["text"]"""

import sys

import numpy as np

import bert_tf2

model, *given = sys.argv[1:] or sys.exit(__doc__)
bert, text = bert_tf2.load(model), (given or ["The capital of Italy is [MASK]."])[0]
before, after = (bert.tokenizer.tokenize(part) for part in text.split("[MASK]"))
tokens = ["[CLS]", *before, "[MASK]", *after, "[SEP]"]
output = bert.encoder(np.array([bert.tokenizer.convert_tokens_to_ids(tokens)]))
inputs = [output.get_embedding_output(), *output.get_all_encoder_layers()]  # of block 0, of block 1, ...
shape = len(tokens), bert.config.num_attention_heads, bert.config.attention_head_size  # tokens, heads, width
for layer, (block, states) in enumerate(zip(bert.encoder.blocks, inputs, strict=False)):
    query, key = (np.reshape(of(states), shape) for of in (block.attention.query, block.attention.key))
    weights = np.exp(np.einsum("hd,thd->ht", query[tokens.index("[MASK]")], key) / shape[2] ** 0.5)  # [heads, tokens]
    for head, row in enumerate(weights / weights.sum(axis=1, keepdims=True)):  # a softmax
        print(f"layer {layer}, head {head}:", *(f"{tokens[n]} {row[n]:.2f}" for n in (-row).argsort()[:4]), sep="  ")
