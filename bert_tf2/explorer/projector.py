"""Files of TensorBoard's projector for the embedding tables: a plot in which one searches words and their neighbors.

The folder then holds `projector_config.pbtxt`, which names the others; `tensorboard --logdir=FOLDER` shows them under
PROJECTOR. For each table there are its numbers and one line of text for each row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from google.protobuf import text_format
from tensorboard.plugins.projector import projector_config_pb2

from bert_tf2.commands.loading import Bert
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.weights import names

CONFIG_FILE = "projector_config.pbtxt"
_OURS = "# Written by explore.py --write_projector of bert_tf2.\n"
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")


def write(folder: str, bert: Bert) -> list[str]:
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
    content, config = contents(tables, bert.tokenizer.inv_vocab)
    content[CONFIG_FILE] = (_OURS + text_format.MessageToString(config, as_utf8=True)).encode("utf-8")
    _refuse_foreign(folder, content)
    paths = [os.path.join(folder, name) for name in content]
    # The configuration is last: where it is, the files that it names are complete.
    with files.complete_or_absent(*paths) as beside:
        for path, data in zip(beside, content.values(), strict=True):
            with files.open_binary(path, "wb") as stream:
                stream.write(data)
    return paths


def contents(
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


def _refuse_foreign(folder: str, names_to_write: Sequence[str] | Mapping[str, bytes]) -> None:
    there = [name for name in files.list_directory(folder) if name in names_to_write]
    if not there:
        return
    config = os.path.join(folder, CONFIG_FILE)
    if CONFIG_FILE in there:
        with files.open_binary(config) as stream:
            if stream.read(len(_OURS)) == _OURS.encode():
                return
    raise UserError(
        f"{os.path.join(folder, there[0])}: exists, and this program did not write it; give --write_projector another"
        " folder, or remove it"
    )
