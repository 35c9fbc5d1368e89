"""A worker process of Beam's DirectRunner: `python -m bert_tf2.pretraining.beam_worker PID_OF_THE_LAUNCHER [--quiet]`.

It is Beam's own worker, which with --quiet prints nothing, and which ends with its launcher without leaving partial
files.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from bert_tf2.support import outputs

_SECONDS_BETWEEN_LOOKS = 0.5


def main() -> None:
    """Runs Beam's worker. The launcher gets its log through a connection, and the reasons of failures as files."""
    launcher, *quiet = sys.argv[1:]
    del sys.argv[1:]
    threading.Thread(target=_end_with, args=(int(launcher),), daemon=True).start()
    if quiet:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)

    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


def _end_with(launcher: int) -> None:
    while True:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        try:
            os.kill(launcher, 0)
        except ProcessLookupError:
            outputs.remove_partial()  # a file that is begun right now stays, until the same command runs again
            os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
