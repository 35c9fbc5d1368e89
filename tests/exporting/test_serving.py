"""The clients in serving/, which talk to servers that misbehave.

The servers are those of model_server.py, in this process; no TensorFlow Serving was asked.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

import model_server
import numpy as np
import pytest
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "serving"))

import client as client_module
import load_generator
from client import GrpcClient, RestClient, ServingError

SERVING = pathlib.Path(client_module.__file__).parent
needs_grpc = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("grpc", "tensorflow_serving"))),
    reason="grpcio and tensorflow-serving-api are not installed",
)
GRPC = pytest.param("grpc", marks=needs_grpc)
TEXTS = ["a lovely film", "the book was bad ."]
IDS = [[2, 5, 6, 3], [2, 4, 3, 0]]


class Toy(tf.Module):
    """Two signatures with outputs of every kind; what they compute does not matter here."""

    def __init__(self):
        super().__init__()
        self.labels = tf.Variable(["no", "yes"])

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, "input_ids")])
    def ids(self, input_ids):
        known = tf.debugging.Assert(tf.reduce_all(input_ids < 30), ["input_ids: an id is not in the vocabulary"])
        with tf.control_dependencies([known]):
            mean = tf.reduce_mean(tf.cast(input_ids, tf.float32), axis=1)
        label = tf.gather(self.labels, tf.cast(mean > 3, tf.int32))
        return {"probabilities": tf.nn.softmax(tf.stack([-mean, mean], 1) / 7), "label": label}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text_a")])
    def text(self, text_a):
        return {"value": tf.cast(tf.strings.length(text_a), tf.float32) / 7}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> model_server.Model:
    path = str(tmp_path_factory.mktemp("model") / "1")
    toy = Toy()
    tf.saved_model.save(toy, path, {"serving_ids": toy.ids, "serving_text": toy.text})
    return model_server.Model(path)


@pytest.fixture
def rest(model):
    with model_server.RestServer(model) as server:
        yield server


@pytest.fixture(params=["rest", GRPC])
def server_and_client(request, model):
    """A server, and the client for it; both ways."""
    kinds = {"rest": (model_server.RestServer, RestClient), "grpc": (model_server.GrpcServer, GrpcClient)}
    server_kind, client_kind = kinds[request.param]
    with server_kind(model) as server, client_kind(server.address, deadline=20.0) as client:
        yield server, client


def expected(model, signature: str, inputs) -> dict[str, list]:
    return {name: value.numpy().tolist() for name, value in model.predict(signature, inputs).items()}


# The answers.


def test_ids_and_texts_are_answered(model, server_and_client):
    _, client = server_and_client
    wanted = expected(model, "serving_ids", {"input_ids": IDS})
    for inputs in ({"input_ids": IDS}, {"input_ids": np.array(IDS)}):
        found = client.predict(inputs, "serving_ids")
        np.testing.assert_allclose(found["probabilities"], wanted["probabilities"], rtol=1e-6)
        assert found["label"] == [label.decode() for label in wanted["label"]] == ["yes", "no"]
    found = client.predict({"text_a": TEXTS}, "serving_text")  # a single output, whose name REST leaves out
    np.testing.assert_allclose(found["value"], [len(text) / 7 for text in TEXTS], rtol=1e-6)
    assert list(found) == ["value"]


def test_bytes_reach_the_model_as_they_are(server_and_client):
    _, client = server_and_client
    assert client.predict({"text_a": [b"\xff\xfe ok", "\N{SNOWMAN}"]}, "serving_text")["value"] == pytest.approx(
        [5 / 7, 3 / 7]
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rest", GRPC])
def test_an_exported_model_answers_the_command(exported, kind, capsys):
    """The task squad, whose signatures have the most inputs and the most kinds of outputs."""
    pytest.importorskip("tensorflow_text", reason="tensorflow-text is not installed")
    model = model_server.Model(exported("squad").folder)
    questions, contexts = ["where is ann ?", "who ?"], ["Ann is in Paris now.", "It was Bob, with a book."]
    flags = [f"--question={question}" for question in questions] + [f"--context={context}" for context in contexts]
    ids = np.array([[2, 5, 3, 9, 14, 3], [2, 30, 3, 11, 3, 0]], np.int32)
    rows = {
        "input_ids": ids,
        "input_mask": np.sign(ids),
        "segment_ids": np.array([[0, 0, 0, 1, 1, 1], [0] * 6], np.int32),
    }
    requests = {
        "serving_text": ({"question": questions, "context": contexts}, flags),
        "serving_ids": ({"input_ids": ids}, ["--inputs", json.dumps({"input_ids": ids.tolist()})]),
        "serving_default": (rows, ["--inputs", json.dumps({name: row.tolist() for name, row in rows.items()})]),
    }
    server_kind = {"rest": model_server.RestServer, "grpc": model_server.GrpcServer}[kind]
    with server_kind(model) as server:
        for signature, (inputs, arguments) in requests.items():
            grpc = ["--grpc"] if kind == "grpc" else []
            status, out, err = run_client(capsys, f"--server={server.address}", *grpc, *arguments)
            assert (status, err) == (0, "")
            found, wanted = json.loads(out), expected(model, signature, inputs)
            assert {*found} == {*wanted}
            for name, value in wanted.items():
                if name == "answer":
                    assert found[name] == [text.decode() for text in value]
                else:
                    np.testing.assert_allclose(found[name], value, rtol=1e-6)


def test_the_test_server_knows_rows_and_columns(model):
    """What curl users send; the shapes of the answers are those of TensorFlow Serving's documentation."""
    wanted = expected(model, "serving_ids", {"input_ids": IDS})["probabilities"]
    rows = {"signature_name": "serving_ids", "instances": [{"input_ids": row} for row in IDS]}
    found = model_server.rest_predict(model, rows)["predictions"]
    np.testing.assert_allclose([row["probabilities"] for row in found], wanted)
    assert [row["label"] for row in found] == ["yes", "no"]
    bare = model_server.rest_predict(model, {"signature_name": "serving_text", "instances": ["ab", "abc"]})
    assert bare == {"predictions": pytest.approx([2 / 7, 3 / 7])}
    columns = model_server.rest_predict(model, {"signature_name": "serving_ids", "inputs": {"input_ids": IDS}})
    np.testing.assert_allclose(columns["outputs"]["probabilities"], wanted)


