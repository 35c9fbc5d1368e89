"""Sends requests to a served model for some time, and prints throughput and latencies.

    python serving/load_generator.py --connections=8 --duration=30
    python serving/load_generator.py --rate=200 --text_file=lines.txt --grpc

Without --rate each connection sends its next request when the last one is answered: the load adapts to the server, and
the throughput is the maximum for this number of clients (closed loop). With --rate requests are sent at fixed times,
even if the server does not keep up (open loop); a latency counts from the time at which its request was due, so it
includes waiting for a free connection, as for users.

Failed requests are not retried. Requests are sent only to --server.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from client import ServingError, add_connection_arguments, client_of, guess_signature

TEXTS = [
    "The film was fine.",
    "She reads a book in the garden, and nobody knows which one it is.",
    "Trains to the coast leave every hour from platform four, except on Sundays, when the first one leaves at nine.",
    "Is it far?",
    "After the rain had stopped, the children went out to look for worms, and found a key that fitted no door.",
    "No.",
    "The committee will meet again in spring to hear what has become of the plans for a new bridge across the river.",
    "Bread, butter and a glass of milk, please.",
]


class Sample(NamedTuple):
    """One request: its due time and its latency, in seconds, and "OK" or the error."""

    start: float
    latency: float
    code: str


def read_requests(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The inputs of each request, to be sent in turn.

    Raises:
      ServingError: the file cannot be read, or has another format.
    """
    try:
        if arguments.requests_file:
            with open(arguments.requests_file, encoding="utf-8") as stream:
                requests = [json.loads(line) for line in stream if line.strip()]
        else:
            requests = _text_requests(arguments)
    except (OSError, ValueError) as error:
        raise ServingError("INVALID_ARGUMENT", f"no requests: {error}") from error
    if not requests or not all(isinstance(request, dict) and request for request in requests):
        raise ServingError("INVALID_ARGUMENT", "no requests: the file is empty, or not all its lines are JSON objects")
    return requests


def _text_requests(arguments: argparse.Namespace) -> list[dict[str, list[str]]]:
    """Requests of --batch texts, with one column for each of --fields."""
    lines = TEXTS
    if arguments.text_file:
        with open(arguments.text_file, encoding="utf-8") as stream:
            lines = [line.rstrip("\n") for line in stream if line.strip()]
    fields = arguments.fields.split(",")
    rows = [line.split("\t") if len(fields) > 1 and arguments.text_file else [line] * len(fields) for line in lines]
    if any(len(row) != len(fields) for row in rows):
        raise ValueError(f"a line of {arguments.text_file} has not the columns {arguments.fields}")
    # Enough requests for every text to be the first of a batch once.
    starts = range(0, len(rows) * arguments.batch, arguments.batch)
    batches = [[rows[(start + place) % len(rows)] for place in range(arguments.batch)] for start in starts]
    return [{field: [row[column] for row in batch] for column, field in enumerate(fields)} for batch in batches]


def send(
    send_one: Callable[[], None],
    due: Iterator[float] | None,
    end: float,
    samples: list[Sample],
    lock: threading.Lock,
) -> None:
    """Runs one connection until `end`; `due` are the times of an open loop, shared by all connections."""
    while True:
        start = time.monotonic()
        if due is not None:
            with lock:
                start = next(due)
            time.sleep(max(0.0, min(start, end) - time.monotonic()))
        if start >= end:
            return
        if time.monotonic() >= end:  # count the others that were due, since omitting them would hide an overload
            samples.append(Sample(start, 0.0, "NOT_SENT"))
            continue
        code = "OK"
        try:
            send_one()
        except ServingError as error:
            code = error.code
        samples.append(Sample(start, time.monotonic() - start, code))  # appending is thread-safe


