"""Reading the arguments of a request, whose mistakes are told in one sentence."""

from __future__ import annotations

import re
from typing import Any

from bert_tf2.support.errors import UserError


def text(arguments: dict[str, Any], name: str, default: str = "") -> str:
    """A string. Raises UserError for anything else."""
    value = arguments.get(name, default)
    if not isinstance(value, str):
        raise UserError(f"{name} must be a text, not {value!r:.60}")
    return value


def whole_number(arguments: dict[str, Any], name: str, low: int, high: int, default: int | None = None) -> int:
    """A whole number from low to high, both included; also as text, as it stands in an address. Raises UserError."""
    value = arguments.get(name, default)
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,9}\s*", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise UserError(f"{name} must be a whole number from {low} to {high}, not {value!r:.60}")
    return value