# Errors, deadlines and retries.


def test_a_bad_request_is_sent_once(server_and_client):
    server, client = server_and_client
    with pytest.raises(ServingError) as raised:
        client.predict({"input_ids": [[2, 99, 3]]}, "serving_ids")
    assert str(raised.value) == "INVALID_ARGUMENT: input_ids: an id is not in the vocabulary"
    assert server.requests == 1


@pytest.mark.parametrize(
    ("inputs", "what"),
    [
        ({"input_ids": [[1, 2], [3]]}, "different lengths"),
        ({"input_ids": [1, 2]}, "list of lists"),
        ({"input_ids": [[[1, 2]]]}, "list of lists"),
        ({"input_ids": [[1.5]]}, "list of lists"),
        ({"text_a": 7}, "at least one"),
        ({"text_a": []}, "at least one"),
        ({"text_a": ["x"], "text_b": ["y", "z"]}, "as many examples"),
        ({}, "at least one"),
    ],
)
def test_wrong_shapes_are_not_sent(server_and_client, inputs, what):
    server, client = server_and_client
    with pytest.raises(ServingError, match=what) as raised:
        client.predict(inputs, "serving_ids")
    assert raised.value.code == "INVALID_ARGUMENT"
    assert server.requests == 0


def test_an_unavailable_server_is_asked_again(server_and_client):
    server, client = server_and_client
    server.plan = [503, 503] if isinstance(client, RestClient) else ["UNAVAILABLE", "UNAVAILABLE"]
    start = time.monotonic()
    assert client.predict({"text_a": ["ab"]}, "serving_text")["value"] == pytest.approx([2 / 7])
    assert server.requests == 3 + isinstance(client, RestClient)  # REST asks for the name of the single output too
    assert time.monotonic() - start >= 0.5 * (0.1 + 0.2)  # the pauses, each at least half of what it can be


def test_retries_come_to_an_end(server_and_client):
    server, client = server_and_client
    client.retries = 2
    server.plan = ([503] if isinstance(client, RestClient) else ["UNAVAILABLE"]) * 9
    with pytest.raises(ServingError, match="as planned") as raised:
        client.predict({"text_a": ["ab"]}, "serving_text")
    assert raised.value.code == "UNAVAILABLE"
    assert server.requests == 3


