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
    """Checks that a call raises a UserError of one line that has all these words, between blanks; returns the line."""
    message = message_of(call, *arguments, **named)
    assert [word for word in words.split() if word not in message] == [], message
    return message
