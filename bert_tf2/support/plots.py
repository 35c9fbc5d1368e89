"""Figures: what all plots share. matplotlib draws them; it is an extra, imported only when something is drawn.

    plots.check_name("--plot", path)                # a suffix that cannot be written, before the work
    plots.require("--plot")                         # matplotlib is missing, before the work
    with plots.drawing(path, 8, 6) as figure:
        figure.subplots().plot(steps, losses)

No window is opened: figures are made without pyplot, which would look for a screen.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from absl import logging

from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import WrongSetting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("png", "svg", "pdf")
# Eight colors that people with any color vision tell apart: Okabe and Ito, "Color Universal Design" (2008).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")

_DOTS_PER_INCH = 120
# Behind matplotlib's own font, for what it lacks; those of them that are installed.
_FURTHER_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "Microsoft YaHei"),
    *("PingFang SC", "Hiragino Sans", "Noto Sans Devanagari", "Noto Sans Arabic", "Arial Unicode MS"),
)


def check_name(flag: str, path: str) -> None:
    """Raises WrongSetting if the suffix of `path`, the value of `flag`, is none of KINDS."""
    if _kind(path) not in KINDS:
        raise WrongSetting(f"{flag}={path}: give a name that ends in .png, .svg or .pdf")


def is_installed() -> bool:
    """Whether matplotlib can be imported."""
    return importlib.util.find_spec("matplotlib") is not None


def require(flag: str) -> None:
    """Raises UserError if matplotlib, which `flag` needs, is not installed or cannot be loaded."""
    if not is_installed():
        raise UserError(f"{flag} needs matplotlib, which is not installed: pip install matplotlib")
    with _explained(flag):
        import matplotlib  # noqa: F401


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Converts matplotlib's exceptions, most of which come from the settings of the user or of the machine."""
    try:
        yield
    except (UserError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{what}: matplotlib cannot draw: {reason}") from error


@contextlib.contextmanager
def drawing(path: str, width: float, height: float) -> Iterator[Figure]:
    """Yields an empty figure of this size in inches, and writes it when the context ends without an exception.

    The suffix of `path` decides the kind of file. The same figure gives the same bytes with the same matplotlib. Dollar
    signs in texts are dollar signs, and the user's matplotlibrc does not count.

    Raises:
      UserError: the file cannot be written, or matplotlib cannot draw. It is then absent, or as it was.
    """
    with _explained(path):
        import matplotlib
        from matplotlib import font_manager
        from matplotlib.figure import Figure

    fonts = {font.name for font in font_manager.fontManager.ttflist}
    settings = {
        "font.family": ["DejaVu Sans", *(name for name in _FURTHER_FONTS if name in fonts)],
        "text.parse_math": False,
        "svg.hashsalt": "bert_tf2",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": matplotlib.cycler(color=COLORS),
    }
    with matplotlib.rc_context(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        without_date = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(_kind(path))
        with files.complete_or_absent(path) as (beside,), files.open_binary(beside, "wb") as stream, _explained(path):
            figure.savefig(stream, format=_kind(path), dpi=_DOTS_PER_INCH, metadata=without_date)
    _tell(caught, path)


def _kind(path: str) -> str:
    return os.path.splitext(path)[1].lower().removeprefix(".")


def _tell(caught: list[warnings.WarningMessage], path: str) -> None:
    """Logs what matplotlib warned of: once, however many characters no font has."""
    messages = dict.fromkeys(" ".join(str(each.message).split()) for each in caught)
    missing = [message for message in messages if re.match(r"Glyph \d+ .* missing from", message)]
    if missing:
        logging.warning(
            "%s: no installed font has %d of the characters, which are drawn as boxes; install one that has them, for"
            " example Noto Sans CJK for Chinese", path, len(missing),
        )  # fmt: skip
    for message in messages:
        if message not in missing:
            logging.debug("%s: %s", path, message)