@pytest.mark.parametrize(
    ("status", "code"), [(500, "INTERNAL"), (429, "RESOURCE_EXHAUSTED"), (504, "DEADLINE_EXCEEDED")]
)
def test_other_errors_are_not_tried_again(server_and_client, status, code):
    server, client = server_and_client
    server.plan = [status if isinstance(client, RestClient) else code]
    with pytest.raises(ServingError, match="as planned") as raised:
        client.predict({"text_a": ["ab"]}, "serving_text")
    assert (raised.value.code, server.requests) == (code, 1)


def test_a_deadline_is_kept(server_and_client):
    server, client = server_and_client
    client.predict({"text_a": ["ab"]}, "serving_text")  # connected, and the graph is made
    client.deadline, server.plan = 0.3, [5.0]
    with pytest.raises(ServingError) as raised:
        client.predict({"text_a": ["ab"]}, "serving_text")
    assert raised.value.code == "DEADLINE_EXCEEDED"
    client.deadline = 20.0
    assert client.predict({"text_a": ["abc"]}, "serving_text")["value"] == pytest.approx([3 / 7])


def test_pauses_stay_within_the_deadline(server_and_client):
    """There is no time for a second try: the error that came says more than "too late"."""
    server, client = server_and_client
    client.deadline, client.retries = 0.04, 9
    server.plan = [503] * 9 if isinstance(client, RestClient) else ["UNAVAILABLE"] * 9
    with pytest.raises(ServingError) as raised:
        client.predict({"text_a": ["ab"]}, "serving_text")
    assert raised.value.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
    assert server.requests <= 1


@pytest.mark.parametrize("kind", ["rest", GRPC])
def test_nobody_at_the_address(model, kind):
    """Asked again all the same: a server that is being started will be there."""
    with model_server.RestServer(model) as server:
        address = server.address  # nobody listens there when the server is gone
    start = time.monotonic()
    make = {"rest": RestClient, "grpc": GrpcClient}[kind]
    with make(address, deadline=20.0, retries=2) as client, pytest.raises(ServingError) as raised:
        client.predict({"text_a": ["ab"]}, "serving_text")
    assert raised.value.code == "UNAVAILABLE"
    assert time.monotonic() - start >= 0.5 * (0.1 + 0.2)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--deadline=nan", "the deadline must be seconds, more than 0, not nan"),
        ("--deadline=-1", "the deadline must be seconds, more than 0, not -1"),
        ("--server=localhost:abc", "the server must be HOST:PORT, not 'localhost:abc'"),
        ("--server=:8501", "the server must be HOST:PORT, not ':8501'"),
        ("--server=localhost:99999", "the server must be HOST:PORT, not 'localhost:99999'"),
    ],
)
def test_a_wrong_address_or_deadline(flag, message, capsys):
    assert client_module.main(["--text=ab", flag]) == 1
    assert capsys.readouterr().err.startswith(f"client.py: INVALID_ARGUMENT: {message}")


@pytest.mark.parametrize("misbehavior", ["drop", "cut"])
def test_a_lost_connection_is_made_again(rest, misbehavior):
    with RestClient(rest.address) as client:
        client.predict({"input_ids": IDS}, "serving_ids")
        rest.plan = [misbehavior]
        assert client.predict({"input_ids": IDS}, "serving_ids")["label"] == ["yes", "no"]
    assert rest.requests == 3


def test_slow_drops_do_not_outwit_the_deadline(rest):
    """Each byte comes in time, the answer does not."""
    rest.plan = ["drip"]
    with RestClient(rest.address, deadline=0.4) as client, pytest.raises(ServingError) as raised:
        client.predict({"input_ids": IDS}, "serving_ids")
    assert raised.value.code == "DEADLINE_EXCEEDED"  # to wait for the end would be UNAVAILABLE: it is cut short


@pytest.mark.parametrize(
    ("answer", "what"),
    [("html", "did not answer with a JSON object: .*Bad gateway"), (b"[1]", "JSON object"), (b"{}", "no outputs")],
)
def test_what_is_no_answer_is_an_error_with_a_sentence(rest, answer, what):
    rest.plan = [answer]
    with RestClient(rest.address) as client, pytest.raises(ServingError, match=what):
        client.predict({"input_ids": IDS}, "serving_ids")


