"""Signals, standard output and children of a script, and the import of TensorFlow. It imports only fast modules."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from bert_tf2.support import xla_flags
from bert_tf2.support.errors import UserError

_WORDS = {"SIGINT": "interrupted", "SIGTERM": "stopped by SIGTERM", "SIGHUP": "stopped, the terminal was closed"}
_STOPPING = {getattr(signal, name): words for name, words in _WORDS.items() if hasattr(signal, name)}

SECONDS_TO_END = 5.0
"""The time that a process has to end after a request."""

is_script = False
"""Whether this process runs a script, which may change settings of the whole process. A library call may not."""

children: list[subprocess.Popen] = []
"""The processes that a signal ends before it ends the script."""

tidying: list[Callable[[], None]] = []
"""Functions that remove partial files when a signal ends a script. They run at any point, so they must not wait."""


class Stopped(KeyboardInterrupt):
    """A signal requested that this process stop; `status` is 128 + number, as shells and schedulers expect."""

    def __init__(self, number: int, message: str):
        super().__init__(message)
        self.status = 128 + number


def begin() -> None:
    """Makes a signal end children, tidy up, print one line and exit with status 128 + number, from now on.

    The handler raises nothing, because an exception can be lost: Python drops it in a destructor, TensorFlow prints it
    in a callback, and the script would continue. Standard output becomes UTF-8 in any locale, like every file.
    """
    global is_script
    is_script = True
    handle_signals(_end)
    with contextlib.suppress(AttributeError):  # standard output is closed, or not a stream of a process
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # for names of files that are not UTF-8


def _end(number: int, frame: object) -> None:
    handle_signals(signal.SIG_IGN)  # `timeout` and Ctrl-C in a shell send several signals
    for tidy in (functools.partial(end_processes, children), *tidying):
        with contextlib.suppress(Exception):
            tidy()
    try:
        os.write(
            sys.stderr.fileno(), f"{script_name()}: error: {_STOPPING[number]}\n".encode(errors="backslashreplace")
        )
    finally:
        os._exit(128 + number)  # without unwinding the stack or flushing streams


def handle_signals(handler: Callable | signal.Handlers) -> dict[int, object]:
    """Sets a handler for the signals that stop a process; returns the previous handlers for `restore_signals`.

    A signal that is ignored stays ignored, because `nohup` and `command &` rely on it. Only the main thread can set
    handlers; in other threads nothing changes.
    """
    before: dict[int, object] = {}
    for number in _STOPPING if threading.current_thread() is threading.main_thread() else ():
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    return before


def restore_signals(before: dict[int, object]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def signals_at_once(handler: Callable[[int], None]) -> Iterator[None]:
    """A context that calls `handler`, in a thread, with the number of each signal that has a handler of Python.

    Python's own handlers run only when a call of TensorFlow returns, which may never happen. Use it in the main thread.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def watch() -> None:
        while number := os.read(reading, 1):
            handler(number[0])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)
        thread.join()
        os.close(reading)


def script_name() -> str:
    return os.path.basename(sys.argv[0])


def end_processes(processes: Sequence[subprocess.Popen]) -> None:
    """Ends processes: requests their end, waits for a while, and kills the processes that are left."""
    for child in processes:
        child.terminate()
    for child in processes:
        # Every wait has a limit, because a signal may have interrupted another wait, which holds a lock.
        try:
            child.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(SECONDS_TO_END)


def load_tensorflow(xla_cache_dir: str | None = None):
    """Imports TensorFlow and returns it; TF_CPP_MIN_LOG_LEVEL is 3 unless it is set.

    Before that, `xla_flags.prepare(xla_cache_dir)` sets how XLA compiles for a GPU.

    TensorFlow writes some lines to standard error before it reads the variable. Nothing hides them: standard error
    belongs to the whole process, to other threads and to the processes that they start. The variable stays set in
    scripts, for their processes.
    """
    check_backend()
    xla_flags.prepare(xla_cache_dir)
    is_new = "TF_CPP_MIN_LOG_LEVEL" not in os.environ
    # TensorFlow logs a missing TPU or a lost worker as an error and also raises; the log adds nothing.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import tensorflow as tf
    finally:
        if is_new and not is_script:
            os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
    return tf


def load_tensorflow_text(purpose: str):
    """Imports tensorflow-text for its operations, and returns it; `purpose` begins the message.

    Raises:
      UserError: tensorflow-text is not installed, as on Windows, or is made for another version of TensorFlow.
    """
    tensorflow = load_tensorflow()
    try:
        import tensorflow_text
    except ImportError as error:
        reason, cure, cause = error, "install it with `pip install tensorflow-text`", error
    except tensorflow.errors.NotFoundError as error:  # a symbol is not found
        reason, cause = f"it is not made for TensorFlow {tensorflow.__version__}", error
        cure = "install both of one version, with `pip install tensorflow tensorflow-text`"
    else:
        return tensorflow_text
    raise UserError(f"{purpose} needs tensorflow-text, which cannot be loaded ({reason}); {cure}") from cause


def check_backend() -> None:
    """Raises UserError if Keras runs on another backend than TensorFlow, or would after its import."""
    keras = sys.modules.get("keras")
    other = keras.config.backend() if keras else os.environ.get("KERAS_BACKEND") or "tensorflow"
    if other != "tensorflow":
        raise UserError(
            f"Keras runs on {other}, and bert_tf2 needs Keras on TensorFlow: set KERAS_BACKEND=tensorflow before Keras"
            " is imported, in the shell or in os.environ"
        )


@functools.cache
def _first_process() -> int:
    return os.getpid()


def check_process() -> None:
    """Raises UserError where TensorFlow does not work: in a fork of the first process that calls this, and in a graph.

    A fork would wait for TensorFlow's threads. A graph of TensorFlow 1 would have variables without values.
    """
    if _first_process() != os.getpid():
        raise UserError(
            "this process is a fork of a process that has used TensorFlow, so TensorFlow does not work here; start it"
            ' with multiprocessing.get_context("spawn"), or use TensorFlow only after the fork'
        )
    tf = sys.modules.get("tensorflow")
    if tf and not (tf.executing_eagerly() or tf.compat.v1.executing_eagerly_outside_functions()):
        raise UserError(
            "TensorFlow builds a graph here, as TensorFlow 1 does; leave out tf.disable_v2_behavior(),"
            " tf.disable_eager_execution() or tf.Graph() (docs/migrating.md, Your own code)"
        )
