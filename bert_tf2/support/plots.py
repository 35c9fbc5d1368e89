"""Figures of matplotlib, which is an extra and imported only here. pyplot is not used, because it searches a screen."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bert_tf2.support import files
from bert_tf2.support.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The settings of matplotlib belong to the process, so threads would restore each other's settings.
_ONE_AT_A_TIME = threading.Lock()


@contextlib.contextmanager
def drawing(path: str, width: float, height: float) -> Iterator[Figure]:
    """Yields an empty figure of this size in inches, then writes it in the format of its suffix, unless drawing fails.

    Dollar signs in texts do not begin formulas, and the user's matplotlibrc is not used.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(f"{path} needs matplotlib, which is not installed: pip install matplotlib") from error
    with _ONE_AT_A_TIME, matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["text.parse_math"] = False
        figure, kind = Figure(figsize=(width, height), layout="constrained"), os.path.splitext(path)[1][1:].lower()
        if kind not in figure.canvas.get_supported_filetypes():
            raise UserError(f"{path}: give a name that ends in .png, .svg or .pdf")
        yield figure
        with files.complete_or_absent(path) as (beside,), files.open_binary(beside, "wb") as stream:
            figure.savefig(stream, format=kind, dpi=120)