def test_unknown_models_versions_and_signatures(rest):
    for settings in ({"model": "other"}, {"version": 7}):
        with RestClient(rest.address, **settings) as client, pytest.raises(ServingError) as raised:
            client.predict({"input_ids": IDS}, "serving_ids")
        assert raised.value.code == "NOT_FOUND"
    with RestClient(rest.address, version=1) as client:
        assert client.predict({"input_ids": IDS}, "serving_ids")["label"] == ["yes", "no"]
        with pytest.raises(ServingError, match="not found"):
            client.predict({"input_ids": IDS}, "no_such_signature")


@needs_grpc
def test_a_grpc_client_serves_several_threads(model):
    found = []
    with model_server.GrpcServer(model) as server, GrpcClient(server.address) as client:

        def ask(length: int) -> None:
            found.append((length, client.predict({"text_a": ["x" * length] * length}, "serving_text")["value"]))

        threads = [threading.Thread(target=ask, args=(length,)) for length in range(1, 17)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(length for length, _ in found) == list(range(1, 17))
    assert all(values == pytest.approx([length / 7] * length) for length, values in found)


def test_without_its_packages_grpc_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(ServingError, match="pip install grpcio tensorflow-serving-api"):
        GrpcClient()


# The commands.


def run_client(capsys, *arguments: str) -> tuple[int, str, str]:
    status = client_module.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_client_as_a_command(rest, capsys):
    status, out, _ = run_client(capsys, f"--server={rest.address}", "--text=abc", "--text=\N{SNOWMAN}")
    assert status == 0
    assert json.loads(out) == {"value": pytest.approx([3 / 7, 3 / 7])}
    status, out, _ = run_client(capsys, f"--server={rest.address}", "--inputs", json.dumps({"input_ids": IDS}))
    assert json.loads(out)["label"] == ["yes", "no"]
    for wrong in ("[1]", "{"):
        status, out, err = run_client(capsys, f"--server={rest.address}", f"--inputs={wrong}")
        assert (status, out) == (1, "")
        assert re.fullmatch(r"client\.py: INVALID_ARGUMENT: --inputs must be a JSON object.*\n", err)


def test_the_client_is_a_script_that_needs_only_python(rest):
    """-I -S: without site-packages."""
    command = [sys.executable, "-I", "-S", str(SERVING / "client.py"), f"--server={rest.address}", "--text=abcdefg"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"value": [1.0]}


@pytest.mark.parametrize(
    ("names", "signature"),
    [
        (["text_a"], "serving_text"),
        (["question", "context"], "serving_text"),
        (["text_a", "text_b"], "serving_text_pair"),
        (["input_ids"], "serving_ids"),
        (["input_ids", "input_mask", "segment_ids"], "serving_default"),
    ],
)
def test_the_signature_that_fits(names, signature):
    assert client_module.guess_signature(names) == signature


def run_load(capsys, *arguments: str) -> tuple[int, str, str]:
    status = load_generator.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_closed_loop_counts_every_request(rest, capsys, tmp_path):
    (tmp_path / "requests.jsonl").write_text(f"{json.dumps({'input_ids': IDS})}\n\n" * 2)
    rest.plan = [503, None, 500, 500]
    status, out, _ = run_load(
        capsys, f"--server={rest.address}", "--connections=3", "--duration=0.6", "--warmup=0",
        f"--requests_file={tmp_path / 'requests.jsonl'}",
    )  # fmt: skip
    assert status == 0
    assert "closed loop, 3 connections, 2 examples a request" in out
    assert f"requests    {rest.requests:,}, of which 3 with an error" in out
    assert re.search(r"error +INTERNAL: 2\nerror +UNAVAILABLE: 1", out)
    assert re.search(r"p50 [\d.]+ ms, p95 [\d.]+ ms, p99 [\d.]+ ms, longest", out)


def test_an_open_loop_counts_the_waiting(rest, capsys):
    """The server stands still for a while: at 100 requests a second some wait, and their latencies say so."""
    rest.plan = [None] * 10 + [0.5]
    status, out, _ = run_load(
        capsys, f"--server={rest.address}", "--connections=1", "--rate=100", "--duration=1", "--warmup=0"
    )
    assert status == 0
    assert "open loop, 100 requests/s" in out
    assert float(re.search(r"p95 ([\d.]+) ms", out)[1]) >= 250  # without the waiting: one of a hundred
    assert re.search(r"requests +100,", out)


@pytest.mark.slow
def test_an_open_loop_says_what_could_not_be_sent(rest, capsys):
    rest.plan = [2.0]
    _, out, _ = run_load(
        capsys, f"--server={rest.address}", "--connections=1", "--rate=50", "--duration=0.5", "--warmup=0"
    )
    assert re.search(r"error +NOT_SENT: 24", out)


@needs_grpc
def test_load_over_grpc_from_a_file_of_requests(model, capsys, tmp_path):
    (tmp_path / "requests.jsonl").write_text(f'{json.dumps({"input_ids": IDS})}\n{{"input_ids": [[2, 3]]}}\n')
    with model_server.GrpcServer(model) as server:
        status, out, _ = run_load(
            capsys, f"--server={server.address}", "--grpc", "--duration=0.3", "--warmup=0.1",
            f"--requests_file={tmp_path / 'requests.jsonl'}",
        )  # fmt: skip
    assert status == 0
    assert "of which 0 with an error" in out


def test_load_without_a_server_or_requests(capsys, tmp_path):
    (tmp_path / "empty").write_text("\n")
    for flag in (f"--requests_file={tmp_path / 'empty'}", f"--text_file={tmp_path / 'none'}"):
        status, _, err = run_load(capsys, flag, "--server=127.0.0.1:1")
        assert status == 1
        assert re.fullmatch(r"load_generator\.py: INVALID_ARGUMENT: no requests: .*\n", err)
    status, out, _ = run_load(capsys, "--server=127.0.0.1:1", "--duration=0.1", "--warmup=0", "--connections=1")
    assert status == 1
    assert "UNAVAILABLE" in out


def test_fields_are_columns(tmp_path):
    (tmp_path / "lines.txt").write_text("Who?\tAnn did.\nWhere?\tIn Rome.\n")
    arguments = load_generator.parse([f"--text_file={tmp_path / 'lines.txt'}", "--fields=question,context"])
    assert load_generator.read_requests(arguments) == [
        {"question": ["Who?"], "context": ["Ann did."]},
        {"question": ["Where?"], "context": ["In Rome."]},
    ]
    (tmp_path / "lines.txt").write_text("Who?\n")
    with pytest.raises(ServingError, match="columns question,context"):
        load_generator.read_requests(arguments)


def test_percentiles_are_those_of_numpy():
    values = sorted(np.random.default_rng(0).normal(size=37).tolist())
    for percent in (0, 1, 50, 95, 99, 100):
        assert load_generator.percentile(values, percent) == np.percentile(values, percent, method="inverted_cdf")


# The container.


def compose_service() -> dict:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    (service,) = yaml.safe_load((SERVING / "compose.yaml").read_text())["services"].values()
    return service


def test_compose_file_mounts_what_the_server_is_told_to_read():
    service = compose_service()
    mounted = dict(volume.rsplit(":", 2)[:2][::-1] for volume in service["volumes"])
    flags = dict(flag.removeprefix("--").partition("=")[::2] for flag in service["command"])
    for name in ("models", "batching", "monitoring"):
        source = mounted[f"/config/{name}.config"]
        assert (SERVING / source).is_file()
        assert f"/config/{name}.config" in flags.values()
    assert "MODEL_DIR" in mounted["/models/bert"]
    assert (flags["port"], flags["rest_api_port"]) == ("8500", "8501")
    assert "enable_batching" in flags
    assert re.fullmatch(r"tensorflow/serving:\$\{TF_SERVING_VERSION:-2\.2\d\.\d\}", service["image"])
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_the_health_check_waits_for_the_model(rest):
    kind, *command = compose_service()["healthcheck"]["test"]
    assert kind == "CMD"
    assert "/127.0.0.1/8501 " in command[-1]
    command[-1] = command[-1].replace("/127.0.0.1/8501 ", "/{}/{} ".format(*rest.address.split(":")))
    state = {"version": "1", "state": "LOADING", "status": {"error_code": "UNAVAILABLE"}}
    rest.plan = [json.dumps({"model_version_status": [state]}).encode(), None]
    assert [subprocess.run(command, check=False, timeout=60).returncode == 0 for _ in range(2)] == [False, True]