def run(arguments: argparse.Namespace, requests: Sequence[dict[str, Any]]) -> tuple[list[Sample], float]:
    """Sends for --warmup and --duration; returns the samples due after the warm-up, and the seconds until they were
    answered."""
    signature = arguments.signature or guess_signature(list(requests[0]))
    clients = [client_of(arguments) for _ in range(arguments.connections)]
    turns, lock, samples = itertools.cycle(requests), threading.Lock(), []

    def send_one_by(client) -> Callable[[], None]:
        def send_one() -> None:
            with lock:
                inputs = next(turns)
            client.predict(inputs, signature)

        return send_one

    begin = time.monotonic()
    end = begin + arguments.warmup + arguments.duration
    due = (begin + number / arguments.rate for number in itertools.count()) if arguments.rate else None
    threads = [
        threading.Thread(target=send, args=(send_one_by(client), due, end, samples, lock), daemon=True)
        for client in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        client.close()
    begin += arguments.warmup
    samples = [sample for sample in samples if sample.start >= begin]
    return samples, max([arguments.duration, *(sample.start + sample.latency - begin for sample in samples)])


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of the sorted `values` that is not below at least `percent` percent of them."""
    return values[max(0, math.ceil(len(values) * percent / 100) - 1)]


def report(samples: Sequence[Sample], seconds: float, batch: int) -> str:
    """The report to print; latencies are those of answered requests."""
    good = sorted(sample.latency for sample in samples if sample.code == "OK")
    errors = collections.Counter(sample.code for sample in samples if sample.code != "OK")
    rate = len(good) / seconds
    lines = [
        f"requests    {len(samples):,}, of which {sum(errors.values()):,} with an error",
        f"throughput  {rate:,.1f} requests/s, {rate * batch:,.1f} examples/s",
    ]
    if good:
        shown = [f"p{percent} {percentile(good, percent) * 1000:.2f} ms" for percent in (50, 95, 99)]
        lines.append("latency     " + ", ".join([*shown, f"longest {good[-1] * 1000:.2f} ms"]))
    lines += [f"error       {code}: {count:,}" for code, count in errors.most_common()]
    return "\n".join(lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Sends requests to a served model and prints latencies.")
    add_connection_arguments(parser, retries=0)
    parser.add_argument("--signature", help="signature of the model; without it the one that fits the inputs")
    parser.add_argument("--text_file", help="a text a line, instead of the built-in ones; columns between tabs")
    parser.add_argument("--fields", default="text_a", help="the inputs for the texts: question,context and the like")
    parser.add_argument("--batch", type=int, default=1, help="texts in a request (%(default)s)")
    parser.add_argument("--requests_file", help='inputs of a request a line, as JSON: {"input_ids": [[101, 102]]}')
    parser.add_argument("--connections", type=int, default=4, help="requests under way at a time (%(default)s)")
    parser.add_argument("--rate", type=float, help="requests a second; without it as many as are answered")
    parser.add_argument("--duration", type=float, default=10.0, help="seconds to measure (%(default)s)")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds before that (%(default)s)")
    arguments = parser.parse_args(argv)
    for name in ("batch", "connections", "duration"):
        if getattr(arguments, name) <= 0:
            parser.error(f"--{name} must be greater than 0")
    if arguments.rate is not None and arguments.rate <= 0:
        parser.error("--rate must be greater than 0")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    if arguments.grpc:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        requests = read_requests(arguments)
        samples, seconds = run(arguments, requests)
    except ServingError as error:
        print(f"load_generator.py: {error}", file=sys.stderr)
        return 1
    how = f"open loop, {arguments.rate:g} requests/s" if arguments.rate else "closed loop"
    batch = len(next(iter(requests[0].values())))
    examples = "1 example" if batch == 1 else f"{batch} examples"
    print(f"load        {how}, {arguments.connections} connections, {examples} a request, {arguments.duration:g} s")
    print(report(samples, seconds, batch))
    return 0 if any(sample.code == "OK" for sample in samples) else 1


if __name__ == "__main__":
    sys.exit(main())
