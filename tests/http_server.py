"""The one HTTP server of the tests: on this machine, many requests at once, and misbehaving on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """What the server does with one request.

    ``body`` is sent as it is if it is bytes, piece by piece if it is an iterator of bytes, and else as JSON. ``cut``
    breaks the connection halfway, or after the last piece.
    """

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: bool = False


Script = Callable[[dict[str, Any], int], Reply]
"""A request's body and number → the reply."""


class Server:
    """A running server; what was asked is in ``requests`` (bodies), ``paths`` and ``headers``, in order."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.busy = self.most_busy = 0
        self.stopping = threading.Event()
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
                with lock:
                    number = len(outer.requests)
                    outer.requests.append(body)
                    outer.paths.append(self.path)
                    outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                    outer.busy += 1
                    outer.most_busy = max(outer.most_busy, outer.busy)
                try:
                    self.answer(outer.script(body, number))
                except OSError:
                    self.close_connection = True  # the client gave up
                finally:
                    with lock:
                        outer.busy -= 1

            def answer(self, reply: Reply) -> None:
                outer.stopping.wait(reply.delay)
                whole = None
                if not isinstance(reply.body, Iterator):
                    whole = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                headers = {"content-type": "application/json"}
                headers |= {"transfer-encoding": "chunked"} if whole is None else {"content-length": str(len(whole))}
                self.send_response(reply.status)
                for name, value in {**headers, **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if whole is not None:
                    self.wfile.write(whole[: len(whole) // 2] if reply.cut else whole)
                else:
                    for piece in reply.body:
                        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                        self.wfile.flush()
                    self.wfile.write(b"" if reply.cut else b"0\r\n\r\n")
                self.close_connection = self.close_connection or reply.cut

            def log_message(self, *args: Any) -> None:
                pass

        class Threads(ThreadingHTTPServer):
            request_queue_size = 128

        self.http = Threads(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = False  # joined on close
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.stopping.set()
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@contextmanager
def running(script: Script) -> Iterator[Server]:
    """Serves until left; gives the server."""
    server = Server(script)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def serving(reply: Callable[[str, dict[str, str], dict[str, Any]], tuple[int, bytes]]) -> Iterator[str]:
    """Serves until left, by path, headers and body, one request at a time; gives the address."""
    one = threading.Lock()

    def script(body: dict[str, Any], number: int) -> Reply:
        with one:
            status, answer = reply(server.paths[number], server.headers[number], body)
        return Reply(answer, status, {"connection": "close"})

    with running(script) as server:
        yield server.url


@contextmanager
def redirecting(to: str, status: int = 307) -> Iterator[str]:
    """Serves redirects to another address; gives its own."""
    with running(lambda body, number: Reply(b"", status, {"location": to, "connection": "close"})) as server:
        yield server.url
