"""When the loop does something besides steps: at multiples of an interval, and when a signal requests its end."""

from __future__ import annotations

import math

from absl import logging

from bert_tf2.support import process


class Every:
    """An action that is due at all multiples of `steps`, wherever a training begins; never if `steps` is 0."""

    def __init__(self, steps: int, first: int):
        self._steps = steps
        self._last = first

    @property
    def next(self) -> float:
        return (self._last // self._steps + 1) * self._steps if self._steps else math.inf

    def was_due(self, step: int, in_any_case: bool) -> bool:
        """Whether the action was due at a step that an earlier training reached."""
        return bool(self._steps and step and (in_any_case or step % self._steps == 0))

    def due(self, step: int, in_any_case: bool) -> bool:
        if not self._steps or not (step >= self.next or in_any_case):
            return False
        self._last = step
        return True


class StopRequest:
    """Turns signals that stop a process into a request that the loop polls; a second signal stops the process.

    Python handles a signal when the running graph returns, which happens every few seconds.
    """

    def __enter__(self) -> StopRequest:
        self._request = process.StopRequest()
        self._before = process.handle_signals(self._on_signal)
        return self

    @property
    def signal(self) -> int:
        """The number of the signal that requested the end; 0 if there was none."""
        return self._request.stopped.number if self._request.stopped else 0

    def _on_signal(self, number: int, frame) -> None:
        new = self._request.is_new(number)
        if new:
            logging.info("Stopping; once more stops without saving")
        elif new is False:
            raise process.Stopped(number, "stopped at once; the last checkpoint is what remains")

    def __exit__(self, *exception) -> None:
        process.restore_signals(self._before)
