"""The server: what it answers, to whom, and how it says no."""

from __future__ import annotations

import http.client
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import urllib.parse

import pytest
from command_lines import ROOT
from explorer_model import unpack
from refused import message_of
from werkzeug.test import Client

from bert_tf2.explorer import server
from bert_tf2.explorer.model import Explorer
from bert_tf2.explorer.options import ExplorerOptions
from bert_tf2.support.errors import UserError

TEXT = {"text": "Paris is the [MASK] of France.", "text_b": "It rains"}


@pytest.fixture
def ask(address):
    """ask("GET", "/path", body, headers) -> (status, headers, bytes)."""
    place = urllib.parse.urlsplit(address)

    def asked(method: str, path: str, body: bytes | None = None, **headers: str):
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, response.headers, content

    return asked


@pytest.fixture
def post(ask):
    """post("/api/x", name=value) -> (status, answer)."""

    def posted(path: str, **arguments):
        status, _, content = ask("POST", path, json.dumps(arguments).encode(), Content_Type="application/json")
        return status, json.loads(content)

    return posted


def test_the_files_of_the_page(ask):
    for path in server.PAGE.iterdir():
        status, headers, content = ask("GET", f"/{path.name}")
        assert (status, content) == (200, path.read_bytes())
        assert headers["Content-Type"].endswith("; charset=utf-8") and headers["Cache-Control"] == "no-store"
        assert headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert ask("GET", "/")[2] == (server.PAGE / "index.html").read_bytes()
    assert ask("GET", "/app.js")[1]["Content-Type"].startswith("text/javascript")


@pytest.mark.parametrize(
    "path", ["/none.js", "/" + "a" * 300, "/../server.py", "/%2e%2e/server.py", "/page/app.js", "/..%5cserver.py"]
)
def test_nothing_else_is_a_file(ask, path):
    status, _, content = ask("GET", path)
    assert status == 404 and "there is no file" in json.loads(content)["error"]


def test_the_page_names_no_other_place():
    """No address at all but the names of XML, and nothing that the policy of the page would block."""
    for path in server.PAGE.iterdir():
        text = path.read_text()
        assert not re.findall(r"(?:https?:)?//[a-z0-9]+\.[a-z]", text.replace("http://www.w3.org/2000/svg", "")), path
        assert not re.search(r"innerHTML|\beval\(|[\"']style[\"'],|<[^>]+ (style|on[a-z]+)=", text), path
    assert "<script>" not in (server.PAGE / "index.html").read_text()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1:1", "localhost", ""])
def test_another_name_is_refused(ask, host):
    for path in ("/", "/api/model"):
        status, _, content = ask("GET", path, Host=host)
        assert status == 403 and b"answers only to 127.0.0.1:" in content


@pytest.mark.parametrize(
    ("method", "headers", "body", "expected"),
    [
        ("POST", {}, b"{}", 415),
        ("POST", {"Content_Type": "text/plain"}, b"{}", 415),
        ("POST", {"Content_Type": "application/json"}, b"{", 400),
        ("POST", {"Content_Type": "application/json"}, b"[1]", 400),
        ("POST", {"Content_Type": "application/json"}, b" " * (1 << 20) + b"{}", 413),
        *(
            ("POST", {"Content_Type": "application/json"}, body, 400)
            for body in (
                b"[" * 200_000,
                b'{"text": ' * 50_000,
                b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
                b'{"token": ' + b"1" * 5000 + b"}",
                b'{"text": "\xff"}',
            )
        ),
    ],
)
def test_what_is_no_request(ask, method, headers, body, expected):
    status, _, content = ask(method, "/api/model", body, **headers)
    assert status == expected and json.loads(content)["error"]


def test_the_model(post, ask, explorer):
    status, model = post("/api/model")
    assert status == 200 and model["config"]["vocab_size"] == 888 and model["heads"] == ["masked_lm", "next_sentence"]
    assert model["path"] == explorer.bert.path
    assert json.loads(ask("GET", "/api/model")[2]) == model
    assert post("/api/nothing") == (404, {"error": "there is no /api/nothing"})


def test_a_sentence(post):
    status, answer = post("/api/sentence", **TEXT, padding=2)
    assert status == 200 and answer["masks"] == [4] and answer["tokens"][1:5] == ["paris", "is", "the", "[MASK]"]
    assert answer["words"] == [["paris", "is", "the", "[MASK]", "of", "france", "."], ["it", "rains"]]


