"""The server of the page: its files, and JSON under /api/, for this machine alone.

A view is a module with a function `routes(explorer)`, which returns a handler for each address of its own:

    {"/api/sentence": handler}         handler(arguments: dict) -> what JSON can hold

Arguments are the JSON object of a POST or the query of a GET (where all values are strings). A UserError becomes
status 400 with {"error": its sentence}. A new view adds its `routes` to VIEWS, and its page module to page/app.js.
"""

from __future__ import annotations

import json
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
from bert_tf2.explorer.opened import Explorer, Handler
from bert_tf2.explorer.options import ExplorerOptions
from bert_tf2.support import environment, process
from bert_tf2.support.errors import UserError

VIEWS: list[Callable[[Explorer], dict[str, Handler]]] = [
    code_lines.routes,
    sentence.routes,
    inventory.routes,
]

HOST = "127.0.0.1"
PAGE = pathlib.Path(__file__).with_name("page")
# Not from the system's table, which may say something else of .js.
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
_MOST_BYTES = 1 << 20  # of a request; 512 tokens have a few thousand

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
        written.run(options, PAGE)
        return
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
    except OSError as error:
        listening.close()
        raise UserError(
            f"--port={port}: {environment.explain(error) or error.strerror}; give another one, or --port=0 for any"
            " free one"
        ) from None
    return listening


def serve(explorer: Explorer, listening: socket.socket) -> serving.BaseWSGIServer:
    """The server on a socket; its `serve_forever` answers, in a thread for each request."""
    port = listening.getsockname()[1]
    application = Application(explorer, port)
    return serving.make_server(
        HOST, port, application, threaded=True, request_handler=_QuietHandler, fd=listening.fileno()
    )


class _QuietHandler(serving.WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        logging.debug(message, *args)


class Application:
    """The WSGI application."""

    def __init__(self, explorer: Explorer, port: int):
        self._hosts = {f"{HOST}:{port}", f"localhost:{port}"}
        self._handlers: dict[str, Handler] = {"/api/model": lambda arguments: explorer.describe()}
        for routes in VIEWS:
            self._handlers.update(routes(explorer))

    def __call__(self, environ: dict[str, Any], start_response: Callable) -> Any:
        request = Request(environ)
        try:
            response = self._answer(request)
        except exceptions.HTTPException as refused:
            response = _json(refused.code, {"error": refused.description})
        except UserError as error:
            response = _json(400, {"error": str(error)})
        except Exception as error:
            logging.exception("%s failed", request.path)
            fault = f"a fault of this program: {type(error).__name__}; its log has the details"
            if environment.is_out_of_memory(error):
                fault = "the memory is not enough for this sentence; give a shorter one"
            response = _json(500, {"error": fault})
        response.headers.update(_HEADERS)
        return response(environ, start_response)

    def _answer(self, request: Request) -> Response:
        # A page of another site can send requests here under its own name, if its name server says that this name is
        # 127.0.0.1 ("DNS rebinding"); the browser then tells that name.
        if request.headers.get("Host", "") not in self._hosts:
            raise exceptions.Forbidden(f"this server answers only to {' and '.join(sorted(self._hosts))}")
        if not request.path.startswith("/api/"):
            return _file(request)
        handler = self._handlers.get(request.path)
        if handler is None:
            raise exceptions.NotFound(f"there is no {request.path}")
        return _json(200, handler(_arguments(request)))


def _arguments(request: Request) -> dict[str, Any]:
    if request.method == "GET":
        return request.args.to_dict()
    if request.method != "POST":
        raise exceptions.MethodNotAllowed(description="only GET and POST are answered")
    # Other types may be sent by pages of other sites without asking.
    if request.mimetype != "application/json":
        raise exceptions.UnsupportedMediaType("the arguments must be JSON (Content-Type: application/json)")
    if (request.content_length or 0) > _MOST_BYTES:
        raise exceptions.RequestEntityTooLarge(f"the arguments have more than {_MOST_BYTES} bytes")
    try:
        arguments = json.loads(request.get_data())
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise exceptions.BadRequest("a text holds half a character (one of a pair of \\u...)") from None
    except (OSError, ValueError, RecursionError):  # OSError: a body in chunks that are none
        raise exceptions.BadRequest("the arguments are not JSON") from None
    if not isinstance(arguments, dict):
        raise exceptions.BadRequest("the arguments must be a JSON object")
    return arguments


def _file(request: Request) -> Response:
    """A file of the page; names with a folder are none."""
    if request.method not in ("GET", "HEAD"):
        raise exceptions.MethodNotAllowed(description="only GET is answered here")
    name = request.path.removeprefix("/") or "index.html"
    if name not in os.listdir(PAGE):
        raise exceptions.NotFound(f"there is no file {name}")
    kind = _TYPES.get(os.path.splitext(name)[1], "application/octet-stream")
    return Response((PAGE / name).read_bytes(), content_type=f"{kind}; charset=utf-8")


def _json(status: int, content: Any) -> Response:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode("utf-8"), status, content_type="application/json; charset=utf-8")
