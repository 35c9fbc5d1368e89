"""The page: from a server for this machine alone, or (--write) as one file with a sentence, without a server.

The server has the files of the page, and JSON under /api/ (`handlers`). Arguments are the JSON object of a POST; a GET
has no arguments. A UserError becomes status 400 with {"error": its message}. A new tab is a module of page/app.js.

The file of --write has every answer that the tab of the sentence requests, where `api` of page/app.js finds it.
"""

from __future__ import annotations

import base64
import functools
import itertools
import os
import pathlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging
from werkzeug import exceptions, serving
from werkzeug.wrappers import Request, Response

from bert_tf2.explorer import code_lines, sentence
from bert_tf2.explorer.model import Explorer, Handler, read_text, to_json
from bert_tf2.explorer.options import ExplorerOptions
from bert_tf2.support import console, files, process
from bert_tf2.support.errors import UserError

HOST = "127.0.0.1"
PAGE = pathlib.Path(__file__).with_name("page")
_MODULES = "bert_tf2/"  # replaces the folder of the modules, which have no address in a single file
# Not from the system's table, which may have another type for .js.
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
_HEADERS = {
    # Allows only content of this server: no inline script or style, no other site, no frame around the page.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",  # another model, or a newer version, may answer at the same address
}


def run(options: ExplorerOptions) -> None:
    """Serves the page until a signal stops the server; or writes the file of --write."""
    if options.write:
        write_page(options.write, Explorer(options))
        return console.summary([options.write])
    listening = listen(options.port)  # reports a wrong port before the model is loaded
    explorer = Explorer(options)
    port = listening.getsockname()[1]
    server = serve(explorer, listening)
    asked, ask = os.pipe()
    before = process.handle_signals(lambda number, frame: os.write(ask, b"."))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        print(f"Open http://{HOST}:{port} in a browser; Ctrl-C ends.", flush=True)
        os.read(asked, 1)
    finally:
        process.restore_signals(before)
        server.shutdown()
        thread.join()
        listening.close()
        os.close(asked)
        os.close(ask)
    print("Ended.", flush=True)