def test_the_first_look_is_at_the_head_that_looks_most_at_a_word(post, explorer):
    answer = post("/api/sentence", **TEXT)[1]
    (mask,) = answer["masks"]
    words = [place for place, token in enumerate(answer["tokens"]) if token[0].isalnum() and abs(place - mask) > 1]
    most = {}
    for layer in range(explorer.bert.config.num_hidden_layers):
        for head in range(explorer.bert.config.num_attention_heads):
            row = unpack(post("/api/attention", **TEXT, layer=layer, head=head)[1]["probabilities"])[mask]
            most[layer, head] = row[words].max()
    assert (answer["layer"], answer["head"]) == max(most, key=most.get)
    for text in ("paris is a city", "a [MASK] city", "[MASK]"):
        without = post("/api/sentence", text=text, text_b="")[1]
        assert (without["layer"], without["head"]) == (0, 0)


def test_the_words_are_those_of_predict_masked(post, explorer):
    found = post("/api/words", **{**TEXT, "text_b": ""}, token=4)[1]["words"]
    (mask,) = explorer.bert.fill_mask(TEXT["text"], top_k=10).masks
    assert [word["token"] for word in found] == [prediction.token for prediction in mask.predictions]
    for word, prediction in zip(found, mask.predictions, strict=True):
        assert word["probability"] == pytest.approx(prediction.probability, rel=1e-4)
        assert unpack(word["row"]).shape == (16,)


SENTENCES = [f"/api/{name}" for name in "sentence maps attention embeddings block words outputs".split()]


def nested(depth: int) -> list:
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("path", "arguments", "problem"),
    [
        ("/api/sentence", {"text": 5}, "text must be a text, not 5"),
        ("/api/sentence", {"text": "a " * 40, "padding": 8}, "The sentence has 50 tokens"),
        ("/api/sentence", {"text": "a", "text_b": "a [Mask]"}, r"The second sentence holds [Mask]; a blank is written"),
        ("/api/sentence", {"text": "a", "padding": 9}, "padding must be a whole number from 0 to 8"),
        ("/api/embeddings", {"text": "the"}, "token must be a whole number from 0 to 2, not None"),
        ("/api/attention", {"text": "the", "layer": 2, "head": 0}, "layer must be a whole number from 0 to 1, not 2"),
        ("/api/attention", {"text": "the", "layer": 0, "head": True}, "head must be"),
        ("/api/words", {"text": "the", "token": -1}, "token must be"),
        ("/api/source", {"key": "x"}, "there is no code for 'x'"),
        # Half a character, of which a browser may send one, and a value that is nested as deep as it can be parsed.
        *((path, {"text": "a \ud83d b"}, "text holds half a character") for path in SENTENCES),
        ("/api/sentence", {"text": "a", "text_b": "\udc00"}, "text_b holds half a character"),
        ("/api/pair", {"text": "a", "other_text": "\udfff"}, "other_text holds half a character"),
        ("/api/source", {"key": "\ud83d"}, "key holds half a character"),
        ("/api/sentence", {"text": nested(300)}, "text must be a text"),
        ("/api/sentence", {"text": "a", "padding": nested(300)}, "padding must be a whole number"),
    ],
)
def test_mistakes_are_told_in_a_sentence(post, path, arguments, problem):
    status, answer = post(path, **arguments)
    assert status == 400 and problem in answer["error"] and "\n" not in answer["error"]


def test_a_text_of_the_command_line_that_is_no_text(weights):
    """As Python reads an argument that is not UTF-8."""
    assert "--text_b" in message_of(Explorer, ExplorerOptions(model=str(weights), text="a", text_b="caf\udce9"))


def test_a_fault_is_one_sentence_and_a_log_line(log_lines):
    application = server.Application({"/api/fault": lambda arguments: 1 // 0}, 8600)
    response = Client(application).get("/api/fault", headers={"Host": "127.0.0.1:8600"})
    assert response.status_code == 500
    assert response.json["error"] == "a fault of this program: ZeroDivisionError; its log has the details"
    assert any("/api/fault failed" in line for line in log_lines)


def test_a_port_that_is_taken():
    with socket.socket() as other:
        other.bind((server.HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=rf"--port={port}: .*; give another one, or --port=0"):
            server.listen(port)


@pytest.mark.slow
def test_the_script_ends_with_one_line(weights, tmp_path):
    command = [sys.executable, str(ROOT / "explore.py"), f"--model={weights}", "--port=0", "--verbosity=-1"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    port = int(re.fullmatch(r"Open http://127\.0\.0\.1:(\d+) in a browser; Ctrl-C ends\.\n", line)[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/api/model")
    assert connection.getresponse().status == 200
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "Ended.\n")
    assert "Traceback" not in err and not [*pathlib.Path(tmp_path).iterdir()]
