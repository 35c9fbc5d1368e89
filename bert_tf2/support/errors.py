"""The one exception that means: the user can put this right; and how its texts list things."""

from collections.abc import Sequence


class UserError(Exception):
    """Something the user gave is wrong.

    Its text is the single line that a script prints before it exits with status 1, so it says what is wrong, in which
    file and row (or with which flag), and what to do about it. Scripts show no traceback for it; every other exception
    is a bug of ours and keeps its traceback.
    """

    # Keras adds the arguments of the call to the text of what a layer raises, and tf.function the source lines. With
    # these attributes they leave the exception as it is; a version that does not know them would lengthen it again.
    _keras_call_info_injected = True
    ag_pass_through = True


def and_more(items: Sequence[object], most: int = 20, separator: str = ", ") -> str:
    """The items in words, for a message: the first `most` of them, and how many there are beyond these."""
    shown = separator.join(str(item) for item in items[:most])
    return f"{shown}{separator.rstrip(' ,')} and {len(items) - most} more" if len(items) > most else shown
