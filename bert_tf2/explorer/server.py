"""The server of the page: its files, and JSON under /api/, for this machine alone.

A view is a module with a function `routes(explorer)`, which returns a handler for each address of its own:

    {"/api/sentence": handler}         handler(arguments: dict) -> what JSON can hold

Arguments are the JSON object of a POST; a GET has none. A UserError becomes status 400 with {"error": its sentence}. A
new view adds its `routes` to VIEWS, and its page module to page/app.js.
"""

from __future__ import annotations

import os
import pathlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from absl import logging
from werkzeug import exceptions, serving
from werkzeug.wrappers import Request, Response

from bert_tf2.explorer import code_lines, inventory, sentence, written
from bert_tf2.explorer.opened import Explorer, Handler, to_json
from bert_tf2.explorer.options import ExplorerOptions
from bert_tf2.support import console, process
from bert_tf2.support.errors import UserError

VIEWS: list[Callable[[Explorer], dict[str, Handler]]] = [code_lines.routes, sentence.routes, inventory.routes]

HOST = "127.0.0.1"
PAGE = pathlib.Path(__file__).with_name("page")
# Not from the system's table, which may say something else of .js.
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
_HEADERS = {
    # Everything is from this server: no inline script or style, no other site, no frame around the page.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",  # another model, or a newer version, may answer at the same address
}


def run(options: ExplorerOptions) -> None:
    """Shows the page until a signal asks to stop; or writes the file of --write."""
    if options.write:
        written.write_page(options.write, Explorer(options), PAGE)
        return console.summary([options.write])
    listening = listen(options.port)  # before the model is loaded, which takes longer
    explorer = Explorer(options)
    port = listening.getsockname()[1]
    server = serve(explorer, listening)
    asked, ask = os.pipe()
    process.handle_signals(lambda number, frame: os.write(ask, b"."))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    print(f"Open http://{HOST}:{port} in a browser; Ctrl-C ends.", flush=True)
    os.read(asked, 1)
    server.shutdown()
    print("Ended.", flush=True)


def listen(port: int) -> socket.socket:
    """A socket of this machine alone. Raises UserError if the port is taken or not allowed."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()
        return listening
    except OSError as error:
        listening.close()
        raise UserError(f"--port={port}: {error.strerror}; give another one, or --port=0 for any free one") from None


def serve(explorer: Explorer, listening: socket.socket) -> serving.BaseWSGIServer:
    port, fd = listening.getsockname()[1], listening.fileno()
    application = Application(explorer, port)
    return serving.make_server(HOST, port, application, threaded=True, request_handler=_QuietHandler, fd=fd)


class _QuietHandler(serving.WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        logging.debug(message, *args)


class Application:
    def __init__(self, explorer: Explorer, port: int):
        self._lock = threading.Lock()
        self._hosts = {f"{HOST}:{port}", f"localhost:{port}"}
        self._handlers: dict[str, Handler] = {"/api/model": lambda arguments: explorer.describe()}
        for routes in VIEWS:
            self._handlers.update(routes(explorer))

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
            told = f"a fault of this program: {type(error).__name__}; its log has the details"
            response = _json(500, {"error": told})
        response.headers.update(_HEADERS)
        return response(environ, start_response)

    def _answer(self, request: Request) -> Response:
        # A page of another site, whose name server says that it is here ("DNS rebinding"), asks under its own name.
        if request.headers.get("Host", "") not in self._hosts:
            raise exceptions.Forbidden(f"this server answers only to {' and '.join(sorted(self._hosts))}")
        if not request.path.startswith("/api/"):
            return _file(request.path.removeprefix("/") or "index.html")
        handler = self._handlers.get(request.path)
        if handler is None:
            raise exceptions.NotFound(f"there is no {request.path}")
        # Only as application/json, since pages of other sites may send other types without asking.
        arguments = request.get_json() if request.method == "POST" else {}
        if not isinstance(arguments, dict):
            raise exceptions.BadRequest("the arguments must be a JSON object")
        with self._lock:  # so that two requests do not need the memory of both
            return _json(200, handler(arguments))


class _Request(Request):
    max_content_length = 1 << 20  # 512 tokens have a few thousand


def _file(name: str) -> Response:
    if name not in os.listdir(PAGE):
        raise exceptions.NotFound(f"there is no file {name}")
    return Response((PAGE / name).read_bytes(), content_type=f"{_TYPES[pathlib.Path(name).suffix]}; charset=utf-8")


def _json(status: int, content: Any) -> Response:
    return Response(to_json(content), status, content_type="application/json; charset=utf-8")
