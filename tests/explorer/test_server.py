"""The server: its answers, its refusals, and who gets none; and the page as one file (explore.py --write)."""

from __future__ import annotations

import base64
import json
import os
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
from refused import refuses
from small_models import MAKERS
from werkzeug.test import Client

from bert_tf2.explorer import code_lines, model, server
from bert_tf2.explorer.model import Explorer
from bert_tf2.explorer.options import ExplorerOptions
from bert_tf2.weights import names
from bert_tf2.weights.task_file import LabelMap, save_label_map

TEXT = {"text": "Paris is the [MASK] of France.", "text_b": "It rains"}
HOST = {"Host": "127.0.0.1:8600"}
JSON = {**HOST, "Content-Type": "application/json"}


def client_of(explorer: Explorer) -> Client:
    return Client(server.Application(server.handlers(explorer), 8600))


@pytest.fixture(scope="module")
def client(explorer) -> Client:
    return client_of(explorer)


@pytest.fixture(scope="module")
def post(client):
    """post("x", name=value) -> the answer of /api/x."""

    def posted(path: str, **arguments):
        return client.post(f"/api/{path}", data=json.dumps(arguments).encode(), headers=JSON).json

    return posted


def unpack(packed) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["float32"]), "<f4").reshape(packed["shape"])


def test_the_files_of_the_page_name_no_other_place_and_only_code_that_exists(client, post):
    """No address but the names of XML, nothing that the policy of the page would block; links lead to their code."""
    asked = set()
    for path in server.PAGE.iterdir():
        response = client.get(f"/{path.name}", headers=HOST)
        assert (response.status_code, response.data) == (200, path.read_bytes())
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["Content-Security-Policy"].startswith("default-src 'self';")
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"(?:https?:)?//[a-z0-9]+\.[a-z]", text.replace("http://www.w3.org/2000/svg", "")), path
        assert not re.search(r"innerHTML|\beval\(|[\"']style[\"'],|<[^>]+ (style|on[a-z]+)=|<script>", text), path
        asked |= {*re.findall(r'(?:codeLink\(|vector\(\s*"\w+",)\s*"([\w.]+)"', text)}
    assert client.get("/", headers=HOST).data == (server.PAGE / "index.html").read_bytes()
    assert client.get("/app.js", headers=HOST).headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert len(asked) > 15 and asked <= {*code_lines.PLACES}
    for key, place in code_lines.PLACES.items():
        found = post("source", key=key)
        line = (ROOT / found["file"]).read_text().splitlines()[found["line"] - 1]
        assert place.expression in line and not line.strip().startswith("#")
        assert found["lines"][found["line"] - found["first"]].strip() == line.strip()


