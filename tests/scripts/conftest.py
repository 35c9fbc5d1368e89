"""The files that the tests of wrong command lines share."""

from bad_calls import folder

__all__ = ["folder"]
