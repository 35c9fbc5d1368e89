"""What explore.py writes instead of opening the page: --write and --write_projector.

--write makes one HTML file with a sentence worked through, which needs no server and no internet. It holds the page's
own modules and style, and every answer that the view of the sentence asks for; the function `api` of page/app.js finds
them by path and arguments.

--write_projector makes files of TensorBoard's projector for the embedding tables: a plot in which one searches words
and their neighbors. `projector_config.pbtxt` names the others: for each table its numbers, and a line of text for each
row. `tensorboard --logdir=FOLDER` shows them under PROJECTOR.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from google.protobuf import text_format
from tensorboard.plugins.projector import projector_config_pb2

from bert_tf2.commands.loading import Bert
from bert_tf2.explorer import code_lines, masked_words, sentence
from bert_tf2.explorer.opened import Explorer, Handler
from bert_tf2.explorer.options import ExplorerOptions
from bert_tf2.support import console, files
from bert_tf2.support.errors import UserError
from bert_tf2.weights import names

EXAMPLE = "The capital of France is [MASK]."
EXAMPLE_WITHOUT_BLANK = "The capital of France is Paris."
_MODULES = "bert_tf2/"  # stands for the folder of the modules, which have no address in a single file

CONFIG_FILE = "projector_config.pbtxt"
_OURS = "# Written by explore.py --write_projector of bert_tf2.\n"
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")


def run(options: ExplorerOptions, page: pathlib.Path) -> None:
    """Writes what the options ask for; `page` is the folder with the files of the page. See the two functions."""
    explorer = Explorer(options)
    look = None
    if options.write:
        write_page(options.write, explorer, page)
    if options.write_projector:
        write_projector(options.write_projector, explorer.bert)
        look = f"{console.python()} -m tensorboard.main --logdir={shlex.quote(options.write_projector)}"
    console.summary([path for path in (options.write, options.write_projector) if path], next_command=look)


def _begins(path: str, start: bytes) -> bool:
    """Whether a file is of the kind that may be replaced; of another it is most likely a slip of the keys."""
    with files.open_binary(path) as stream:
        return stream.read(len(start)).lower() == start.lower()


def write_page(path: str, explorer: Explorer, page: pathlib.Path) -> None:
    """Writes the file.

    Args:
      path: of the HTML file; one that is there is replaced.
      explorer: the model, and the sentence in its options.
      page: the folder with the files of the page.

    Raises:
      UserError: the sentence cannot be read, or the file cannot be written, or is there and no HTML page.
    """
    model = explorer.describe()
    texts = model["texts"]
    texts["text"] = texts["text"] or (
        EXAMPLE_WITHOUT_BLANK if masked_words.without_head(explorer.bert.model) else EXAMPLE
    )
    model["path"] = os.path.basename(os.path.normpath(model["path"]))  # where it lies is nobody's business
    model.update(written=True, compare_with=None, training_dirs=[])
    is_file = files.exists(path) if files.is_remote(path) else os.path.isfile(path)  # no pipe, which would block
    if is_file and not _begins(path, b"<!doctype html>"):
        raise UserError(f"--write={path}: exists and is not an HTML page; give another name, or remove it")
    answers = {_key("/api/model", {}): model}
    handlers = {**sentence.routes(explorer), **code_lines.routes(explorer)}
    try:
        for name, arguments in _requests(model, handlers):
            answers[_key(name, arguments)] = handlers[name](arguments)
    except UserError as error:
        raise UserError(f"--text, --text_b, --other_text: {error}") from None
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
        yield from (
            ("/api/pair_attention", {**pair, "layer": layer, "head": head}) for layer in layers for head in heads
        )
    yield from (("/api/source", {"key": key}) for key in code_lines.PLACES)


def _key(path: str, arguments: dict[str, Any]) -> str:
    """As `answerKey` of page/app.js makes it."""
    return f"{path} {_json(dict(sorted(arguments.items())))}"


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _html(page: pathlib.Path, answers: dict[str, Any]) -> str:
    imports = {}
    for path in sorted(page.glob("*.js")):
        # Imports of "./name.js" become names of the import map.
        text = re.sub(r"""(from |import\()(["'`])\./""", rf"\1\2{_MODULES}", path.read_text(encoding="utf-8"))
        encoded = base64.b64encode(text.encode("utf-8")).decode("ascii")
        imports[f"{_MODULES}{path.name}"] = f"data:text/javascript;base64,{encoded}"
    style = (page / "style.css").read_text(encoding="utf-8")
    within_script = _json(answers).replace("<", "\\u003c")  # nothing ends the element around it
    parts = {
        '<link rel="icon" href="icon.svg" type="image/svg+xml">': "",
        '<link rel="stylesheet" href="style.css">': f"<style>\n{style}</style>",
        '<script type="module" src="app.js"></script>': (
            f'<script type="application/json" id="answers">{within_script}</script>\n'
            f'  <script type="importmap">{_json({"imports": imports})}</script>\n'
            f'  <script type="module">import "{_MODULES}app.js";</script>'
        ),
    }
    text = (page / "index.html").read_text(encoding="utf-8")
    for tag, replacement in parts.items():
        if tag not in text:
            raise LookupError(f"{tag} is not in index.html")
        text = text.replace(tag, replacement)
    return text


def write_projector(folder: str, bert: Bert) -> list[str]:
    """Writes the word, position and segment embeddings of a model; replaces files that an earlier call wrote.

    Returns:
      The paths of the files, the configuration last.

    Raises:
      UserError: the folder holds files of these names that this function did not write, or cannot be written to.
    """
    variables = names.tf1_variables(bert.model)
    tables = {
        name: variables[f"bert/embeddings/{name}"].numpy() for name in _TABLES if f"bert/embeddings/{name}" in variables
    }
    content, config = projector_files(tables, bert.tokenizer.inv_vocab)
    content[CONFIG_FILE] = (_OURS + text_format.MessageToString(config, as_utf8=True)).encode("utf-8")
    there = [name for name in files.list_directory(folder) if name in content]
    if there and not (CONFIG_FILE in there and _begins(os.path.join(folder, CONFIG_FILE), _OURS.encode())):
        raise UserError(
            f"{os.path.join(folder, there[0])}: exists, and this program did not write it; give --write_projector"
            " another folder, or remove it"
        )
    paths = [os.path.join(folder, name) for name in content]
    # The configuration is last: where it is, the files that it names are complete.
    with files.complete_or_absent(*paths) as beside:
        for path, data in zip(beside, content.values(), strict=True):
            with files.open_binary(path, "wb") as stream:
                stream.write(data)
    return paths


def projector_files(
    tables: Mapping[str, np.ndarray], words: Mapping[int, str]
) -> tuple[dict[str, bytes], projector_config_pb2.ProjectorConfig]:
    """The name and content of each file but the configuration, and the configuration.

    Args:
      tables: name -> float32 [rows, columns].
      words: id -> word, for the rows of "word_embeddings".
    """
    content: dict[str, bytes] = {}
    config = projector_config_pb2.ProjectorConfig()
    for name, table in tables.items():
        data, ending = _numbers(table)
        lines = [*_lines(name, len(table), words)]
        content[f"{name}.{ending}"] = data
        content[f"{name}_metadata.tsv"] = "".join(f"{line}\n" for line in lines).encode("utf-8")
        config.embeddings.add(
            tensor_name=name,
            tensor_shape=table.shape,
            tensor_path=f"{name}.{ending}",
            metadata_path=f"{name}_metadata.tsv",
        )
    return content, config


def _numbers(table: np.ndarray) -> tuple[bytes, str]:
    """The content of a file with a table, and the end of its name.

    TensorBoard reads lines of text until one is not UTF-8, and then takes the file for float32 numbers. Those of a
    table are never text, except if it is tiny or was never trained.
    """
    data = table.astype("<f4").tobytes()
    try:
        data.partition(b"\n")[0].decode("utf-8")
    except UnicodeDecodeError:
        return data, "bytes"
    rows = ("\t".join(repr(float(number)) for number in row) for row in table)
    return "".join(f"{row}\n" for row in rows).encode("ascii"), "tsv"


def _lines(name: str, count: int, words: Mapping[int, str]) -> Iterable[str]:
    """The text of each row. Several columns need a line with their names, one column must not have it."""
    if name == "word_embeddings":
        yield "word\tid\tpart"
        for index in range(count):
            word = words.get(index)
            yield f"{'(no entry)' if word is None else visible(word)}\t{index}\t{_part(word)}"
    else:
        yield from (str(index) for index in range(count))


def _part(word: str | None) -> str:
    """By which the projector can color the words."""
    if word is None or (word.startswith("[") and word.endswith("]") and len(word) > 2):
        return "special"
    return "continues a word" if word.startswith("##") else "begins a word"


def visible(word: str) -> str:
    """A word without what would end a column or a line: control characters and odd blanks become escapes, as \\t."""
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in word)
    return shown if shown.strip() else repr(shown)