@pytest.mark.parametrize(
    ("path", "body", "status", "problem"),
    [
        *((path, None, 404, "there is no") for path in ("none.js", "../server.py", "%2e%2e/server.py", "api/nothing")),
        ("api/model", b" " * (1 << 20) + b"{}", 413, ""),
        *(("api/model", body, 400, "") for body in (b"{", b"[1]", b"[" * 200_000, b'{"text": "\xff"}')),
        ("api/sentence", {"text": 5}, 400, "text must be a text"),
        ("api/sentence", {"text": " "}, 400, "empty"),
        ("api/sentence", {"text": "a " * 40, "padding": 8}, 400, "50 tokens"),
        ("api/sentence", {"text": "a", "text_b": "a [Mask]"}, 400, "[MASK]"),
        ("api/sentence", {"text": "a", "padding": 9}, 400, "padding must be a whole number from 0 to 8"),
        ("api/sentence", {"text": "a \ud83d b"}, 400, "text has half"),  # a character, of which browsers may send one
        ("api/pair", {"text": "a", "other_text": ""}, 400, "other sentence is empty"),
        ("api/attention", {"text": "the", "layer": 2, "head": 0}, 400, "layer must be a whole number from 0 to 1"),
        ("api/attention", {"text": "the", "layer": 0, "head": True}, 400, "head must be"),
        ("api/source", {"key": "x"}, 400, "no code for 'x'"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_refusal_is_one_sentence(client, path, body, status, problem):
    if body is None:
        response = client.get(f"/{path}", headers=HOST)
    else:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = client.post(f"/{path}", data=data, headers=JSON)
    error = response.json["error"]
    assert response.status_code == status and problem in error and "\n" not in error


def test_pages_of_other_sites_get_no_answer(client):
    """They may ask under another name of this machine, or send other types."""
    for host in ("evil.example:80", "127.0.0.1:1", "localhost", ""):
        assert client.get("/api/model", headers={"Host": host}).status_code == 403
    plain = {**HOST, "Content-Type": "text/plain"}
    assert client.post("/api/model", data=b"{}", headers=plain).status_code == 415


def test_the_sentence_and_where_the_page_begins_to_look(post, explorer):
    """At the head that looks most at a word."""
    found = post("model")
    assert found["heads"] == ["masked_lm", "next_sentence"] and found["path"] == explorer.bert.path
    answer = post("sentence", **TEXT, padding=2)
    assert answer["words"] == [["paris", "is", "the", "[MASK]", "of", "france", "."], ["it", "rains"]]
    assert answer["tokens"][3:6] == ["the", "[MASK]", "of"] and answer["tokens"][-3:] == ["[SEP]", "[PAD]", "[PAD]"]
    assert answer["masks"] == [4] and answer["input_mask"] == [1] * 13 + [0, 0]
    assert answer["segment_ids"] == [0] * 9 + [1] * 4 + [0, 0] and answer["input_ids"][-2:] == [0, 0]
    words = post("words", text=TEXT["text"], token=4)["words"]
    (mask,) = explorer.bert.fill_mask(TEXT["text"], top_k=10).masks
    assert [word["token"] for word in words] == [prediction.token for prediction in mask.predictions]
    shares = [prediction.probability for prediction in mask.predictions]
    assert [word["probability"] for word in words] == pytest.approx(shares, rel=1e-4)

    answer = post("sentence", **TEXT)
    words = [place for place, token in enumerate(answer["tokens"]) if token[0].isalnum() and abs(place - 4) > 1]
    most, maps = {}, unpack(post("maps", **TEXT)["maps"])
    for layer, head in ((0, 0), (0, 1), (1, 0), (1, 1)):
        weights = unpack(post("attention", **TEXT, layer=layer, head=head)["probabilities"])
        np.testing.assert_array_equal(maps[layer, head], weights)
        most[layer, head] = weights[4, words].max()
    assert (answer["layer"], answer["head"]) == max(most, key=most.get)


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("pretraining", "classifier", "tagging")]


@pytest.mark.parametrize("kind", ["span", *SLOW])
def test_the_outputs_of_every_head_and_the_code_of_its_variables(kind, saved, tmp_path):
    folder = saved(tmp_path / "model", MAKERS[kind], 5)
    if kind == "tagging":  # whose variables are those of a classifier
        save_label_map(folder, LabelMap("ner", ("O", "B-A", "B-B"), False))
    explorer = Explorer(ExplorerOptions(model=folder))
    about, made = {**TEXT, "text": "Paris is in France.", "padding": 2}, explorer.bert.model
    ((answer,),) = client_of(explorer).post("/api/outputs", json=about, headers=HOST).json.values()
    sentence = client_of(explorer).post("/api/sentence", json=about, headers=HOST).json
    batch = {name: np.array([sentence[name]]) for name in ("input_ids", "input_mask", "segment_ids")}
    if kind == "pretraining":
        logits = made.next_sentence(made.encode(batch).pooled_output)[0]
    elif kind == "span":  # each column is of all tokens, and none of padding
        start, end = made(batch)
        logits = np.where(batch["input_mask"][0] == 1, [start[0], end[0]], -np.inf)
    else:
        logits = made(batch)[0]
    wanted, values = tf.nn.softmax(logits).numpy(), unpack(answer["values"])
    np.testing.assert_allclose(values, wanted.T if kind == "span" else wanted, rtol=1e-4, atol=1e-6)
    assert answer["of"] == ("text" if kind in ("pretraining", "classifier") else "tokens")
    assert len(answer["labels"]) == values.shape[-1]
    assert {model.code_of(name) for name in names.tf1_variables(made)} <= {*code_lines.PLACES}


def test_two_sentences_side_by_side(post, explorer):
    about = {"text": "Paris is in [MASK].", "other_text": "Rome is in the [MASK]."}
    pair = post("pair", **about)
    tokens = post("sentence", text=about["text"])["tokens"]
    common = [(tokens[one], pair["tokens"][other]) for one, other in pair["pairs"]]
    assert common == [(token, token) for token in ("[CLS]", "[MASK]", ".", "[SEP]")]
    (words,) = pair["words"]
    for name, text in (("probability", about["text"]), ("other", about["other_text"])):
        best = explorer.bert.fill_mask(text, top_k=1).masks[0].predictions[0]
        (share,) = [word[name] for word in words["words"] if word["token"] == best.token]
        assert share == pytest.approx(best.probability, rel=1e-4)
    assert unpack(pair["states"]).shape == (3, 4) and unpack(pair["heads"]).shape == (2, 2)
    weights = post("pair_attention", **about, layer=1, head=1)
    assert unpack(weights["weights"]).shape == unpack(weights["other_weights"]).shape == (4, 4)


def test_faults_and_mistakes_of_the_command_line(weights, log_lines):
    """A text as Python reads an argument that is not UTF-8, and a port that is taken."""
    application = server.Application({"/api/fault": lambda arguments: 1 // 0}, 8600)
    response = Client(application).get("/api/fault", headers=HOST)
    assert response.status_code == 500 and "ZeroDivisionError" in response.json["error"]
    assert any("/api/fault failed" in line for line in log_lines)
    refuses("--text_b", Explorer, ExplorerOptions(model=weights, text="a", text_b="caf\udce9"))
    with socket.socket() as other:
        other.bind((server.HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        refuses(f"--port={port}: --port=0", server.listen, port)


@pytest.mark.slow
def test_the_script_ends_with_one_line(weights, tmp_path):
    command = [sys.executable, str(ROOT / "explore.py"), f"--model={weights}", "--port=0", "--verbosity=-1"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    address = re.fullmatch(r"Open (http://127\.0\.0\.1:\d+) in a browser; Ctrl-C ends\.\n", line)[1]
    assert urllib.request.urlopen(f"{address}/api/model", timeout=30).status == 200
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "Ended.\n") and "Traceback" not in err


def test_a_page_in_one_file(weights, tmp_path):
    """Without the folder of the weights; written into a pipe, which cannot be read. test_walks opens such a page."""
    os.mkfifo(tmp_path / "page.html")
    options = ExplorerOptions(model=weights, text="Paris </script> [MASK].", write=str(tmp_path / "page.html"))
    with open(tmp_path / "copy.html", "wb") as copy, subprocess.Popen(["cat", tmp_path / "page.html"], stdout=copy):
        server.run(options)
    text = (tmp_path / "copy.html").read_text(encoding="utf-8")
    assert text.lower().startswith("<!doctype html>") and weights not in text and text.count("</script>") == 3
    answers = json.loads(re.search(r'id="answers">(.*?)</script>', text)[1])
    assert answers["/api/model {}"]["path"] == "model.ckpt-7"
