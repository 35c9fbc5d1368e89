"""The exception for errors that the user can fix, and a helper for lists in messages."""

from collections.abc import Sequence


class UserError(Exception):
    """The user's input is wrong, and the user can fix it.

    The message is the single line that a script prints before it exits with `status`. It states what is wrong, in which
    file and row (or with which flag), and what to do. Scripts show no traceback for it; every other exception is a bug
    and keeps its traceback.

    Docstrings do not repeat what raises it:

    | who | when |
    |-|-|
    | takes settings or arguments | one is out of range, contradicts another, or does not fit the model or the files |
    | reads a file | it is missing, damaged, of another kind, says what is not allowed there, or has changed since |
    | opens weights | variables are missing, or have other shapes, not finite values or another vocabulary than stated |
    | writes a file | it cannot be written, or would take the place of an input or of what belongs to another run |
    | uses a device, worker or library | it is missing, cannot be reached, was started otherwise, or has ended |

    Attributes:
      status: the exit status of the script; 2 for a wrong command line.
    """

    status = 1

    # Keras appends the arguments of the call to the message of an exception from a layer, and tf.function the source
    # lines. With these attributes, they leave the exception unchanged.
    _keras_call_info_injected = True
    ag_pass_through = True


def and_more(items: Sequence[object], most: int = 20, separator: str = ", ") -> str:
    """Formats items for a message: the first `most` of them, and the number of the others."""
    shown = separator.join(str(item) for item in items[:most])
    return f"{shown}{separator.rstrip(' ,')} and {len(items) - most} more" if len(items) > most else shown
