"""Figures: what all plots share. matplotlib draws them; it is an extra, imported only when something is drawn.

No window is opened: figures are made without pyplot, which would look for a screen.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import WrongSetting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("png", "svg", "pdf")


def check_name(flag: str, path: str) -> None:
    """Raises WrongSetting if the suffix of `path`, the value of `flag`, is none of KINDS."""
    if _kind(path) not in KINDS:
        raise WrongSetting(f"{flag}={path}: give a name that ends in .png, .svg or .pdf")


@contextlib.contextmanager
def drawing(path: str, width: float, height: float) -> Iterator[Figure]:
    """Yields an empty figure of this size in inches, and writes it when the context ends without an exception.

    The suffix of `path` decides the kind of file. Dollar signs in texts are dollar signs, and the user's matplotlibrc
    does not count.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(f"{path} needs matplotlib, which is not installed: pip install matplotlib") from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["text.parse_math"] = False
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        with files.complete_or_absent(path) as (beside,), files.open_binary(beside, "wb") as stream:
            figure.savefig(stream, format=_kind(path), dpi=120)


def _kind(path: str) -> str:
    return os.path.splitext(path)[1].lower().removeprefix(".")