def listen(port: int) -> socket.socket:
    """A socket that only this machine can reach. Raises UserError if the port is taken or not allowed."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()
        return listening
    except OSError as error:
        listening.close()
        raise UserError(f"--port={port}: {error.strerror}; give another port, or --port=0 for any free port") from None


def serve(explorer: Explorer, listening: socket.socket) -> serving.BaseWSGIServer:
    port, fd = listening.getsockname()[1], listening.fileno()
    application = Application(handlers(explorer), port)
    return serving.make_server(HOST, port, application, threaded=True, request_handler=_QuietHandler, fd=fd)


def handlers(explorer: Explorer) -> dict[str, Handler]:
    """Address -> the function that answers its requests."""
    inventory = functools.cache(explorer.inventory)
    return {
        "/api/model": lambda arguments: explorer.describe(),
        "/api/inventory": lambda arguments: inventory(),
        "/api/source": lambda arguments: code_lines.source(read_text(arguments, "key")),
        **sentence.routes(explorer),
    }


class _QuietHandler(serving.WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        logging.debug(message, *args)


class Application:
    def __init__(self, handlers: dict[str, Handler], port: int):
        self._lock = threading.Lock()
        self._hosts = {f"{HOST}:{port}", f"localhost:{port}"}
        self._handlers = handlers

    def __call__(self, environ: dict[str, Any], start_response: Callable) -> Any:
        request = _Request(environ)
        try:
            response = self._answer(request)
        except exceptions.HTTPException as refused:
            response = _json(refused.code, {"error": refused.description})
        except UserError as error:
            response = _json(400, {"error": str(error)})
        except Exception as error:
            logging.exception("%s failed", request.path)
            problem = f"an error in this program: {type(error).__name__}; its log has the details"
            response = _json(500, {"error": problem})
        response.headers.update(_HEADERS)
        return response(environ, start_response)

    def _answer(self, request: Request) -> Response:
        # Refuses pages of other sites whose name server points to this machine ("DNS rebinding"): their Host differs.
        if request.headers.get("Host", "") not in self._hosts:
            raise exceptions.Forbidden(f"this server answers only to {' and '.join(sorted(self._hosts))}")
        if not request.path.startswith("/api/"):
            return _file(request.path.removeprefix("/") or "index.html")
        handler = self._handlers.get(request.path)
        if handler is None:
            raise exceptions.NotFound(f"there is no {request.path}")
        # get_json takes only application/json, because pages of other sites may send other types without permission.
        try:
            arguments = request.get_json() if request.method == "POST" else {}
        except RecursionError:
            raise exceptions.BadRequest("the arguments are nested too deep; they are texts and numbers") from None
        if not isinstance(arguments, dict):
            raise exceptions.BadRequest("the arguments must be a JSON object")
        with self._lock:  # so that two requests do not need the memory of both
            return _json(200, handler(arguments))


class _Request(Request):
    max_content_length = 1 << 20  # bytes; 512 tokens have a few thousand


def _file(name: str) -> Response:
    if name not in os.listdir(PAGE):
        raise exceptions.NotFound(f"there is no file {name}")
    return Response((PAGE / name).read_bytes(), content_type=f"{_TYPES[pathlib.Path(name).suffix]}; charset=utf-8")


def _json(status: int, content: Any) -> Response:
    return Response(to_json(content), status, content_type="application/json; charset=utf-8")


def write_page(path: str, explorer: Explorer) -> None:
    """Writes the HTML file for the initial sentence of the page."""
    model, answering = explorer.describe(), handlers(explorer)
    example = "The capital of France is " + ("[MASK]." if "masked_lm" in model["heads"] else "Paris.")
    model["texts"] = {**explorer.texts, "text": explorer.texts["text"] or example}
    model["path"] = os.path.basename(os.path.normpath(model["path"]))  # does not publish the folders of this machine
    answers = {_key("/api/model", {}): {**model, "written": True}}
    answers |= {_key(name, arguments): answering[name](arguments) for name, arguments in _requests(model, answering)}
    files.write_text(path, _html(answers))


def _requests(model: dict[str, Any], answering: dict[str, Handler]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All requests of the view of the sentence: path and arguments."""
    texts, config = model["texts"], model["config"]
    layers, heads = range(config["num_hidden_layers"]), range(config["num_attention_heads"])
    about = {"text": texts["text"], "text_b": texts["text_b"], "padding": 0}
    yield "/api/sentence", about
    tokens = range(len(answering["/api/sentence"](about)["tokens"]))
    yield "/api/maps", about
    yield "/api/maps", {**about, "all": 1}
    for layer in layers:
        yield from (("/api/attention", {**about, "layer": layer, "head": head}) for head in heads)
        yield from (("/api/block", {**about, "layer": layer, "token": token}) for token in tokens)
    for token in tokens:
        yield "/api/embeddings", {**about, "token": token}
        if "masked_lm" in model["heads"]:
            yield "/api/words", {**about, "token": token}
    yield "/api/outputs", about
    if texts["other_text"]:
        pair = {**about, "other_text": texts["other_text"]}
        yield "/api/pair", pair
        each = itertools.product(layers, heads)
        yield from (("/api/pair_attention", {**pair, "layer": layer, "head": head}) for layer, head in each)
    yield from (("/api/source", {"key": key}) for key in code_lines.PLACES)


def _key(path: str, arguments: dict[str, Any]) -> str:
    """The key of an answer, the same as from `answerKey` of page/app.js."""
    return f"{path} {to_json(dict(sorted(arguments.items())))}"


def _html(answers: dict[str, Any]) -> str:
    imports = {}
    for path in sorted(PAGE.glob("*.js")):
        # Imports of "./name.js" become names of the import map.
        text = re.sub(r"""(from |import\()(["'`])\./""", rf"\1\2{_MODULES}", path.read_text(encoding="utf-8"))
        encoded = base64.b64encode(text.encode("utf-8")).decode("ascii")
        imports[f"{_MODULES}{path.name}"] = f"data:text/javascript;base64,{encoded}"
    style = (PAGE / "style.css").read_text(encoding="utf-8")
    within_script = to_json(answers).replace("<", "\\u003c")  # so that no text ends the script element
    parts = {
        '<link rel="icon" href="icon.svg" type="image/svg+xml">': "",
        '<link rel="stylesheet" href="style.css">': f"<style>\n{style}</style>",
        '<script type="module" src="app.js"></script>': (
            f'<script type="application/json" id="answers">{within_script}</script>\n'
            f'  <script type="importmap">{to_json({"imports": imports})}</script>\n'
            f'  <script type="module">import "{_MODULES}app.js";</script>'
        ),
    }
    text = (PAGE / "index.html").read_text(encoding="utf-8")
    for tag, replacement in parts.items():
        text = text.replace(tag, replacement)
    return text
