"""The server: what it answers, to whom, and how it says no; and the page as one file (explore.py --write)."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
import tensorflow as tf
from command_lines import ROOT
from refused import message_of
from small_models import MAKERS
from werkzeug.test import Client

import bert_tf2
from bert_tf2.explorer import code_lines, server
from bert_tf2.explorer.model import Explorer
from bert_tf2.explorer.options import ExplorerOptions
from bert_tf2.weights.task_file import LabelMap, save_label_map

TEXT = {"text": "Paris is the [MASK] of France.", "text_b": "It rains"}
HOST = {"Host": "127.0.0.1:8600"}
JSON = {**HOST, "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def client(explorer) -> Client:
    return Client(server.Application(server.handlers(explorer), 8600))


@pytest.fixture(scope="module")
def post(client):
    """post("/api/x", name=value) -> (status, answer)."""

    def posted(path: str, **arguments):
        response = client.post(path, data=json.dumps(arguments).encode(), headers=JSON)
        return response.status_code, response.json

    return posted


def unpack(packed) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["float32"]), "<f4").reshape(packed["shape"])


def test_the_files_of_the_page(client):
    for path in server.PAGE.iterdir():
        response = client.get(f"/{path.name}", headers=HOST)
        assert (response.status_code, response.data) == (200, path.read_bytes())
        assert response.headers["Content-Type"].endswith("; charset=utf-8")
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert client.get("/", headers=HOST).data == (server.PAGE / "index.html").read_bytes()
    assert client.get("/app.js", headers=HOST).headers["Content-Type"].startswith("text/javascript")


def test_the_page_names_no_other_place_and_only_code_that_exists():
    """No address but the names of XML, and nothing that the policy of the page would block."""
    asked = set()
    for path in server.PAGE.iterdir():
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"(?:https?:)?//[a-z0-9]+\.[a-z]", text.replace("http://www.w3.org/2000/svg", "")), path
        assert not re.search(r"innerHTML|\beval\(|[\"']style[\"'],|<[^>]+ (style|on[a-z]+)=|<script>", text), path
        asked |= {*re.findall(r'(?:codeLink\(|vector\(\s*"\w+",)\s*"([\w.]+)"', text)}
        if path.suffix != ".svg":  # the form of `npx prettier --print-width 120 --object-wrap=collapse`
            assert text.count("\n") <= 400 and max(map(len, text.splitlines())) <= 120, path.name
    assert len(asked) > 15 and asked <= {*code_lines.PLACES}


@pytest.mark.parametrize("key", code_lines.PLACES)
def test_every_link_leads_to_the_line_that_computes_it(key, post):
    found = post("/api/source", key=key)[1]
    text = (ROOT / found["file"]).read_text().splitlines()
    line = text[found["line"] - 1]
    assert code_lines.PLACES[key].expression in line and not line.strip().startswith("#")
    assert found["lines"][found["line"] - found["first"]].strip() == line.strip()


FILES = ("/none.js", "/" + "a" * 300, "/../server.py", "/%2e%2e/server.py", "/page/app.js", "/..%5cserver.py")
BODIES = [b"{", b"[1]", b"[" * 200_000, b'{"text": ' * 50_000, b'{"text": "\xff"}', b'{"token": ' + b"1" * 5000 + b"}"]


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        *((path, HOST, None, 404) for path in (*FILES, "/api/nothing")),
        *((path, {"Host": host}, None, 403) for host in ("evil.example:80", "127.0.0.1:1", "localhost", "")
          for path in ("/", "/api/model")),
        ("/api/model", HOST, b"{}", 415),
        ("/api/model", {**HOST, "Content-Type": "text/plain"}, b"{}", 415),
        ("/api/model", JSON, b" " * (1 << 20) + b"{}", 413),
        *(("/api/model", JSON, body, 400) for body in (*BODIES, b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_what_is_refused(client, path, headers, body, status):
    """Other files and hosts, and bodies that are no request; of other types, which pages of other sites may send."""
    response = client.get(path, headers=headers) if body is None else client.post(path, data=body, headers=headers)
    assert response.status_code == status and response.json["error"]


def test_the_model_and_its_sentence(client, post, explorer):
    status, model = post("/api/model")
    assert status == 200 and model["config"]["vocab_size"] == 888 and model["heads"] == ["masked_lm", "next_sentence"]
    assert model["path"] == explorer.bert.path and client.get("/api/model", headers=HOST).json == model
    status, answer = post("/api/sentence", **TEXT, padding=2)
    assert status == 200 and answer["tokens"][1:5] == ["paris", "is", "the", "[MASK]"] and answer["masks"] == [4]
    assert answer["tokens"][-3:] == ["[SEP]", "[PAD]", "[PAD]"] and answer["input_mask"] == [1] * 13 + [0, 0]
    assert answer["segment_ids"] == [0] * 9 + [1] * 4 + [0, 0] and answer["input_ids"][-2:] == [0, 0]
    assert answer["words"] == [["paris", "is", "the", "[MASK]", "of", "france", "."], ["it", "rains"]]
    found = post("/api/words", text=TEXT["text"], token=4)[1]["words"]
    (mask,) = explorer.bert.fill_mask(TEXT["text"], top_k=10).masks
    assert [word["token"] for word in found] == [prediction.token for prediction in mask.predictions]
    shares = [prediction.probability for prediction in mask.predictions]
    assert [word["probability"] for word in found] == pytest.approx(shares, rel=1e-4)


@pytest.mark.parametrize("kind", ["pretraining", "classifier", "span", "tagging"])
def test_the_outputs_of_every_head(kind, saved, tmp_path):
    folder = saved(tmp_path / "model", MAKERS[kind], 5)
    if kind == "tagging":  # whose variables are those of a classifier
        save_label_map(folder, LabelMap("ner", ("O", "B-A", "B-B"), False))
    client = Client(server.Application(server.handlers(Explorer(ExplorerOptions(model=folder))), 8600))
    about = {**TEXT, "text": "Paris is in France.", "padding": 2}
    ((answer,),) = client.post("/api/outputs", json=about, headers=HOST).json.values()
    sentence = client.post("/api/sentence", json=about, headers=HOST).json
    batch = {name: np.array([sentence[name]]) for name in ("input_ids", "input_mask", "segment_ids")}
    model = bert_tf2.load(folder).model
    if kind == "pretraining":
        logits = model.next_sentence(model.encode(batch).pooled_output)[0]
    elif kind == "span":  # each column is of all tokens, and none of padding
        start, end = model(batch)
        logits = np.where(batch["input_mask"][0] == 1, [start[0], end[0]], -np.inf)
    else:
        logits = model(batch)[0]
    wanted = tf.nn.softmax(logits).numpy()
    values = unpack(answer["values"])
    np.testing.assert_allclose(values, wanted.T if kind == "span" else wanted, rtol=1e-4, atol=1e-6)
    assert answer["of"] == ("text" if kind in ("pretraining", "classifier") else "tokens")
    assert len(answer["labels"]) == values.shape[-1]


def test_two_sentences_side_by_side(post, explorer):
    about = {"text": "Paris is in [MASK].", "other_text": "Rome is in the [MASK]."}
    status, pair = post("/api/pair", **about)
    tokens = post("/api/sentence", text=about["text"])[1]["tokens"]
    common = [(tokens[one], pair["tokens"][other]) for one, other in pair["pairs"]]
    assert status == 200 and common == [(token, token) for token in ("[CLS]", "[MASK]", ".", "[SEP]")]
    (words,) = pair["words"]
    for name, text in (("probability", about["text"]), ("other", about["other_text"])):
        best = explorer.bert.fill_mask(text, top_k=1).masks[0].predictions[0]
        (share,) = [word[name] for word in words["words"] if word["token"] == best.token]
        assert share == pytest.approx(best.probability, rel=1e-4)
    assert unpack(pair["states"]).shape == (3, 4) and unpack(pair["heads"]).shape == (2, 2)
    weights = post("/api/pair_attention", **about, layer=1, head=1)[1]
    assert unpack(weights["weights"]).shape == unpack(weights["other_weights"]).shape == (4, 4)


def test_the_first_look_is_at_the_head_that_looks_most_at_a_word(post):
    answer = post("/api/sentence", **TEXT)[1]
    words = [place for place, token in enumerate(answer["tokens"]) if token[0].isalnum() and abs(place - 4) > 1]
    most, maps = {}, unpack(post("/api/maps", **TEXT)[1]["maps"])
    for layer, head in ((0, 0), (0, 1), (1, 0), (1, 1)):
        weights = unpack(post("/api/attention", **TEXT, layer=layer, head=head)[1]["probabilities"])
        np.testing.assert_array_equal(maps[layer, head], weights)
        most[layer, head] = weights[4, words].max()
    assert (answer["layer"], answer["head"]) == max(most, key=most.get)
    for text in ("paris is a city", "a [MASK] city", "[MASK]"):
        without = post("/api/sentence", text=text, text_b="")[1]
        assert (without["layer"], without["head"]) == (0, 0)


def nested(depth: int) -> list:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("path", "arguments", "problem"),
    [
        ("sentence", {"text": 5}, "text must be a text"),
        ("sentence", {"text": " "}, "empty"),
        ("sentence", {"text": "a " * 40, "padding": 8}, "50 tokens"),
        ("sentence", {"text": "a", "text_b": "a [Mask]"}, "[MASK]"),
        ("sentence", {"text": "a", "padding": 9}, "padding must be a whole number from 0 to 8"),
        ("embeddings", {"text": "the"}, "token must be a whole number from 0 to 2"),
        ("attention", {"text": "the", "layer": 2, "head": 0}, "layer must be a whole number from 0 to 1"),
        ("attention", {"text": "the", "layer": 0, "head": True}, "head must be"),
        ("words", {"text": "the", "token": -1}, "token must be"),
        ("source", {"key": "x"}, "no code for 'x'"),
        ("pair", {"text": "a", "other_text": ""}, "other sentence is empty"),
        # Half a character, of which a browser may send one, and a value that is nested as deep as it can be parsed.
        *((path, {"text": "a \ud83d b"}, "text holds half") for path in ("sentence", "maps", "block", "outputs")),
        ("sentence", {"text": "a", "text_b": "\udc00"}, "text_b holds half a character"),
        ("pair", {"text": "a", "other_text": "\udfff"}, "other_text holds half a character"),
        ("source", {"key": "\ud83d"}, "key holds half a character"),
        ("sentence", {"text": nested(300)}, "text must be a text"),
        ("sentence", {"text": "a", "padding": nested(300)}, "padding must be a whole number"),
    ],
)
def test_mistakes_are_told_in_a_sentence(post, path, arguments, problem):
    status, answer = post(f"/api/{path}", **arguments)
    assert status == 400 and problem in answer["error"] and "\n" not in answer["error"]


def test_faults_and_mistakes_of_the_command_line(weights, log_lines):
    """A text as Python reads an argument that is not UTF-8, and a port that is taken."""
    application = server.Application({"/api/fault": lambda arguments: 1 // 0}, 8600)
    response = Client(application).get("/api/fault", headers=HOST)
    assert response.status_code == 500 and "ZeroDivisionError" in response.json["error"]
    assert any("/api/fault failed" in line for line in log_lines)
    assert "--text_b" in message_of(Explorer, ExplorerOptions(model=str(weights), text="a", text_b="caf\udce9"))
    with socket.socket() as other:
        other.bind((server.HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        message = message_of(server.listen, port)
        assert f"--port={port}: " in message and "--port=0" in message


@pytest.mark.slow
def test_the_script_ends_with_one_line(weights, tmp_path):
    command = [sys.executable, str(ROOT / "explore.py"), f"--model={weights}", "--port=0", "--verbosity=-1"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    address = re.fullmatch(r"Open (http://127\.0\.0\.1:\d+) in a browser; Ctrl-C ends\.\n", line)[1]
    assert urllib.request.urlopen(f"{address}/api/model", timeout=30).status == 200
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "Ended.\n")
    assert "Traceback" not in err and not [*pathlib.Path(tmp_path).iterdir()]


def test_a_page_in_one_file(weights, classifier, tmp_path):
    """It tells nobody where the weights lie; a pipe is written to and not read. test_walks opens one."""
    os.mkfifo(tmp_path / "page.html")
    options = ExplorerOptions(model=weights, text="Paris is in </script> [MASK].", write=str(tmp_path / "page.html"))
    with open(tmp_path / "copy.html", "wb") as copy, subprocess.Popen(["cat", tmp_path / "page.html"], stdout=copy):
        server.run(options)
    text = (tmp_path / "copy.html").read_text(encoding="utf-8")
    assert text.lower().startswith("<!doctype html>") and weights not in text and text.count("</script>") == 3
    answers = json.loads(re.search(r'id="answers">(.*?)</script>', text)[1])
    assert answers["/api/model {}"]["path"] == "model.ckpt-7"
    server.write_page(str(tmp_path / "other.html"), Explorer(ExplorerOptions(model=classifier)))
    assert "The capital of France is Paris." in (tmp_path / "other.html").read_text()
