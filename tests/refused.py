"""The error message of a call."""

from __future__ import annotations

import pytest

from bert_tf2.support.errors import UserError


def message_of(call, *arguments, **named) -> str:
    """Returns the message of the UserError that a call raises, which must be a single line."""
    with pytest.raises(UserError) as caught:
        call(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refuses(words: str, call, *arguments, **named) -> str:
    """Checks that a call raises a UserError of one line that has all these words, between blanks; returns the line.

    A flag is found with or without its dashes, which calls from Python leave out.
    """
    message = message_of(call, *arguments, **named)
    bare = message.replace("--", "")
    assert [word for word in words.split() if word.replace("--", "") not in bare] == [], message
    return message
