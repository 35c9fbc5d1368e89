"""The one exception that means: the user can put this right."""


class UserError(Exception):
    """Something the user gave is wrong.

    Its text is the single line that a script prints before it exits with status 1, so it says what is wrong, in which
    file and row (or with which flag), and what to do about it. Scripts show no traceback for it; every other exception
    is a bug of ours and keeps its traceback.
    """
