"""Parsing of JSON texts; every error is a UserError of one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import google_crc32c

from bert_tf2.support import file_kinds
from bert_tf2.support.errors import UserError

_NAMES = {dict: "an object {...}", list: "a list [...]", str: "text", bool: "true or false", type(None): "null"}


def parse(text: str, name: str, kind: type | None = dict) -> Any:
    """Parses a JSON text, which is called `name` in messages."""
    if not text.strip():
        raise UserError(f"{name}: the file is empty; a JSON file is needed")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        if page := file_kinds.recognize(text[: file_kinds.HEAD_BYTES].encode("utf-8", "replace"), name, "JSON"):
            raise UserError(f"{name}: {page}") from error
        where = f"line {error.lineno}, column {error.colno}"
        raise UserError(f"{name}, {where}: not valid JSON ({error.msg}); is the file complete?") from error
    except (RecursionError, ValueError) as error:  # Python limits the number of digits of an integer
        what = "its JSON is nested too deep" if isinstance(error, RecursionError) else "a number has too many digits"
        raise UserError(f"{name}: {what}; is it the right file?") from error
    if kind is not None and not isinstance(content, kind):
        found = _NAMES.get(type(content), "a number")
        raise UserError(f"{name}: {_NAMES[kind]} is needed in this JSON file, not {found}")
    return content


# The key of the checksum in a file that only this project writes.
_CHECKSUM = "crc32c"


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a checksum of all keys and values to an object, with which a changed digit is found."""
    return {**content, _CHECKSUM: f"{google_crc32c.value(json.dumps(content, sort_keys=True).encode()):08x}"}


def without_checksum(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns an object without its checksum; None if the rest does not match it."""
    rest = {key: value for key, value in content.items() if key != _CHECKSUM}
    return rest if with_checksum(rest)[_CHECKSUM] == content.get(_CHECKSUM) else None
