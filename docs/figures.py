"""Draws the figures of docs/how_bert_works.md: a block, and the way from a hidden state to a word.

python docs/figures.py            # prints the shapes that are in them
python docs/figures.py --write    # writes docs/block.svg and docs/masked_lm_head.svg

Every shape is that of a tensor or a variable in a call of the model: BERT-Base, with one block. A figure whose shapes
are not those of the code cannot be drawn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from unittest import mock
from xml.sax.saxutils import escape

DOCS = pathlib.Path(__file__).resolve().parent
SIZES = {"B": 4, "F": 128, "P": 20}  # all numbers of the figures differ, so that each has one letter
Shape = tuple[int, ...]


def _base():
    """The configuration of BERT-Base, uncased."""
    from bert_tf2.config import BertConfig

    return BertConfig(
        vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
        max_position_embeddings=512, type_vocab_size=2,
    )  # fmt: skip


def trace() -> dict[str, Shape]:
    """The shapes in a call of the model for masked words: of layers' outputs, of attention's tensors, of variables.

    The names are those of the code: "query", "scores", "word_embeddings". The name of a layer alone is its output;
    with "/kernel", "/bias" or "/gamma" behind it, a variable.
    """
    import numpy as np

    from bert_tf2.support.process import load_tensorflow

    tf = load_tensorflow()
    from bert_tf2 import heads

    model = heads.MaskedLMModel(dataclasses.replace(_base(), num_hidden_layers=1))
    ids = np.ones([SIZES["B"], SIZES["F"]], np.int32)
    positions = np.ones([SIZES["B"], SIZES["P"]], np.int32)
    with _recorded() as found:
        output = model.encode({"input_ids": ids})
        states = heads.gather_indexes(output.sequence_output, tf.constant(positions))
        logits = model.masked_lm(states, model.bert.get_embedding_table())
    block, head = model.bert.blocks[0], model.masked_lm
    layers = [block.attention.query, block.attention_output, block.attention_norm, block.intermediate]
    layers += [block.output_dense, block.output_norm, head.transform, head.layer_norm]
    for layer in layers:
        found |= {f"{layer.name}/{variable.name}": tuple(variable.shape) for variable in layer.variables}
    tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    found |= {name: tuple(getattr(model.bert.embeddings, name).shape) for name in tables}
    found |= {"output_bias": tuple(head.output_bias.shape), "input_ids": ids.shape, "logits": tuple(logits.shape)}
    return found | {"sequence_output": tuple(output.sequence_output.shape), "gathered": tuple(states.shape)}


@contextlib.contextmanager
def _recorded() -> Iterator[dict[str, Shape]]:
    """Yields the shapes of what layers and attention compute within this context, which grow as they are computed."""
    import keras
    import tensorflow as tf

    from bert_tf2 import modeling

    found: dict[str, Shape] = {}
    names = iter(("scores", "contexts"))  # the two products of attention, the only ones of four dimensions
    plain = {"layer": keras.layers.Layer.__call__, "product": tf.matmul, "softmax": tf.nn.softmax}
    split, merge = modeling.split_heads, modeling.merge_heads

    def keep(name: str, result):
        if hasattr(result, "shape"):
            found[name] = tuple(result.shape)
        return result

    def product(*arguments, **named):
        result = plain["product"](*arguments, **named)
        return keep(next(names), result) if len(result.shape) == 4 else result

    with (
        mock.patch.object(
            keras.layers.Layer, "__call__", lambda self, *a, **k: keep(self.name, plain["layer"](self, *a, **k))
        ),
        mock.patch.object(tf, "matmul", product),
        mock.patch.object(tf.nn, "softmax", lambda x, *a, **k: keep("probabilities", plain["softmax"](x, *a, **k))),
        mock.patch.object(modeling, "split_heads", lambda x, heads: keep("split", split(x, heads))),
        mock.patch.object(modeling, "merge_heads", lambda x: keep("merged", merge(x))),
    ):
        yield found


def in_letters(shape: Shape) -> str:
    """(4, 12, 128, 64) -> "[B, N, F, H]", with the letters of modeling.py; a second F is T."""
    config = _base()
    letters = {
        **{size: letter for letter, size in SIZES.items()},
        SIZES["B"] * SIZES["P"]: "B·P",
        config.hidden_size: "D",
        config.num_attention_heads: "N",
        config.attention_head_size: "H",
        config.intermediate_size: "I",
        config.vocab_size: "V",
        config.max_position_embeddings: str(config.max_position_embeddings),
        config.type_vocab_size: str(config.type_vocab_size),
    }
    names = [letters[size] for size in shape]
    second = [number for number, name in enumerate(names) if name == "F"][1:]
    return "[" + ", ".join("T" if number in second else name for number, name in enumerate(names)) + "]"


STYLE = """
  svg { --ink: #1f2328; --soft: #59636e; --paper: #ffffff; --box: #eef2f6; --table: #fff3d6; --edge: #8c959f; }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #f0f6fc; --soft: #9da7b3; --paper: #0d1117; --box: #1c2530; --table: #3a2f12; --edge: #6e7681; }
  }
  .paper { fill: var(--paper); } .box { fill: var(--box); stroke: var(--edge); }
  .table { fill: var(--table); stroke: var(--edge); } .group { fill: none; stroke: var(--edge); stroke-dasharray: 4 4; }
  .line { fill: none; stroke: var(--ink); stroke-width: 1.3; } .head { fill: var(--ink); }
  text { font: 14px system-ui, "DejaVu Sans", sans-serif; fill: var(--ink); }
  .small { font-size: 12px; fill: var(--soft); } .shape { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; }
