"""Asks a model that TensorFlow Serving serves, over REST, and prints the outputs as JSON.

    python serving/client.py text_a='A fine film.'
    python serving/client.py question='Who wrote it?' context='It was written by Ann.'

`predict` needs only Python: copy it to your program.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from typing import Any


def predict(inputs: dict[str, list], signature: str, server: str = "localhost:8501", timeout: float = 10.0) -> Any:
    """The outputs of a signature by name, lists with an item for each row; a single output without its name.

    Raises:
      OSError: there is no server, or no answer in time, or the server answers with an error (urllib.error.HTTPError).
    """
    body = json.dumps({"signature_name": signature, "inputs": inputs}).encode()
    request = urllib.request.Request(f"http://{server}/v1/models/bert:predict", body)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)["outputs"]
    except urllib.error.HTTPError as error:  # the model's own checks are sentences among names of its graph
        text = error.read().decode(errors="replace")
        error.msg = (re.search(r'assertion failed: \[(.*?)\](?=\\n|")', text) or [text, text])[1]
        raise


if __name__ == "__main__":
    given = {name: [text] for name, _, text in (argument.partition("=") for argument in sys.argv[1:])}
    try:
        print(json.dumps(predict(given, "serving_text_pair" if "text_b" in given else "serving_text"), indent=2))
    except OSError as problem:
        sys.exit(f"client.py: {problem}")
