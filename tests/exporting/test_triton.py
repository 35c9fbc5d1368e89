"""serving/triton: an export behind Triton, which the wheel nvidia-pytriton brings; `make triton`."""

import concurrent.futures
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
from export_cases import assert_outputs, export, make_options, rows, run

from bert_tf2.pretraining import predict_masked

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
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        flags = [f"--model-repository={models}", "--model-control-mode=poll", "--repository-poll-secs=1"]
        flags += ["--http-address=127.0.0.1", f"--http-port={self.address.partition(':')[2]}"]
        flags += ["--allow-grpc=false", "--allow-metrics=false"]
        command = [PYTHON, ROOT / "serving/triton/start.py", *flags]
        self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def get(self, path: str, body: bytes | None = None):
        with urllib.request.urlopen(f"http://{self.address}/v2/{path}", body, timeout=60) as answer:
            return json.loads(answer.read() or "{}")

    def wait(self, path: str) -> None:
        """Until there is something."""
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                return self.get(path)
            except OSError:
                time.sleep(0.2)
        raise AssertionError(f"{path}: not there")

    def ask(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs for texts [B] or ids [B, F]."""
        given = []
        for name, value in inputs.items():
            kind, shape = ("INT32", value.shape) if value.dtype.kind == "i" else ("BYTES", [len(value), 1])
            given.append({"name": name, "shape": [*shape], "datatype": kind, "data": value.tolist()})
        answer = self.get("models/bert/infer", json.dumps({"inputs": given}).encode())
        found = {one["name"]: np.array(one["data"], TYPES[one["datatype"]]) for one in answer["outputs"]}
        return {one["name"]: found[one["name"]].reshape(one["shape"]) for one in answer["outputs"]}

    def refusal(self, **inputs: np.ndarray) -> str:
        with pytest.raises(urllib.error.HTTPError) as refused:
            self.ask(**inputs)
        assert refused.value.code == 400
        return json.loads(refused.value.read())["error"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    made = export(folder, "masked_lm")
    shutil.copytree(folder / "export", folder / "models/bert")
    shutil.copy(ROOT / "serving/triton/config.pbtxt", folder / "models/bert")
    with open(folder / "log.txt", "w") as log:
        server = Server(folder / "models", log)
        try:
            server.wait("models/bert/ready")
            yield server, made, folder
        finally:
            server.process.terminate()
            status = server.process.wait(60)
    assert status == 0, (folder / "log.txt").read_text()[-2000:]


def expected(made, text: str) -> list[list[tuple[str, float]]]:
    """What predict_masked.py answers."""
    (answer,) = predict_masked.predict(made.model, made.tokenizer, [text], top_k=3)
    return [[(one.token, one.probability) for one in mask.predictions] for mask in answer.masks]


def assert_words(found: dict[str, np.ndarray], row: int, wanted: list[list[tuple[str, float]]]) -> None:
    count = len(wanted)
    assert found["tokens"][row, :count].tolist() == [[token for token, _ in mask] for mask in wanted]
    probabilities = [[probability for _, probability in mask] for mask in wanted]
    np.testing.assert_allclose(found["scores"][row, :count], probabilities, atol=1e-5)
    assert (found["positions"][row, count:] == -1).all()


def test_texts_and_ids(served):
    server, made, _ = served
    found = server.ask(text_a=np.array(TEXTS))
    for row, text in enumerate(TEXTS):
        assert_words(found, row, expected(made, text))
    ids = rows()
    found = server.ask(**ids)
    wanted = made.ask("serving_default", **ids)
    assert_outputs({**found, "tokens": found["tokens"].astype("S")}, {**wanted, "tokens": wanted["tokens"].astype("S")})


def test_wrong_inputs(served):
    server = served[0]
    assert "row 0 of input_ids holds 99;" in server.refusal(input_ids=np.array([[2, 4, 99]]))
    assert "[MASK]" in server.refusal(text_a=np.array(["a film"]))
    assert "the inputs text_b are those of no signature" in server.refusal(text_b=np.array(["a film"]))


def test_parallel_clients_share_batches_and_not_errors(served):
    server, made, _ = served
    wanted = {text: expected(made, text) for text in TEXTS}

    def client(number: int) -> None:
        for turn in range(10):
            if (number + turn) % 4 == 0:
                assert "[MASK]" in server.refusal(text_a=np.array(["no blank"]))
            text = TEXTS[(number + turn) % len(TEXTS)]
            assert_words(server.ask(text_a=np.array([text])), 0, wanted[text])

    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        list(clients.map(client, range(8)))
    (counts,) = server.get("models/bert/stats")["model_stats"]
    assert counts["execution_count"] < counts["inference_count"]


def test_a_new_version_replaces_the_old_one(served):
    server, made, folder = served
    exported = run(make_options(folder, "masked_lm", made.weights))
    shutil.move(exported, folder / "models/bert")
    server.wait("models/bert/versions/2/ready")
    assert_words(server.ask(text_a=np.array(TEXTS[:1])), 0, expected(made, TEXTS[0]))
    assert server.get("models/bert")["versions"] == ["2"]