"""


class Figure:
    """An SVG in the making; lengths are in pixels, y grows downwards."""

    def __init__(self, width: int, height: int, title: str, description: str):
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' role="img" aria-labelledby="title description">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="description">{escape(description)}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{width}" height="{height}" rx="6"/>',
        ]

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        name = f' class="{kind}"' if kind else ""
        self._parts.append(f'<text{name} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, words: str, *further: str, kind: str = "box"):
        """A box with its name in the middle, and further lines below it in small letters."""
        self._parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"/>')
        first = y + height / 2 + 5 - 8.5 * len(further)
        self.text(x + width / 2, first, words, anchor="middle")
        for number, line in enumerate(further, 1):
            self.text(x + width / 2, first + 17 * number, line, "small", "middle")

    def group(self, x: float, y: float, width: float, height: float) -> None:
        self._parts.append(f'<rect class="group" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>')

    def arrow(self, *points: tuple[float, float], label: str = "", side: float = 8) -> None:
        """A line through the points, with a head at the last one; the label is a shape, beside the last stretch."""
        (x0, y0), (x1, y1) = points[-2:]
        length = max(abs(x1 - x0), abs(y1 - y0))
        dx, dy = (x1 - x0) / length, (y1 - y0) / length
        line = " ".join(f"{x:g},{y:g}" for x, y in (*points[:-1], (x1 - 6 * dx, y1 - 6 * dy)))
        head = ((x1, y1), (x1 - 8 * dx - 4 * dy, y1 - 8 * dy - 4 * dx), (x1 - 8 * dx + 4 * dy, y1 - 8 * dy + 4 * dx))
        self._parts.append(f'<polyline class="line" points="{line}"/>')
        self._parts.append(f'<polygon class="head" points="{" ".join(f"{x:g},{y:g}" for x, y in head)}"/>')
        if label:
            anchor = "end" if side < 0 else "start"
            self.text((x0 + x1) / 2 + side, (y0 + y1) / 2 + 4, label, "shape", anchor)

    def done(self) -> str:
        return "\n".join([*self._parts, "</svg>"]) + "\n"


def draw_block(shapes: Mapping[str, Shape]) -> str:
    """One Transformer block, from top to bottom, as TransformerBlock.call computes it."""
    s = {name: in_letters(shape) for name, shape in shapes.items()}
    figure = Figure(
        760, 900, "One Transformer block, with the shape at each arrow",
        "The states go through query, key and value, the scores with the mask, softmax, the weighted mean of the values"
        " and a dense layer; they are added to the input and normalized. Then two dense layers with gelu between them,"
        " added and normalized again.",
    )  # fmt: skip
    middle, x, width = 345, 225, 240
    figure.group(150, 58, 520, 400)
    figure.text(162, 78, "SelfAttention", "small")
    figure.text(middle, 24, "states of the embeddings or of the block below", anchor="middle")
    figure.arrow((middle, 32), (middle, 94), label=s["sequence_output"])
    for left, name in ((165, "query"), (290, "key"), (415, "value")):
        figure.box(left, 112, 110, 46, name, f"{s['query/kernel']} + {s['query/bias']}")
    figure.arrow((middle, 92), (220, 92), (220, 112))
    figure.arrow((middle, 92), (middle, 112))
    figure.arrow((middle, 92), (470, 92), (470, 112))
    figure.text(535, 132, f"{s['query']} each,", "shape")
    figure.text(535, 150, f"-> {s['split']}", "shape")
    figure.text(535, 166, "in N heads", "small")
    figure.box(165, 196, 235, 46, "query · key / sqrt(H)", "of every pair of positions, + mask")
    figure.arrow((220, 158), (220, 196))
    figure.arrow((345, 158), (345, 196))
    figure.arrow((282, 242), (282, 286), label=s["scores"])
    figure.box(165, 286, 235, 36, "softmax over T")
    figure.arrow((282, 322), (282, 366), label=s["probabilities"])
    figure.box(165, 366, 360, 46, "weights · value", "each position gets a weighted mean of the values")
    figure.arrow((470, 158), (470, 366), label=s["split"])
    figure.arrow((middle, 412), (middle, 484), label=f"{s['contexts']} -> {s['merged']}")
    _halves(figure, s, middle, x, width)
    figure.text(20, 884, _sizes(), "small")
    return figure.done()


def _halves(figure: Figure, s: Mapping[str, str], middle: float, x: float, width: float) -> None:
    """What follows the attention: a dense layer, the addition, the norm; and the feed-forward half."""
    figure.box(x, 484, width, 46, "attention_output", f"{s['attention_output/kernel']} + {s['attention_output/bias']}")
    figure.arrow((middle, 530), (middle, 566), label=s["attention_output"])
    norm = f"LayerNorm, gamma and beta {s['attention_norm/gamma']}"
    figure.box(x, 566, width, 46, "add, then attention_norm", norm)
    figure.arrow((middle, 44), (100, 44), (100, 589), (x, 589))
    figure.text(92, 330, "input", "small", "end")
    figure.arrow((middle, 612), (middle, 656), label=s["attention_norm"])
    figure.box(x, 656, width, 46, "intermediate, gelu", f"{s['intermediate/kernel']} + {s['intermediate/bias']}")
    figure.arrow((middle, 702), (middle, 738), label=s["intermediate"])
    figure.box(x, 738, width, 46, "output", f"{s['output/kernel']} + {s['output/bias']}")
    figure.arrow((middle, 784), (middle, 812), label=s["output"])
    figure.box(x, 812, width, 46, "add, then output_norm", f"LayerNorm, gamma and beta {s['output_norm/gamma']}")
    figure.arrow((middle, 634), (100, 634), (100, 835), (x, 835))
    figure.arrow((x + width, 835), (640, 835), label="")
    figure.text(560, 826, s["output_norm"], "shape", "middle")
    figure.text(648, 840, "the next block")


def draw_head(shapes: Mapping[str, Shape]) -> str:
    """The masked-LM head, beside the embeddings, which share a table with it."""
    s = {name: in_letters(shape) for name, shape in shapes.items()}
    figure = Figure(
        760, 640, "The masked-LM head and the table that it shares with the embeddings",
        "Left: ids select rows of the word embeddings; positions and segments are added, and the blocks follow."
        " Right: the states of masked positions are gathered, transformed, multiplied with all rows of the same table,"
        " and a bias is added; softmax gives the probability of each word.",
    )  # fmt: skip
    figure.text(130, 26, "the encoder, upwards", "small", "middle")
    figure.text(600, 26, "the masked-LM head, downwards", "small", "middle")
    figure.box(30, 40, 200, 46, "the blocks", f"{_base().num_hidden_layers} of them in BERT-Base")
    figure.arrow((230, 63), (480, 63))
    figure.text(355, 54, s["sequence_output"], "shape", "middle")
    figure.arrow((130, 160), (130, 86), label=s["embeddings"])
    tables = [f"{name} {s[name]}" for name in ("position_embeddings", "token_type_embeddings")]
    figure.box(30, 160, 200, 76, "add, then LayerNorm", *tables)
    figure.arrow((130, 306), (130, 236), label=s["embeddings"])
    figure.box(30, 306, 200, 46, "look up rows", "one row for each token")
    figure.arrow((130, 430), (130, 352), label=s["input_ids"])
    figure.text(130, 450, "input_ids of the text", anchor="middle")
    figure.box(480, 40, 240, 46, "gather", "at masked_lm_positions [B, P]")
    figure.arrow((600, 86), (600, 122), label=s["gathered"])
    figure.box(480, 122, 240, 46, "transform, gelu", f"{s['transform/kernel']} + {s['transform/bias']}")
    figure.arrow((600, 168), (600, 204), label=s["transform"])
    figure.box(480, 204, 240, 30, "LayerNorm")
    figure.arrow((600, 234), (600, 306), label=s["LayerNorm"])
    figure.box(480, 306, 240, 46, "dot product with every row", "with word_embeddings, transposed")
    figure.arrow((600, 352), (600, 396), label=s["logits"])
    figure.box(480, 396, 240, 46, "+ output_bias", s["output_bias"])
    figure.arrow((600, 442), (600, 486), label=s["logits"])
    figure.box(480, 486, 240, 36, "softmax over V")
    figure.arrow((600, 522), (600, 566), label=s["logits"])
    figure.text(600, 586, "the probability of each word", anchor="middle")
    figure.box(272, 298, 170, 62, "word_embeddings", f"{s['word_embeddings']}, one table", kind="table")
    figure.arrow((272, 329), (230, 329))
    figure.arrow((442, 329), (480, 329))
    figure.text(20, 624, _sizes(), "small")
    return figure.done()


def _sizes() -> str:
    c = _base()
    return (
        f"B examples, F = T positions, P predictions. BERT-Base: D {c.hidden_size}, N {c.num_attention_heads}, "
        f"H {c.attention_head_size}, I {c.intermediate_size:,}, V {c.vocab_size:,}, {c.num_hidden_layers} blocks."
    )


FIGURES = {"block.svg": draw_block, "masked_lm_head.svg": draw_head}


def main(arguments: Sequence[str]) -> None:
    sys.path.insert(0, str(DOCS.parent))
    shapes = trace()
    if "--write" not in arguments:
        print(*(f"{name:24} {in_letters(shape):16} {[*shape]}" for name, shape in shapes.items()), sep="\n")
        return
    for name, draw in FIGURES.items():
        (DOCS / name).write_text(draw(shapes), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
