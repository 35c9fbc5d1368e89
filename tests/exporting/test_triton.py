"""serving/triton: an export behind Triton, which the wheel nvidia-pytriton brings; `make triton`."""

import concurrent.futures
import itertools
import json
import pathlib
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from export_cases import assert_outputs, export, rows

import bert_tf2

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-triton" / "bin" / "python"
TYPES = {"INT32": np.int32, "FP32": np.float32, "BYTES": np.object_}
TEXTS = ["the [MASK] was good .", "[MASK]", "an awful film with a [MASK] and a [MASK]"]

pytestmark = [
    pytest.mark.extra,
    pytest.mark.skipif(not PYTHON.exists(), reason="Triton is not installed; `make triton` installs it"),
]


class Server:
    """Triton at a free port, with an export as the model "bert"."""

    def __init__(self, models: pathlib.Path, log):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        flags = [f"--model-repository={models}", "--http-address=127.0.0.1", f"--http-port={self.port}"]
        command = [PYTHON, ROOT / "serving/triton/start.py", *flags, "--allow-grpc=false", "--allow-metrics=false"]
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 180
        while True:
            try:
                self.get("models/bert/ready")
                break
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    self.process.kill()
                    raise
                time.sleep(0.2)

    def get(self, path: str, body: bytes | None = None):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v2/{path}", body, timeout=60) as answer:
            return json.loads(answer.read() or "{}")

    def ask(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs for texts [B] or ids [B, F]."""
        given = []
        for name, value in inputs.items():
            kind, shape = ("INT32", value.shape) if value.dtype.kind == "i" else ("BYTES", [len(value), 1])
            given.append({"name": name, "shape": [*shape], "datatype": kind, "data": value.tolist()})
        answer = self.get("models/bert/infer", json.dumps({"inputs": given}).encode())
        return {
            one["name"]: np.array(one["data"], TYPES[one["datatype"]]).reshape(one["shape"])
            for one in answer["outputs"]
        }

    def refuses(self, words: str, **inputs: np.ndarray) -> None:
        with pytest.raises(urllib.error.HTTPError) as refused:
            self.ask(**inputs)
        assert refused.value.code == 400 and words in json.loads(refused.value.read())["error"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    made = export(folder, "masked_lm")
    shutil.copytree(folder / "export", folder / "models/bert")
    shutil.copy(ROOT / "serving/triton/config.pbtxt", folder / "models/bert")
    with open(folder / "log.txt", "w") as log:
        server = Server(folder / "models", log)
        try:
            yield server, made, bert_tf2.load(made.weights.parent)
        finally:
            server.process.terminate()
            status = server.process.wait(60)
    assert status == 0, (folder / "log.txt").read_text()[-2000:]


def assert_words(bert, found: dict[str, np.ndarray], row: int, text: str) -> None:
    """A row has the words of predict_masked.py for a text."""
    answer = bert.fill_mask(text, top_k=3)
    for place, mask in enumerate(answer.masks):
        assert found["tokens"][row, place].tolist() == [one.token for one in mask.predictions]
        wanted = [one.probability for one in mask.predictions]
        np.testing.assert_allclose(found["scores"][row, place], wanted, atol=1e-5)
    assert (found["positions"][row, len(answer.masks) :] == -1).all()


def test_texts_and_ids(served):
    server, made, bert = served
    found = server.ask(text_a=np.array(TEXTS))
    for row, text in enumerate(TEXTS):
        assert_words(bert, found, row, text)
    ids = rows()
    found, wanted = server.ask(**ids), made.ask("serving_default", **ids)
    assert_outputs({**found, "tokens": found["tokens"].astype("S")}, {**wanted, "tokens": wanted["tokens"].astype("S")})


def test_parallel_clients_share_batches_and_not_errors(served):
    server, _, bert = served
    server.refuses("row 0 of input_ids holds 99;", input_ids=np.array([[2, 4, 99]]))
    server.refuses("text_b", text_b=np.array(["a film"]))

    def client(number: int) -> list[tuple[dict[str, np.ndarray], str]]:
        texts = [TEXTS[(number + turn) % len(TEXTS)] for turn in range(10)]
        server.refuses("[MASK]", text_a=np.array(["no blank"]))
        return [(server.ask(text_a=np.array([text])), text) for text in texts]

    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        answers = [*itertools.chain(*clients.map(client, range(8)))]
    for found, text in answers:
        assert_words(bert, found, 0, text)
    (counts,) = server.get("models/bert/stats")["model_stats"]
    assert counts["execution_count"] < counts["inference_count"]
