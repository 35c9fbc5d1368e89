"""A worker process of Beam's DirectRunner: `python -m bert_tf2.pretraining.beam_worker PID_OF_THE_LAUNCHER`.

It is Beam's own worker, which prints nothing, and which ends with its launcher without leaving partial files.
"""

from __future__ import annotations

import logging as python_logging
import os
import signal
import sys
import threading
import time

from bert_tf2.support import outputs

_SECONDS_BETWEEN_LOOKS = 0.5


def main() -> None:
    """Runs Beam's worker. The launcher gets its log through a connection, so nothing goes to standard error."""
    launcher = int(sys.argv.pop())
    threading.Thread(target=_end_with, args=(launcher,), daemon=True).start()
    python_logging.getLogger().addHandler(python_logging.NullHandler())  # otherwise Python adds one for stderr

    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


def _end_with(launcher: int) -> None:
    while True:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        try:
            os.kill(launcher, 0)
        except ProcessLookupError:
            outputs.remove_partial()
            os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
