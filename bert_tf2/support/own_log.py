"""A filter for what one thread logs; loggers, their levels and what other threads log stay as they are."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def filtered(logger: logging.Logger, keep: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Within it, only those records of this thread are logged for which `keep` returns True."""
    this = threading.get_ident()

    def decide(record: logging.LogRecord) -> bool:
        return record.thread != this or keep(record)

    logger.addFilter(decide)
    try:
        yield
    finally:
        logger.removeFilter(decide)
