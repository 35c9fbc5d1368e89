"""Asks a model that TensorFlow Serving serves, over REST, and prints the outputs as JSON.

    python serving/client.py text_a='A fine film.'
    python serving/client.py question='Who wrote it?' context='It was written by Ann.'

Each argument is an input of the model and its text. The server is at localhost:8501; serving/compose.yaml starts it.
"""

# `predict` needs only Python: copy it to your program.

from __future__ import annotations

import http.client
import json
import re
import sys
import urllib.error
import urllib.request
from typing import Any


def predict(inputs: dict[str, list], signature: str, server: str = "localhost:8501", timeout: float = 10.0) -> Any:
    """The outputs of a signature by name, lists with an item for each row; a single output without its name.

    Raises:
      OSError: the server answers with an error (urllib.error.HTTPError); or there is no server, no answer in time, or
        another program at this address (ConnectionError).
    """
    body = json.dumps({"signature_name": signature, "inputs": inputs}).encode()
    request = urllib.request.Request(f"http://{server}/v1/models/bert:predict", body)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)["outputs"]
    except urllib.error.HTTPError as error:  # takes the model's message out of the names of its graph
        text = error.read().decode(errors="replace")
        error.msg = (re.search(r'assertion failed: \[(.*?)\](?=\\n|")', text) or [text, text])[1]
        raise
    except OSError as error:
        reason = getattr(error, "reason", error)
        start = "start one: MODEL_DIR=$PWD/export docker compose -f serving/compose.yaml up --detach --wait"
        raise ConnectionError(f"no server answers at http://{server} ({reason}); {start}") from error
    except (http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise ConnectionError(f"the program at http://{server} is no TensorFlow Serving ({error!r})") from error


def main(arguments: list[str]) -> None:
    if not arguments or {"-h", "-help", "--help"}.intersection(arguments):
        print(__doc__.strip())
        sys.exit(0 if arguments else 2)
    wrong = [argument for argument in arguments if argument.startswith("-") or "=" not in argument]
    if wrong:
        sys.exit(f"client.py: {wrong[0]!r} is no input of the model, such as text_a='A fine film.'")
    given = {name: [text] for name, _, text in (argument.partition("=") for argument in arguments)}
    try:
        print(json.dumps(predict(given, "serving_text_pair" if "text_b" in given else "serving_text"), indent=2))
    except OSError as problem:
        sys.exit(f"client.py: {problem}")


if __name__ == "__main__":
    main(sys.argv[1:])
