"""Reads the local variables of functions while they run, so that the model's code needs nothing for the explorer.

    with seen(modeling.attention_scores) as calls:
        block(states, mask_scores)
    calls[modeling.attention_scores][0].values["products"]

Works for functions that run in this thread and outside a graph.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Call(NamedTuple):
    """A call of a function: its arguments and local variables when it returned, and what it returned."""

    values: dict[str, Any]
    result: Any


@contextlib.contextmanager
def seen(*functions: Callable) -> Iterator[dict[Callable, list[Call]]]:
    """While the block runs, collects the calls of each of these functions, in the order in which they return."""
    calls: dict[Callable, list[Call]] = {function: [] for function in functions}
    by_code = {inspect.unwrap(function).__code__: found for function, found in calls.items()}

    def look(frame, event: str, result: Any) -> None:
        if event == "return" and (found := by_code.get(frame.f_code)) is not None:
            found.append(Call(dict(frame.f_locals), result))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield calls
    finally:
        sys.setprofile(before)
