"""The client in serving/, asking a small server in this process; no TensorFlow Serving was asked."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.error

import model_server
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "serving"))

import client

SERVING = pathlib.Path(client.__file__).parent


class Toy(tf.Module):
    """Two signatures with outputs of every kind; what they compute does not matter here."""

    def __init__(self):
        super().__init__()
        self.labels = tf.Variable(["no", "yes"])

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, "input_ids")])
    def ids(self, input_ids):
        known = tf.debugging.Assert(tf.reduce_all(input_ids < 30), ["row 0 of input_ids: no [MASK] in it"])
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


def test_the_client(model, rest):
    ids = [[2, 5, 6, 3], [2, 4, 3, 0]]
    wanted = model.predict("serving_ids", {"input_ids": ids})
    found = client.predict({"input_ids": ids}, "serving_ids", rest.address)
    np.testing.assert_allclose(found["probabilities"], wanted["probabilities"], rtol=1e-6)
    assert found["label"] == ["yes", "no"]
    assert client.predict({"text_a": ["a film"]}, "serving_text", rest.address) == pytest.approx([6 / 7])
    with pytest.raises(urllib.error.HTTPError, match=r"row 0 of input_ids: no \[MASK\] in it$") as caught:
        client.predict({"input_ids": [[99]]}, "serving_ids", rest.address)
    assert "\n" not in str(caught.value)
    rest.plan = [5.0]
    with pytest.raises(TimeoutError):
        client.predict({"input_ids": ids}, "serving_ids", rest.address, timeout=0.1)


def test_without_a_server_the_command_says_so():
    command = [sys.executable, client.__file__, "text_a=a film"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and re.fullmatch("client.py: .*refused.*\n", done.stderr), done.stderr


def test_models_config_is_a_model_server_config():
    pytest.importorskip("tensorflow_serving", reason="tensorflow-serving-api is not installed")
    from tensorflow_serving.config import model_server_config_pb2

    parsed = text_format.Parse((SERVING / "models.config").read_text(), model_server_config_pb2.ModelServerConfig())
    (model,) = parsed.model_config_list.config
    assert (model.name, model.base_path, model.model_platform) == ("bert", "/models/bert", "tensorflow")


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
