"""explore.py --write: one HTML file with a sentence worked through, which needs no server and no internet.

It holds every answer that the view of the sentence asks for, where `api` of page/app.js finds it.
"""

from __future__ import annotations

import base64
import itertools
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from bert_tf2.explorer import code_lines, masked_words, sentence
from bert_tf2.explorer.opened import Explorer, Handler, to_json
from bert_tf2.support import files

EXAMPLE = "The capital of France is [MASK]."
EXAMPLE_WITHOUT_BLANK = "The capital of France is Paris."
_MODULES = "bert_tf2/"  # stands for the folder of the modules, which have no address in a single file


def write_page(path: str, explorer: Explorer, page: pathlib.Path) -> None:
    """Writes the HTML file for the sentence in the explorer's options; `page`: the folder of the page's files."""
    model = explorer.describe()
    texts = model["texts"]
    without_blank = masked_words.without_head(explorer.bert.model)
    texts["text"] = texts["text"] or (EXAMPLE_WITHOUT_BLANK if without_blank else EXAMPLE)
    model["path"] = os.path.basename(os.path.normpath(model["path"]))  # where it lies is nobody's business
    model.update(written=True, compare_with=None)
    handlers = {**sentence.routes(explorer), **code_lines.routes(explorer)}
    answers = {_key("/api/model", {}): model}
    answers |= {_key(name, arguments): handlers[name](arguments) for name, arguments in _requests(model, handlers)}
    files.write_text(path, _html(page, answers))


def _requests(model: dict[str, Any], handlers: dict[str, Handler]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All that the view of the sentence may ask: path and arguments."""
    texts, config = model["texts"], model["config"]
    layers, heads = range(config["num_hidden_layers"]), range(config["num_attention_heads"])
    about = {"text": texts["text"], "text_b": texts["text_b"], "padding": 0}
    yield "/api/sentence", about
    tokens = range(len(handlers["/api/sentence"](about)["tokens"]))
    yield "/api/maps", about
    yield "/api/maps", {**about, "all": 1}
    for layer in layers:
        yield from (("/api/attention", {**about, "layer": layer, "head": head}) for head in heads)
        yield from (("/api/block", {**about, "layer": layer, "token": token}) for token in tokens)
    for token in tokens:
        yield "/api/embeddings", {**about, "token": token}
        if "masked_lm" in model["heads"]:
            yield "/api/words", {**about, "token": token}
    yield "/api/outputs", about
    if texts["other_text"]:
        pair = {**about, "other_text": texts["other_text"]}
        yield "/api/pair", pair
        each = itertools.product(layers, heads)
        yield from (("/api/pair_attention", {**pair, "layer": layer, "head": head}) for layer, head in each)
    yield from (("/api/source", {"key": key}) for key in code_lines.PLACES)


def _key(path: str, arguments: dict[str, Any]) -> str:
    """As `answerKey` of page/app.js makes it."""
    return f"{path} {to_json(dict(sorted(arguments.items())))}"


def _html(page: pathlib.Path, answers: dict[str, Any]) -> str:
    imports = {}
    for path in sorted(page.glob("*.js")):
        # Imports of "./name.js" become names of the import map.
        text = re.sub(r"""(from |import\()(["'`])\./""", rf"\1\2{_MODULES}", path.read_text(encoding="utf-8"))
        encoded = base64.b64encode(text.encode("utf-8")).decode("ascii")
        imports[f"{_MODULES}{path.name}"] = f"data:text/javascript;base64,{encoded}"
    style = (page / "style.css").read_text(encoding="utf-8")
    within_script = to_json(answers).replace("<", "\\u003c")  # nothing ends the element around it
    parts = {
        '<link rel="icon" href="icon.svg" type="image/svg+xml">': "",
        '<link rel="stylesheet" href="style.css">': f"<style>\n{style}</style>",
        '<script type="module" src="app.js"></script>': (
            f'<script type="application/json" id="answers">{within_script}</script>\n'
            f'  <script type="importmap">{to_json({"imports": imports})}</script>\n'
            f'  <script type="module">import "{_MODULES}app.js";</script>'
        ),
    }
    text = (page / "index.html").read_text(encoding="utf-8")
    for tag, replacement in parts.items():
        text = text.replace(tag, replacement)
    return text
